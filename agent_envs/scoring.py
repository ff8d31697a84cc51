"""Answer, support and joint metrics of the benchmarks, as pure functions.

They follow the official scripts: `hotpot_evaluate_v1.py` (HotpotQA), `2wikimultihop_evaluate_v1.1.py` (2WikiMultihopQA, with
aliases), `metrics/answer.py` with `evaluate_v1.0.py` (MuSiQue, with aliases), `orqa/utils/eval_utils.py` (NQ-open)
and `triviaqa_evaluation.py` (TriviaQA). They differ in how an answer is normalised: `normalizer(benchmark)` returns that
function, and every answer metric takes it. Bamboogle and PopQA have no such script and are scored like HotpotQA, as in
Search-R1; `substring_match` is close to PopQA's own accuracy.

Differences from the scripts, all of them stricter:

- A gold that normalises to nothing ("A+", "The", "!!!") is compared as written, without case and outer white space. The scripts
  give full marks for an empty answer, or for "the". A prediction that normalises to nothing matches no other gold.
- HotpotQA's rule for yes, no and noanswer holds for the F1 of all benchmarks; of the other scripts only 2WikiMultihopQA's has it.
- An empty gold support set scores 0; the scripts count exact match for predicting nothing.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from math import comb
from typing import NamedTuple

import numpy as np

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SPACED = str.maketrans(dict.fromkeys(string.punctuation + "‘’´`", " "))
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_BARE_ARTICLES = re.compile(r"\b(?:a|an|the)\b(?![+#!<>=]|-(?!\w)|$)")  # A+ is a grade, a=b a formula, vitamin A a name
_SPELLED = str.maketrans(
    {**dict.fromkeys("‐‑–−", "-"), **dict.fromkeys("‘’‛′“”„‟«»", "'"), "≤": "<=", "≥": ">=", "≠": "!="}
)
_LOOSE_OPERATOR = re.compile(r"(?<=[\d)])\s+([-+*^/])\s+(?=[\d(])")  # "1990 - 1995"
_LOOSE_MINUS = re.compile(
    r"(?<!\w)(?<!\w )-\s+(?=[$€£¥₹₿]?\.?\d|[√∞π½¼¾(]|[a-zα-ω]\b)"
)  # "- 5", but not "Paris - 2010"
_LOOSE_COMPARISON = re.compile(r"\s*([<>!=]=|[<>=])\s*(?=[\w($€£¥₹₿∞π√.+-])")
_MEANT = re.compile(  # 1.5, 1e-5, -5, -$5, -x, C++, A-, Ca2+, C#, 2+3, 3,5 and 1,2,3 but not the comma of 3,500, <5, x<=y, a!=b
    r"(?<=\d)[./:-](?=\d)|(?<=\de)[-+](?=\d)|(?<!\w)[-.](?=\.?\d)|(?<!\w)-(?=[$€£¥₹₿√∞π½¼¾(]|[a-zα-ω]\b)"
    r"|(?<=[a-z+])\+|(?<=\d)\+(?!\w)|(?:(?<=\b[a-z])|(?<=\d))-(?=\s*(?:$|[,;/.)]))|(?<=[a-z])#|(?<=\w)[+*^](?=\w)"
    r"|(?<=\d),(?=\d)(?!\d{3}(?!\d))"
    r"|[<>](?==?-?\.?\d)|(?<=[<>!=])=|[!=](?==)|(?<=[\w)%])[<>=](?=[\w($€£¥₹₿∞π√.+=-])"
)
_CLOSED_ANSWERS = frozenset(("yes", "no", "noanswer"))
_CONFIDENCE = 0.95  # of `bootstrap_interval`


class Scores(NamedTuple):
    """Exact match, F1, precision and recall, each in [0, 1]."""

    em: float
    f1: float
    precision: float
    recall: float


_ZERO, _ONE = Scores(0.0, 0.0, 0.0, 0.0), Scores(1.0, 1.0, 1.0, 1.0)


def normalize_answer(text: str) -> str:
    """Drop case, ASCII punctuation, articles and extra white space, in this order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def normalize_nq(text: str) -> str:
    """Normalise for NQ-open: as `normalize_answer`, after splitting letters and accents, so both encodings of é match."""
    return normalize_answer(unicodedata.normalize("NFD", text))


def normalize_triviaqa(text: str) -> str:
    """Normalise for TriviaQA: punctuation and curly quotes become a space, so "AC/DC" matches the gold "ac dc"."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_SPACED)).split())


def normalize_own(text: str) -> str:
    """Normalise for your own questions: as `normalize_answer`, but punctuation with a meaning stays, and curly quotes go.

    Examples: -5, 1.5, 10:15, C++, x<y. An answer that is an article, such as option A, is compared too.
    """
    text = unicodedata.normalize("NFC", " ".join(text.lower().split())).translate(_SPELLED)
    text = _LOOSE_OPERATOR.sub(r"\1", _LOOSE_COMPARISON.sub(r"\1", _LOOSE_MINUS.sub("-", text)))
    meant = {match.start() for match in _MEANT.finditer(text)}
    words = "".join(c for i, c in enumerate(text) if i in meant or c not in string.punctuation).split()
    kept = " ".join(words)
    return kept if {"a", "an", "the"}.issuperset(words) else " ".join(_BARE_ARTICLES.sub(" ", kept).split())


Normalizer = Callable[[str], str]
_NORMALIZERS: Mapping[str, Normalizer] = {
    "nq": normalize_nq,
    "triviaqa": normalize_triviaqa,
    "own": normalize_own,
}


def normalizer(benchmark: str) -> Normalizer:
    """Return the normalisation of a benchmark's official script."""
    return _NORMALIZERS.get(benchmark, normalize_answer)


