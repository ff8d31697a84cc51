"""Which instance an episode is about: its split, its number, and the seed of what chance decides later.

An instance belongs to one split by a digest of its text, so training and validation share none for any seeds.
"""

import random
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

SPLITS = ("train", "validation")
INSTANCES = range(2**31)  # instance numbers


class Redraw(Exception):
    """The values drawn so far do not make an instance. It is drawn anew from the same random generator."""


def digest(text: str) -> str:
    """A short name for an instance, the same in every process."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


def split_of(key: str) -> str:
    """``"train"`` or ``"validation"``, by the parity of the digest of ``key``: about half of all instances each."""
    return SPLITS[int(digest(key), 16) % 2]


def draw(make: Callable[[random.Random], Any], split: str, key: str) -> Any:
    """The instance that ``key`` names: the first of its sequence whose ``text`` falls into ``split``."""
    rng = random.Random(key)
    while True:
        instance = make(rng)
        if split_of(instance.text) == split:
            return instance


def check_choice(name: str, value: Any, known: tuple[Any, ...] = SPLITS) -> None:
    """Raise a ValueError where an argument is none of the few values that it may have."""
    if value not in known:
        raise ValueError(f"{name} must be one of {known}, got {value!r}")


def check_integers(least: int = 1, **values: Any) -> None:
    """Raise a ValueError where an argument is no integer of at least ``least``."""
    for name, value in values.items():
        if type(value) is not int or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def check_kinds(kinds: Any, known: Collection[str]) -> None:
    """Raise a ValueError where ``kinds`` are not some of those that are known."""
    if isinstance(kinds, str) or not kinds or not set(kinds) <= set(known):
        raise ValueError(f"kinds must be some of {tuple(known)}, got {kinds!r}")


def check_options(options: Mapping[str, Any], *known: str) -> None:
    """Raise a ValueError for a reset option that is not known."""
    if unknown := set(options) - set(known):
        raise ValueError(f"unknown reset options {sorted(unknown)}; known: {list(known)}")


def choose_instance(
    np_random: np.random.Generator, options: Mapping[str, Any], numbers: range = INSTANCES, name: str = "instance"
) -> int:
    """The reset option ``name``, or any of ``numbers``. Raises ValueError: another option, or another number."""
    check_options(options, name)
    number = options.get(name)
    if number is None:
        return numbers[int(np_random.integers(len(numbers)))]
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number not in numbers:
        raise ValueError(f"{name} must be an integer in {numbers.start}..{numbers.stop - 1}, got {number!r}")
    return int(number)


def make_noise_rng(instance: int, options: Mapping[str, Any]) -> random.Random:
    """The generator of an instance's random outcomes, such as the payoff of an arm: its seed and the reset option
    ``noise_seed`` (0). Rollouts of one instance need different noise seeds, or chance decides for all of them at once.

    Raises:
        ValueError: another option, or a value that is no integer.
    """
    check_options(options, "noise_seed")
    noise_seed = options.get("noise_seed", 0)
    if isinstance(noise_seed, bool) or not hasattr(noise_seed, "__index__"):
        raise ValueError(f"noise_seed must be an integer, got {noise_seed!r}")
    return random.Random(f"{instance}/{int(noise_seed)}")
