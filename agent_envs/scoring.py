"""The answer, support and joint metrics of HotpotQA, 2WikiMultihopQA and MuSiQue, as pure functions.

They are those of the official scripts: `hotpot_evaluate_v1.py` (HotpotQA), `2wikimultihop_evaluate_v1.1.py`
(2WikiMultihopQA: the same, over a gold answer and its aliases) and `metrics/answer.py` with `evaluate_v1.0.py`
(MuSiQue: the same normalisation, aliases). They depart from the scripts in three places, each of them stricter:

- What normalises to nothing ("The", "...", "") matches nothing. The scripts call two empty strings equal, and so
  pay full marks for an empty answer to a gold such as "A".
- HotpotQA's rule for yes, no and noanswer holds for all three benchmarks; MuSiQue's script has none.
- An empty gold support set scores 0, where the scripts count exact match for predicting nothing.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple

import numpy as np

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CLOSED_ANSWERS = frozenset(("yes", "no", "noanswer"))


class Scores(NamedTuple):
    """Exact match, F1 and the precision and recall behind it, each in [0, 1]."""

    em: float
    f1: float
    precision: float
    recall: float


_ZERO = Scores(0.0, 0.0, 0.0, 0.0)


def normalize_answer(text: str) -> str:
    """Lower-case, drop ASCII punctuation, drop the articles a, an and the, collapse white space: in this order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1.0 where the normalised prediction equals a normalised gold answer or alias."""
    return float(normalize_answer(prediction) in _normalized(golds))


def f1(prediction: str, golds: Sequence[str]) -> float:
    """Token F1 against the gold answer or alias that fits best."""
    return answer_scores(prediction, golds).f1


def substring_match(prediction: str, golds: Sequence[str]) -> float:
    """1.0 where a normalised gold is a substring of the normalised prediction. To report, never to reward.

    The measure called cover EM, or `subem_check` in Search-R1: it is met by an answer that lists every candidate, and
    by "north" where the gold is "no".
    """
    predicted = normalize_answer(prediction)
    return float(any(gold in predicted for gold in _normalized(golds)))


def answer_scores(prediction: str, golds: Sequence[str]) -> Scores:
    """The four scores of an answer, each its maximum over the golds, as in `2wikimultihop_evaluate_v1.1.py`."""
    predicted = normalize_answer(prediction)
    scores = [_score_one(predicted, gold) for gold in _normalized(golds)]
    return Scores(*map(max, zip(*scores, strict=True))) if scores else _ZERO


def support_scores(predicted: Collection[Hashable], gold: Collection[Hashable]) -> Scores:
    """Scores of a set of supporting facts, `(title, sentence index)` pairs, or of titles alone.

    2WikiMultihopQA's script lower-cases the titles first: pass them so to get its numbers.
    """
    predicted, gold = set(predicted), set(gold)
    hits = len(predicted & gold)
    return _scores(float(predicted == gold), hits / len(predicted), hits / len(gold)) if hits else _ZERO


def joint_scores(answer: Scores, support: Scores) -> Scores:
    """HotpotQA's joint scores: the products of the exact matches, of the precisions and of the recalls."""
    return _scores(answer.em * support.em, answer.precision * support.precision, answer.recall * support.recall)


def bootstrap_interval(
    values: Sequence[float], confidence: float = 0.95, samples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean (Efron 1979), from `samples` resamples.

    Raises:
        ValueError: there are no values, or `confidence` is not between 0 and 1.
    """
    if len(values) == 0:
        raise ValueError("a bootstrap interval needs at least one value")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    # Scores repeat (EM has two values), so a resample is drawn as counts of the distinct values: the same
    # distribution as drawing with replacement, at a fraction of the memory.
    distinct, counts = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    size = int(counts.sum())
    resamples = np.random.default_rng(seed).multinomial(size, counts / size, size=samples)
    low, high = np.quantile(resamples @ distinct / size, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _normalized(golds: Sequence[str]) -> list[str]:
    """The golds that can be matched at all: an empty one never is, and so no empty prediction matches either."""
    if isinstance(golds, str):
        raise TypeError(f"golds must be a sequence of answers, got the string {golds!r}")
    return [gold for gold in map(normalize_answer, golds) if gold]


def _score_one(predicted: str, gold: str) -> Scores:
    """Score one normalised prediction against one normalised gold, which is not empty."""
    if predicted == gold:
        return Scores(1.0, 1.0, 1.0, 1.0)
    if not predicted or predicted in _CLOSED_ANSWERS or gold in _CLOSED_ANSWERS:
        return _ZERO  # HotpotQA's rule: "no one" earns nothing where the gold is "no", nor the other way round
    predicted_tokens, gold_tokens = predicted.split(), gold.split()
    shared = (Counter(predicted_tokens) & Counter(gold_tokens)).total()
    return _scores(0.0, shared / len(predicted_tokens), shared / len(gold_tokens))


def _scores(em: float, precision: float, recall: float) -> Scores:
    harmonic = 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
    return Scores(em, harmonic, precision, recall)
