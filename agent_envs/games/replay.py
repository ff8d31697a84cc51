"""Games of other libraries: menus of actions, and copies rebuilt by replaying the actions."""

import re
from collections.abc import Callable, Iterable
from typing import Any


class Replay:
    """A game that may not be picklable, like most that run native code, together with the actions taken in it.

    A copy makes a new game and repeats the actions when `game` is first read. ``make`` must be picklable itself, as a class
    is. A game has ``reset(instance)`` and ``step(action)``; the same actions must lead to the same state.
    """

    def __init__(self, make: Callable[[], Any]):
        self.make = make
        self.instance: Any = None
        self.actions: list[str] = []
        self._game: Any = None

    @property
    def game(self) -> Any:
        """The game; a copy makes it anew and brings it to the same state."""
        if self._game is None:
            self._game = self.make()
            if self.instance is not None:
                self._game.reset(self.instance)
            for action in self.actions:
                self._game.step(action)
        return self._game

    def reset(self, instance: Any) -> None:
        """Start the game of this instance."""
        self.instance, self.actions = None, []
        self.game.reset(instance)
        self.instance = instance

    def step(self, action: str) -> None:
        """Take an action and record it. An action that raises is not recorded."""
        self.game.step(action)
        self.actions.append(action)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_game": None}


def normalize_command(text: str) -> str:
    """Normalize ``text`` to compare commands: case-folded, with single spaces."""
    return " ".join(text.split()).casefold()


def menu(name: str, entries: Iterable[str]) -> str:
    """The choices of the agent, as the last line of an observation. Entries must not hold square brackets."""
    return f"{name}: " + (" ".join(f"[{' '.join(entry.split())}]" for entry in entries) or "none")


def read_menu(name: str, text: str) -> list[str]:
    """The entries of the last menu of that name in ``text``."""
    return re.findall(r"\[([^][]+)\]", text.rpartition(f"{name}: ")[2])
