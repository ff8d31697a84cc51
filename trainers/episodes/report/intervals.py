"""Confidence intervals over seeds, and over questions and seeds together."""

from collections.abc import Mapping, Sequence

import numpy as np

Scores = Mapping[str, float]  # by the id of a question


def mean_and_half(values: Sequence[float]) -> tuple[float, float | None]:
    """Compute the mean over seeds, and half the width of its 95% CI by Student's t; None for a single seed."""
    from scipy.stats import t

    if len(values) < 2:
        return float(np.mean(values)), None
    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(half)


def bootstrap(values: np.ndarray, samples: int = 4000) -> tuple[float, float, float]:
    """Compute the mean of ``values`` [seeds, questions], and its 95% percentile interval.

    Seeds and questions are resampled independently (the pigeonhole bootstrap, Owen 2007); with one seed, only questions.
    """
    rng, (seeds, questions) = np.random.default_rng(0), values.shape
    seed_weights = rng.multinomial(seeds, np.full(seeds, 1 / seeds), samples) / seeds
    even, means = np.full(questions, 1 / questions), np.empty(samples)
    for block in np.split(np.arange(samples), range(100, samples, 100)):  # of 90,000 questions, all take 6 GB
        question_weights = rng.multinomial(questions, even, len(block)) / questions
        means[block] = np.einsum("bq,bq->b", seed_weights[block] @ values, question_weights)
    low, high = np.quantile(means.round(12), [0.025, 0.975])  # the same on every machine
    return float(values.mean()), float(low), float(high)


def paired_values(ours: Mapping[int | None, Scores], theirs: Mapping[int | None, Scores]) -> np.ndarray:
    """Subtract their scores from ours: [seeds, questions], over the seeds and questions that both have.

    Scores are given by seed. Scores under None depend on no seed and are compared with every seed of the other side.
    """
    pairs = [(a, b) for a in ours for b in theirs if a == b or a is None or b is None]
    if not pairs:
        return np.zeros((0, 0))
    common = set.intersection(*(set(ours[a]) & set(theirs[b]) for a, b in pairs))
    return np.array([[ours[a][q] - theirs[b][q] for q in sorted(common)] for a, b in pairs])
