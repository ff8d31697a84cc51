"""The instance of an episode: its split, its number, and the seed of its random outcomes.

The digest of an instance's text decides its split, so training and validation share no instance, for any seeds.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

SPLITS = ("train", "validation")
INSTANCES = range(2**31)  # instance numbers


class Redraw(Exception):
    """Raised if the values drawn so far make no instance; the caller draws again from the same random generator."""


def check_seed(seed: Any) -> None:
    """Raise ValueError for a seed of an episode that is neither None nor an integer of at least 0."""
    if not isinstance(seed, int | None) or (seed or 0) < 0:
        raise ValueError(f"seed must be an integer of at least 0, got {seed!r}")


def digest(text: str) -> str:
    """A short name for an instance, the same in every process."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


def split_of(key: str) -> str:
    """The split, ``"train"`` or ``"validation"``, by the parity of the digest of ``key``: about half of all instances each."""
    return SPLITS[int(digest(key), 16) % 2]


def draw(make: Callable[[random.Random], Any], split: str, key: str) -> Any:
    """Draw the instance that ``key`` names: the first of its random sequence whose ``text`` falls into ``split``."""
    rng = random.Random(key)
    while True:
        instance = make(rng)
        if split_of(instance.text) == split:
            return instance


def check_choice(name: str, value: Any, known: tuple[Any, ...] = SPLITS) -> None:
    """Raise a ValueError if the value of the argument ``name`` is not among the ``known`` ones."""
    if value not in known:
        raise ValueError(f"{name} must be one of {known}, got {value!r}")


def check_integers(least: int = 1, **values: Any) -> None:
    """Raise a ValueError if one of ``values`` is not an integer of at least ``least``."""
    for name, value in values.items():
        if type(value) is not int or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def check_pair(name: str, value: Any, least: int, most: int) -> None:
    """Raise a ValueError if ``value`` is not two integers in order, from ``least`` to ``most``."""
    are_two = isinstance(value, Sequence) and len(value) == 2 and set(map(type, value)) == {int}
    if not are_two or not least <= value[0] <= value[1] <= most:
        raise ValueError(f"{name} must be two integers in order, from {least} to {most}, got {value!r}")


def check_kinds(kinds: Any, known: Collection[str]) -> None:
    """Raise a ValueError if ``kinds`` is a string, is empty or has kinds that are not ``known``."""
    if isinstance(kinds, str) or not kinds or not set(kinds) <= set(known):
        raise ValueError(f"kinds must be some of {tuple(known)}, got {kinds!r}")


def check_options(options: Mapping[str, Any], *known: str) -> None:
    """Raise a ValueError for a reset option that is not known."""
    if unknown := set(options) - set(known):
        raise ValueError(f"unknown reset options {sorted(unknown)}; known: {list(known)}")


def choose_instance(
    np_random: np.random.Generator, options: Mapping[str, Any], numbers: range = INSTANCES, name: str = "instance"
) -> int:
    """The reset option ``name``, or a random one of ``numbers``. Raises ValueError for another option or number."""
    check_options(options, name)
    number = options.get(name)
    if number is None:
        return numbers[int(np_random.integers(len(numbers)))]
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number not in numbers:
        raise ValueError(f"{name} must be an integer in {numbers.start}..{numbers.stop - 1}, got {number!r}")
    return int(number)


def make_noise_rng(instance: int, options: Mapping[str, Any]) -> random.Random:
    """Make the generator of an instance's random outcomes, such as the payoff of an arm, from ``instance`` and the reset
    option ``noise_seed`` (default 0). Give rollouts of one instance different noise seeds, or their random outcomes are equal.

    Raises:
        ValueError: for another option, or a noise seed that is not an integer.
    """
    check_options(options, "noise_seed")
    noise_seed = options.get("noise_seed", 0)
    if isinstance(noise_seed, bool) or not hasattr(noise_seed, "__index__"):
        raise ValueError(f"noise_seed must be an integer, got {noise_seed!r}")
    return random.Random(f"{instance}/{int(noise_seed)}")
