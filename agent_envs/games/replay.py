"""Games of other libraries: menus of actions, and copies rebuilt by replaying the actions."""

import re
from collections.abc import Callable, Iterable
from typing import Any


class Replay:
    """A game that may not survive pickling, as most that run native code do not, together with what was done in it.

    A copy makes a game of its own and repeats the actions when `game` is first read. ``make`` has to survive pickling itself, as
    a class does. A game has ``reset(instance)`` and ``step(action)``; equal actions lead to equal places.
    """

    def __init__(self, make: Callable[[], Any]):
        self.make = make
        self.instance: Any = None
        self.actions: list[str] = []
        self._game: Any = None

    @property
    def game(self) -> Any:
        """The game, made anew and brought to the same place in a copy."""
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
        """Do an action and remember it. What raises is not remembered."""
        self.game.step(action)
        self.actions.append(action)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_game": None}


def normalize_command(text: str) -> str:
    """``text`` as commands are compared: without capitals and needless white space."""
    return " ".join(text.split()).casefold()


def menu(name: str, entries: Iterable[str]) -> str:
    """What the agent may choose from, as the last line of an observation; entries hold no square brackets."""
    return f"{name}: " + (" ".join(f"[{' '.join(entry.split())}]" for entry in entries) or "none")


def read_menu(name: str, text: str) -> list[str]:
    """The entries of the last menu of that name in ``text``."""
    return re.findall(r"\[([^][]+)\]", text.rpartition(f"{name}: ")[2])
