"""Aggregate several algorithms over several seeds and tasks, as Agarwal et al. (2021, arXiv 2108.13264) advise.

The interquartile mean and the probability of improvement, with bootstrap intervals; and p-values of paired differences,
corrected for their number (Holm 1979).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

SAMPLES = 2000  # of `bootstrap_over_seeds`


class Estimate(NamedTuple):
    """A value and its 95% CI."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """The mean of the middle half of all runs of ``scores`` [..., seeds, tasks], as [...]."""
    from scipy.stats import trim_mean

    return trim_mean(scores.reshape(*scores.shape[:-2], -1), 0.25, axis=-1)


def probability_of_improvement(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Estimate the probability that a run of ours is above one of theirs on the same task, the mean over tasks, [...].
    Ties count half: the Mann-Whitney U statistic as a share. ``ours``, ``theirs``: [..., seeds, tasks], each with seeds of its
    own."""
    above = ours[..., :, None, :] - theirs[..., None, :, :]
    return (0.5 + 0.5 * np.sign(above)).mean((-3, -2, -1))


def bootstrap_over_seeds(measure: Callable[..., np.ndarray], *scores: np.ndarray) -> Estimate:
    """Compute ``measure(*scores)`` with its percentile bootstrap interval. A seed is drawn with all its tasks: unlike in the
    paper, one run is evaluated on all of them, and its scores go together.
    ``measure`` maps arrays [..., seeds, tasks] to [...]; ``scores`` are [seeds, tasks]."""
    rng = np.random.default_rng(0)
    drawn = zip(*([own[rng.integers(len(own), size=len(own))] for own in scores] for _ in range(SAMPLES)), strict=True)
    low, high = np.quantile(measure(*map(np.array, drawn)), [0.025, 0.975])
    return Estimate(float(measure(*scores)), float(low), float(high))


def paired_p_value(differences: Sequence[float]) -> float:
    """Two-sided p-value for a mean of paired differences of 0, by Student's t-test; 1 for a single one, or if all are 0. If all
    are equal, as scores of few questions may be, their deviation is 0: the p-value is then that of the sign test, 2 / 2^n."""
    from scipy.stats import ttest_1samp

    if len(differences) < 2 or not np.any(differences):
        return 1.0
    if np.ptp(differences) <= 1e-9 * np.max(np.abs(differences)):
        return 2.0 / 2 ** len(differences)
    return float(ttest_1samp(differences, 0.0).pvalue)


def correct_for_number(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down correction: p-values that hold for all comparisons of a family together."""
    corrected, largest = {}, 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, p_values[name] * (len(p_values) - place)))
        corrected[name] = largest
    return {name: corrected[name] for name in p_values}
