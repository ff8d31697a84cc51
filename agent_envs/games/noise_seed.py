"""The part of an episode that chance decides after the start, apart from what the seed of the instance has set out."""

import random
from typing import Any


def take_noise_seed(options: dict[str, Any]) -> int:
    """The reset option ``noise_seed``, 0 where it is not given: which random outcomes the same instance has.

    A group of attempts at one instance shares a seed. With equal noise seeds the random outcomes are the same for all of
    them, and an arm that pays a quarter of the time loses three groups in four as a whole; with different ones each
    attempt draws its own.

    Raises:
        ValueError: another option, or a value that is no whole number.
    """
    if unknown := set(options) - {"noise_seed"}:
        raise ValueError(f"unknown reset options {sorted(unknown)}; known: ['noise_seed']")
    noise_seed = options.get("noise_seed", 0)
    if isinstance(noise_seed, bool) or not hasattr(noise_seed, "__index__"):
        raise ValueError(f"noise_seed must be a whole number, got {noise_seed!r}")
    return int(noise_seed)


def make_noise_rng(instance: int, noise_seed: int) -> random.Random:
    """The random generator of instance number ``instance`` under ``noise_seed``."""
    return random.Random(f"{instance}/{noise_seed}")
