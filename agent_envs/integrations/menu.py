"""The turns of a game as numbered choices, for agents that read vectors and act by a number.

    >>> env = Menu(gymnasium.make("AgentR1/Sokoban-v0"))
    >>> observation, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(env.action_masks().argmax())

A game needs a method ``menu() -> dict[str, bool]``: the turns to choose from, in a fixed order, and whether each would change
anything. If the game has ``BOARD_SYMBOLS``, the observation is the board of its ``state_text()``.
"""

from typing import Any, cast

import gymnasium
import numpy as np

from agent_envs.games.boards import board_rows


class Menu(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """A text environment with ``Discrete`` actions and ``Box`` observations.

    A choice is a turn of one action. Observations are float32 in [0, 1]. For a board, [cells * symbols + 1]: one-hot cells, row
    by row, and the share of turns left. Otherwise, [max_bytes]: UTF-8 bytes / 255, padded with zeros.

    Args:
        env: an environment with a menu. It is reset once, to count the choices.
        max_bytes: longest text, in bytes.

    Raises:
        ValueError: the environment has no menu; a text is longer than ``max_bytes``; an action is not on the menu.
    """

    def __init__(self, env: gymnasium.Env, max_bytes: int = 256):
        gymnasium.utils.RecordConstructorArgs.__init__(self, max_bytes=max_bytes)
        gymnasium.Wrapper.__init__(self, env)
        self._game = cast(Any, env.unwrapped)
        self.max_bytes = max_bytes
        if not hasattr(self._game, "menu"):
            raise ValueError(
                f"{type(self._game).__name__} has no menu: its turns are no fixed number of choices. "
                "Bandit, FrozenLake and Sokoban have one; an environment of your own needs a method menu()"
            )
        if hasattr(self._game, "max_actions"):
            self._game.max_turns = max(self._game.max_turns, self._game.max_actions)
        text, _ = env.reset()
        self._choices = len(self._game.menu())
        self.action_space = gymnasium.spaces.Discrete(self._choices)
        self.observation_space = gymnasium.spaces.Box(0, 1, self._encode(text).shape, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        text, info = self.env.reset(seed=seed, options=options)
        return self._encode(text), info

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Take the turn at index ``action`` of the menu."""
        if not self.action_space.contains(action):
            raise ValueError(f"an action is a place in the menu, 0 to {self._choices - 1}, got {action!r}")
        text, reward, terminated, truncated, info = self.env.step(list(self._game.menu())[action])
        return self._encode(text), float(reward), terminated, truncated, info

    def action_masks(self) -> np.ndarray:
        """Return which choices would change anything, bool [choices], for MaskablePPO; undefined after the episode ends."""
        return np.array(list(self._game.menu().values()), dtype=bool)

    def _encode(self, text: str) -> np.ndarray:
        symbols = getattr(self._game, "BOARD_SYMBOLS", "")
        if not symbols:
            encoded = np.frombuffer(text.encode(), dtype=np.uint8)
            if len(encoded) > self.max_bytes:
                raise ValueError(f"a text of {len(encoded)} bytes: give Menu a max_bytes of that or more")
            return np.pad(encoded / np.float32(255), (0, self.max_bytes - len(encoded)))
        cells = [symbols.index(cell) for row in board_rows(self._game.state_text(), symbols) for cell in row]
        left = 1 - len(self._game.history.turns) / self._game.max_turns
        return np.append(np.eye(len(symbols), dtype=np.float32)[cells], np.float32(left))
