"""Shared parts of the board games: boards as text, several actions per turn, and a budget of actions."""

import random
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from agent_envs.generators.instances import check_integers
from agent_envs.types import ToolCall, Turn


def canonical_form(rows: list[str]) -> str:
    """A text that is the same for a board and all its rotations and reflections."""
    images = []
    for _ in range(4):
        rows = ["".join(column) for column in zip(*rows[::-1], strict=True)]
        images += ["\n".join(rows), "\n".join(row[::-1] for row in rows)]
    return min(images)


def board_rows(text: str, symbols: str) -> list[list[str]]:
    """The rows of a board in an observation: symbols with a space in between; tags and quotes around them are ignored."""
    cell = f"[{re.escape(symbols)}]"
    lines = re.findall(rf'(?<![^\s>"]){cell}(?: {cell})+(?![^\s<"\\])', text)
    return [line.split() for line in lines]


@dataclass(slots=True)
class Budget:
    """A budget of actions: ``per_turn`` for all calls of a turn together, and ``left`` for the rest of the episode."""

    per_turn: int
    left: int
    taken: int = 0  # in this turn

    def __post_init__(self):
        check_integers(actions_per_turn=self.per_turn, max_actions=self.left)

    def spend(self) -> None:
        """Count one action as taken."""
        self.left, self.taken = self.left - 1, self.taken + 1

    def end_turn(self) -> bool:
        """Begin the count of the next turn, and return whether no action is left."""
        self.taken = 0
        return self.left == 0

    def check(self, count: int) -> None:
        """Raise a ValueError, with a message for the agent, if the turn may not hold ``count`` more actions."""
        if count < 1:
            raise ValueError("give at least one action")
        if self.taken + count > self.per_turn:
            done = "this call did nothing" if self.taken else "none of them was done"
            raise ValueError(f"a turn may hold {self.per_turn} actions at most, not {self.taken + count}; {done}")
        if count > self.left:
            raise ValueError(f"{count} actions are more than the {self.left} that are left; none of them was done")

    def __str__(self) -> str:
        return f"Actions left: {self.left}"


def read_left(text: str) -> int:
    """Read the number of actions left from an observation."""
    found = re.search(r"Actions left: (\d+)", text)
    assert found is not None, text
    return int(found[1])


def move_turn(actions: list[str]) -> Turn:
    """A call of the tool ``move``."""
    return Turn(calls=(ToolCall("move", {"actions": actions}),))


def wander(env: Any, rng: random.Random) -> Generator[Turn, str, None]:
    """Script: in every turn, a random number of random actions that ``move`` takes."""
    actions = env.tools["move"].parameters["properties"]["actions"]["items"]["enum"]
    text = env.first_observation
    while True:
        count = rng.randint(1, min(env.actions_per_turn, read_left(text)))
        text = yield move_turn(rng.choices(actions, k=count))
