"""Sokoban: push boxes onto targets."""

import random
from collections.abc import Hashable
from typing import Any, Literal

from agent_envs.games import sokoban
from agent_envs.games.boards import Budget, move_turn, read_left, wander
from agent_envs.generators.instances import check_choice, check_integers, check_options, check_pair, digest
from agent_envs.rewards import Invalid, Metric, Reward
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import FunctionTool
from agent_envs.types import ToolResult, Turn, TurnOutcome
from agent_envs.utils.scripts import Script
from agent_envs.vector import vector_entry_point

Action = Literal["Up", "Down", "Left", "Right"]


def push_closer(env: "SokobanEnv", rng: random.Random) -> Script:
    """Read the board, and make the nearest push that brings a box closer to a target, or a random step if there is none."""
    text = env.first_observation
    while True:
        level = sokoban.read(text)
        plan = sokoban.find_push_closer(level) or [rng.choice(list(sokoban.DIRECTIONS))]
        text = yield move_turn(plan[: min(env.actions_per_turn, read_left(text))])


def shortest(env: "SokobanEnv", rng: random.Random) -> Script:
    """Make the moves of a shortest solution, ``actions_per_turn`` in each turn."""
    plan = sokoban.solve(env.level)
    assert plan is not None  # levels are made from their solution
    for start in range(0, len(plan), env.actions_per_turn):
        yield move_turn(plan[start : start + env.actions_per_turn])


class SokobanEnv(ToolEnv):
    """Push every box onto a target, in a few moves.

    The agent sees the board and how many actions are left. Walking into a box pushes it one cell, unless a wall or
    another box is on the other side; boxes cannot be pulled. The episode terminates when all boxes are on targets, and
    is truncated when actions or turns are used up.

    Symbols, budget and rewards are those of RAGEN (arXiv 2504.20073). Unlike there, the shortest solution fits the
    budget, and a turn with too many or unknown actions does nothing.

    Args:
        split: ``"train"`` or ``"validation"``, by a digest of the board up to rotation and reflection.
        size: rows and columns, the walls around included; 5 to 12.
        boxes: number of boxes and of targets; 1 to 4.
        moves: smallest and largest length of the shortest solution, in actions; sets the difficulty.
        max_actions: actions in the whole episode.
        actions_per_turn: actions in one turn.
        max_turns: turns before truncation.
        common: other arguments of `ToolEnv`.

    At reset ``info`` has ``source``, ``split``, ``board`` (a digest) and ``shortest`` (the fewest actions that solve
    it). Every step adds the metrics ``box`` (boxes that came onto targets minus those that left), ``solved``, ``moves``
    and ``success``.
    """

    level: sokoban.Level

    REWARD = Reward(
        box=(1.0, Metric("box")),
        solved=(10.0, Metric("solved")),
        move=(-0.1, Metric("moves")),
        invalid=(-0.1, Invalid()),
    )
    BOARD_SYMBOLS = sokoban.SYMBOLS
    SCRIPTS = {"random": wander, "scripted": push_closer, "oracle": shortest}  # noqa: RUF012

    def __init__(
        self,
        split: str = "train",
        size: int = 6,
        boxes: int = 1,
        moves: tuple[int, int] = (2, 10),
        max_actions: int = 10,
        actions_per_turn: int = 5,
        max_turns: int = 5,
        **common: Any,
    ):
        check_choice("split", split)
        check_integers(size=size, boxes=boxes)
        if not 5 <= size <= 12 or not 1 <= boxes <= 4:
            raise ValueError(f"size must be in 5..12 and boxes in 1..4, got {size} and {boxes}")
        self.split, self.size, self.boxes = split, size, boxes
        self.max_actions, self.actions_per_turn = max_actions, actions_per_turn
        self.budget = Budget(actions_per_turn, max_actions)
        budget = min(max_actions, actions_per_turn * max_turns)
        check_pair("moves", moves, 1, budget)
        self.moves = (moves[0], moves[1])
        task = (
            "Solve the Sokoban puzzle: push every box onto a target. Walking into a box pushes it one cell, unless a wall or "
            "another box is behind it; you cannot pull. # is a wall, _ floor, O a target, X a box, √ a box on a target, "
            f"P you, S you on a target. You have {max_actions} actions in all, {actions_per_turn} in one turn at most."
        )
        common = {"format": "ragen", "max_calls": 1, **common}
        super().__init__((FunctionTool(self.move),), instructions=task, answers=False, max_turns=max_turns, **common)

    def move(self, actions: list[Action]) -> ToolResult:
        """walk or push one cell in each of these directions, in this order."""
        if self.level.solved:
            raise ValueError("the puzzle is solved")
        self.budget.check(len(actions))
        placed, left = self.level.placed, self.budget.left
        for action in actions:
            self.level = sokoban.move(self.level, action)
            self.budget.spend()
            if self.level.solved:
                break
        happened = {"box": self.level.placed - placed, "moves": left - self.budget.left}
        return ToolResult(self.state_text(), data=happened)

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        check_options(options)
        rng = random.Random(int(self.np_random.integers(2**63)))
        self.level, shortest = sokoban.generate(rng, self.size, self.boxes, self.moves, self.split)
        self.budget = Budget(self.actions_per_turn, self.max_actions)
        board = digest(sokoban.render(self.level))
        info = {"source": "generated", "split": self.split, "board": board, "shortest": shortest}
        return self.state_text(), info

    def evaluate_turn(self, turn: Turn, results: list[ToolResult], done: bool) -> TurnOutcome:
        happened = [result.data for result in results if result.ok]
        solved = self.level.solved
        metrics = {name: float(sum(one[name] for one in happened)) for name in ("box", "moves")}
        metrics |= {"solved": float(solved), "success": float(solved)}
        return TurnOutcome(metrics, terminated=solved, truncated=self.budget.end_turn())

    def menu(self) -> dict[str, bool]:
        """The turns of one action, each with whether it would move anything; see `agent_envs.integrations.Menu`."""
        moves = {action: sokoban.move(self.level, action) != self.level for action in sokoban.DIRECTIONS}
        return {self.format.write(move_turn([action])): moved for action, moved in moves.items()}

    def anchor(self) -> Hashable:
        """The board, without the actions that are left."""
        return sokoban.render(self.level)

    def state_text(self) -> str:
        return f"{sokoban.render(self.level)}\n{'Solved.' if self.level.solved else self.budget}"


make_vector = vector_entry_point(SokobanEnv)