def substring_match(prediction: str, golds: Sequence[str], normalize: Normalizer = normalize_answer) -> float:
    """Return 1.0 if a normalised gold is part of the prediction.

    This is cover EM: report it, but avoid it as a reward, except to reproduce Agent-R1.
    """
    normalized, bare = _normalize_golds(golds, normalize)
    predicted = normalize(prediction)
    return float(any(gold in predicted for gold in normalized) or _is_bare(prediction, bare))


def answer_scores(prediction: str, golds: Sequence[str], normalize: Normalizer = normalize_answer) -> Scores:
    """Score an answer by EM, F1, precision and recall.

    Each is its maximum over the golds, as in `2wikimultihop_evaluate_v1.1.py`.
    """
    normalized, bare = _normalize_golds(golds, normalize)
    predicted = normalize(prediction)
    scores = [_score_one(predicted, gold) for gold in normalized]
    if _is_bare(prediction, bare):
        scores.append(_ONE)
    return Scores(*map(max, zip(*scores, strict=True))) if scores else _ZERO


def support_scores(predicted: Collection[Hashable], gold: Collection[Hashable]) -> Scores:
    """Score a set of supporting facts, `(title, sentence index)` pairs, or of titles.

    2WikiMultihopQA's script lower-cases the titles first; this function does not.
    """
    predicted, gold = set(predicted), set(gold)
    hits = len(predicted & gold)
    return _scores(float(predicted == gold), hits / len(predicted), hits / len(gold)) if hits else _ZERO


def joint_scores(answer: Scores, support: Scores) -> Scores:
    """Multiply exact matches, precisions and recalls: HotpotQA's joint scores."""
    return _scores(answer.em * support.em, answer.precision * support.precision, answer.recall * support.recall)


def pass_at_k(attempts: int, solved: int, k: int) -> float:
    """Estimate pass@k without bias: 1 - C(n - c, k) / C(n, k) (Chen et al. 2021).

    Raises a ValueError if ``attempts`` is less than ``k`` or ``solved``.
    """
    if not 1 <= k <= attempts or not 0 <= solved <= attempts:
        raise ValueError(
            f"pass@{k} cannot be estimated from {attempts} rollouts, of which {solved} solved the question"
        )
    return 1 - comb(attempts - solved, k) / comb(attempts, k)


def bootstrap_interval(values: Sequence[float], samples: int = 2000) -> tuple[float, float]:
    """Compute the percentile bootstrap interval of the mean (Efron 1979).

    If all values are 0, or all are 1, resamples do not vary: the interval is then the exact one of a proportion (Clopper and
    Pearson 1934).

    Raises a ValueError if there are no values.
    """
    if len(values) == 0:
        raise ValueError("a bootstrap interval needs at least one value")
    # Scores repeat (EM has two values), so a resample is drawn as counts of the distinct values: the same
    # distribution as drawing with replacement, at a fraction of the memory.
    distinct, counts = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    size = int(counts.sum())
    if len(distinct) == 1 and distinct[0] in (0, 1):
        furthest = ((1 - _CONFIDENCE) / 2) ** (1 / size)  # where `size` hits in a row have this probability
        return (furthest, 1.0) if distinct[0] else (0.0, 1 - furthest)
    resamples = np.random.default_rng(0).multinomial(size, counts / size, size=samples)
    low, high = np.quantile(resamples @ distinct / size, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return float(low), float(high)


def _normalize_golds(golds: Sequence[str], normalize: Normalizer) -> tuple[list[str], set[str]]:
    """Return the normalised golds that are not empty, and those that lose all text, as written but in lower case."""
    if isinstance(golds, str):
        raise TypeError(f"golds must be a sequence of answers, got the string {golds!r}")
    normalized = [(gold, normalize(gold)) for gold in golds]
    bare = (gold.strip().lower() for gold, left in normalized if not left)
    return [left for _, left in normalized if left], {*bare} - {""}


def _is_bare(prediction: str, bare: set[str]) -> bool:
    """Whether the prediction is written as a gold that normalises to nothing."""
    return prediction.strip().lower() in bare


def _score_one(predicted: str, gold: str) -> Scores:
    """Score one normalised prediction against one normalised gold, which is not empty."""
    if predicted == gold:
        return _ONE
    if not predicted or predicted in _CLOSED_ANSWERS or gold in _CLOSED_ANSWERS:
        return _ZERO  # HotpotQA's rule: "no one" scores 0 if the gold is "no", and the other way round
    predicted_tokens, gold_tokens = predicted.split(), gold.split()
    shared = (Counter(predicted_tokens) & Counter(gold_tokens)).total()
    return _scores(0.0, shared / len(predicted_tokens), shared / len(gold_tokens))


def _scores(em: float, precision: float, recall: float) -> Scores:
    harmonic = 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
    return Scores(em, harmonic, precision, recall)
