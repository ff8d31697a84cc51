"""Procedural task instances: pure functions of a `random.Random`, which know nothing of environments.

One folder for each task; `arithmetic` and `people` are shared.

An instance belongs to one split by a digest of its text, so training and validation share none for any seeds.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from agent_envs.games.split import split_of

INSTANCES = 2**31  # instance numbers are drawn from 0 to this


class Instance(Protocol):
    """Anything with a ``text`` that the agent reads first."""

    @property
    def text(self) -> str:
        """The first observation."""
        ...


T = TypeVar("T", bound=Instance)


class Redraw(Exception):
    """The values drawn so far do not make an instance: it is drawn anew from the same generator of random numbers."""


def draw(make: Callable[[random.Random], T], split: str, key: str) -> T:
    """The instance that ``key`` names: the first of its sequence that falls into ``split``."""
    rng = random.Random(key)
    while True:
        instance = make(rng)
        if split_of(instance.text) == split:
            return instance


def check_choice(name: str, value: Any, known: tuple[Any, ...]) -> None:
    """Check an argument that takes one of a few values.

    Raises:
        ValueError: ``value`` is not among the known ones.
    """
    if value not in known:
        raise ValueError(f"{name} must be one of {known}, got {value!r}")


def instance_number(np_random: np.random.Generator, options: Mapping[str, Any]) -> int:
    """``options["instance"]``, or a random instance number.

    Raises:
        ValueError: for another option, or a number outside 0..2**31 - 1.
    """
    if unknown := set(options) - {"instance"}:
        raise ValueError(f"unknown reset options {sorted(unknown)}; known: ['instance']")
    number = options.get("instance")
    if number is None:
        return int(np_random.integers(INSTANCES))
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < INSTANCES:
        raise ValueError(f"instance must be a whole number in 0..{INSTANCES - 1}, got {number!r}")
    return int(number)
