"""FrozenLake: cross slippery ice without falling into a hole."""

import random
from collections.abc import Hashable
from typing import Any, Literal

from agent_envs.games import frozenlake
from agent_envs.games.boards import Budget, move_turn, read_left, wander
from agent_envs.generators.instances import check_choice, check_integers, digest, make_noise_rng
from agent_envs.rewards import Invalid, Metric, Reward
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import FunctionTool
from agent_envs.types import ToolResult, Turn, TurnOutcome
from agent_envs.utils.scripts import Script
from agent_envs.vector import vector_entry_point

Action = Literal["Left", "Down", "Right", "Up"]


def straight(env: "FrozenLakeEnv", rng: random.Random) -> Script:
    """Read the lake and take the shortest path as if the ice did not slip, the budget spread evenly over the turns."""
    text, turns = env.first_observation, env.max_turns
    while True:
        rows, position = frozenlake.read(text)
        left = read_left(text)
        count = min(env.actions_per_turn, -(-left // max(turns, 1)))
        path = frozenlake.shortest_path(rows, position)
        assert path is not None  # lakes are made with a path to the goal, and a hole ends the episode
        text = yield move_turn(path[:count])
        turns -= 1


def best(env: "FrozenLakeEnv", rng: random.Random) -> Script:
    """Make the best plan of every turn by value iteration over slips: the task's ceiling with up to five actions a turn."""
    while True:
        turns = env.max_turns - len(env.history.turns)
        plan, _ = frozenlake.best_plan(env.lake, int(env.lake.s), turns, env.budget.left, env.actions_per_turn)
        yield move_turn(plan or ["Left"])


class FrozenLakeEnv(ToolEnv):
    """Walk to the goal over a frozen lake with holes in it.

    Each turn makes one or more actions. On slippery ice an action goes where it points with probability 1/3, and to
    either side with 1/3 each. The episode terminates at the goal or in a hole, and is truncated when actions or turns
    are used up.

    Transitions are those of Gymnasium's ``FrozenLake-v1``; symbols, budget and rewards those of RAGEN (arXiv
    2504.20073). Unlike there, maps are Gymnasium's, which have fewer holes, and a turn with too many or unknown actions
    does nothing.

    Args:
        split: ``"train"`` or ``"validation"``, by a digest of the map up to rotation and reflection.
        size: rows and columns; 3 to 8.
        frozen: probability that a cell is ice and not a hole; 0.5 to 0.95.
        slippery: False for ice on which an action always goes where it points.
        max_actions: actions in the whole episode.
        actions_per_turn: actions in one turn.
        max_turns: turns before truncation.
        common: other arguments of `ToolEnv`.

    At reset ``info`` has ``source``, ``split``, ``board`` (a digest of the map) and ``shortest`` (the fewest actions
    to the goal on ice that does not slip). Every step adds the metrics ``goal``, ``hole``, ``moves`` and ``success``.

    ``reset(seed=s, options={"noise_seed": i})`` gives the same lake for every i, but different slips.
    """

    REWARD = Reward(goal=(1.0, Metric("goal")), invalid=(-0.1, Invalid()))
    TAKES_NOISE_SEED = True
    BOARD_SYMBOLS = "_OGPX√"
    SCRIPTS = {"random": wander, "scripted": straight, "oracle": best}  # noqa: RUF012

    def __init__(
        self,
        split: str = "train",
        size: int = 4,
        frozen: float = 0.8,
        slippery: bool = True,
        max_actions: int = 10,
        actions_per_turn: int = 5,
        max_turns: int = 5,
        **common: Any,
    ):
        check_choice("split", split)
        check_integers(size=size)
        check_choice("slippery", slippery, (True, False))
        if not 3 <= size <= 8 or not 0.5 <= frozen <= 0.95:
            raise ValueError(f"size must be in 3..8 and frozen in 0.5..0.95, got {size} and {frozen}")
        self.split, self.size, self.frozen, self.slippery = split, size, frozen, slippery
        self.max_actions, self.actions_per_turn = max_actions, actions_per_turn
        self.budget = Budget(actions_per_turn, max_actions)
        task = (
            "Cross the frozen lake to the goal and keep out of the holes. _ is ice, O a hole, G the goal, P you, X you in a "
            "hole, √ you at the goal. "
            + ("The ice is slippery: you may slide to either side of where you want to go. " if slippery else "")
            + f"You have {max_actions} actions in all, {actions_per_turn} in one turn at most."
        )
        common = {"format": "ragen", "max_calls": 1, **common}
        super().__init__((FunctionTool(self.move),), instructions=task, answers=False, max_turns=max_turns, **common)
        self._longest = min(max_actions, actions_per_turn * max_turns)  # path to the goal; wrappers may give more turns

    def move(self, actions: list[Action]) -> ToolResult:
        """take one step in each of these directions, in this order."""
        if self._cell() in "GH":
            raise ValueError("the walk is over")
        self.budget.check(len(actions))
        left = self.budget.left
        for action in actions:
            _, _, over, _, _ = self.lake.step(frozenlake.ACTIONS.index(action))
            self.budget.spend()
            if over:
                break
        return ToolResult(self.state_text(), data={"moves": left - self.budget.left})

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        instance = int(self.np_random.integers(2**63))
        noise = make_noise_rng(instance, options)
        self.rows = frozenlake.generate(random.Random(instance), self.size, self.frozen, self._longest, self.split)
        self.lake = frozenlake.FrozenLakeEnv(desc=self.rows, is_slippery=self.slippery)
        self.lake.reset(seed=noise.randrange(2**31))
        self.budget = Budget(self.actions_per_turn, self.max_actions)
        info = {"source": "generated", "split": self.split, "board": digest("\n".join(self.rows))}
        path = frozenlake.shortest_path(self.rows, self._position())
        assert path is not None  # lakes are made with a path to the goal
        return self.state_text(), {**info, "shortest": len(path)}

    def evaluate_turn(self, turn: Turn, results: list[ToolResult], done: bool) -> TurnOutcome:
        cell = self._cell()
        metrics = {"goal": float(cell == "G"), "hole": float(cell == "H"), "success": float(cell == "G")}
        metrics["moves"] = float(sum(result.data["moves"] for result in results if result.ok))
        return TurnOutcome(metrics, terminated=cell in "GH", truncated=self.budget.end_turn())

    def menu(self) -> dict[str, bool]:
        """The turns of one action, each with whether it can lead to another cell; see `agent_envs.integrations.Menu`."""
        here = int(self.lake.s)
        leads = [any(to != here for _, to, *_ in self.lake.P[here][number]) for number in range(4)]
        return {self.format.write(move_turn([a])): lead for a, lead in zip(frozenlake.ACTIONS, leads, strict=True)}

    def anchor(self) -> Hashable:
        """The board, without the actions that are left."""
        return frozenlake.render(self.rows, self._position())

    def state_text(self) -> str:
        return f"{frozenlake.render(self.rows, self._position())}\n{self.budget}"

    def _position(self) -> tuple[int, int]:
        return divmod(int(self.lake.s), self.size)

    def _cell(self) -> str:
        row, column = self._position()
        return self.rows[row][column]


make_vector = vector_entry_point(FrozenLakeEnv)
