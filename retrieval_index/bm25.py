"""BM25 (Robertson & Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond").

tf is the count of a term in a passage, |d| the number of words of the passage, N the number of passages, and df the number
of passages that hold the term:

    score(q, d) = Σ_{t in q} idf(t) · tf / (tf + k1 (1 - b + b |d| / avg|d|))
    idf(t)      = ln(1 + (N - df + 0.5) / (df + 0.5))        always above 0

This is Lucene's variant, the default of bm25s. The scores of rank_bm25 (see `reference.py`) are larger by the factor
k1 + 1, which changes no rank; its idf of common terms differs. A word that a query repeats counts each time.

The stored form is that of bm25s (Lù 2024, arXiv 2407.03618): the score of every term in every passage, computed at
build time. bm25s itself holds the whole corpus in memory as Python lists, and shards cannot share statistics in it.
"""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import numpy as np

from retrieval_index import durable
from retrieval_index.corpus import Corpus
from retrieval_index.counting import count_corpus, keys_of
from retrieval_index.postings import Statistics, merge
from retrieval_index.progress import Track, silent
from retrieval_index.search import Index, check_request
from retrieval_index.tokenizer import TITLE_WEIGHT, Analyzer
from retrieval_index.verified_array import VerifiedArray, read_array, usable_cores

FILES = ("term_keys", "posting_scores", "posting_rows", "term_starts", "term_maxima")
THREADED = 16  # minimum number of queries per thread


def check_constants(k1: float = 1.5, b: float = 0.75) -> None:
    """Raise a ValueError if the constants of the formula are out of range."""
    if not (0 <= k1 < math.inf and 0 <= b <= 1):
        raise ValueError(f"k1 must be at least 0 and b from 0 to 1, got k1 = {k1} and b = {b}")


class BM25Index(Index):
    """BM25 with scores computed at build time.

    Attributes:
        keys: S16 [n terms], ascending, see `counting.keys_of`.
        postings: scores float32 [n postings], rows int32 [n postings], starts int64 [n terms + 1] and the highest
            score of each term, float32 [n terms]. A loaded index reads the first two only when needed.
    """

    backend = "bm25"

    def __init__(
        self, corpus: Corpus, keys: np.ndarray, postings: tuple[np.ndarray | VerifiedArray, ...], parameters: dict
    ):
        self.corpus = corpus
        self.keys = np.asarray(keys)
        self.files = (keys, *postings)
        # numba compiles separately for writable and for read-only arrays. With read-only views, built and loaded
        # indexes share one compilation.
        self.postings = tuple(array if isinstance(array, VerifiedArray) else _freeze(array) for array in postings)
        # bool [n terms], whether the postings of a term are in memory; and the arrays that hold the postings.
        self._read = np.zeros(len(self.postings[3]), np.bool_), tuple(map(_plain, self.postings))
        self._lock = threading.Lock()
        self.parameters = parameters
        self.analyzer = Analyzer.of(parameters)

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        *,
        k1: float = 1.5,
        b: float = 0.75,
        title_weight: int = TITLE_WEIGHT,
        exact_title: bool = True,
        statistics: Statistics | None = None,
        work: Path | None = None,
        track: Track = silent,
    ) -> Self:
        """Index title and text of every passage.

        Args:
            k1: weight of further repetitions of a word.
            b: weight of the length of a passage, from 0 to 1.
            title_weight, exact_title: see `Analyzer`.
            statistics: those of the whole corpus, if ``corpus`` is a shard of it.
            work: folder for large intermediate files, used for this corpus only; a killed build continues from it.
            track: reports progress.
        """
        check_constants(k1, b)
        analyzer = Analyzer(title_weight, exact_title)
        blocks = count_corpus(corpus, analyzer, work, track)
        keys, *postings = merge(blocks, statistics, k1, b, work, track)
        return cls(corpus, keys, tuple(postings), {"k1": k1, "b": b, **analyzer.parameters})

    def top_k(self, queries: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        from retrieval_index import kernel

        k = min(check_request(queries, k), len(self.corpus))
        words = [self.analyzer.query_terms(query) for query in queries]
        keys = keys_of(word for query in words for word in query)
        terms = self.keys.searchsorted(keys)
        known = terms < len(self.keys)  # a shard may have no words at all
        known[known] = self.keys[terms[known]] == keys[known]
        starts = np.zeros(len(keys) + 1, np.int64)
        np.cumsum(known, out=starts[1:])
        terms, starts = terms[known], starts[list(accumulate(map(len, words), initial=0))]
        postings = self._postings_of(terms)
        n_threads = len(queries) // THREADED
        if n_threads < 2:
            return kernel.top_k(terms, starts, k, *postings)
        n_threads = min(n_threads, usable_cores())
        cuts = [len(queries) * number // n_threads for number in range(n_threads + 1)]
        with ThreadPoolExecutor(n_threads) as pool:  # compiled code runs without the interpreter's lock
            parts = pool.map(lambda a, b: kernel.top_k(terms, starts[a : b + 1], k, *postings), cuts[:-1], cuts[1:])
            rows, scores = zip(*parts, strict=True)
        return np.concatenate(rows), np.concatenate(scores)

    def _postings_of(self, terms: np.ndarray) -> tuple[Any, ...]:
        """Return the postings as plain arrays; those of the given terms are read if they are not in memory yet."""
        read, arrays = self._read
        if all(read[terms].tolist()):
            return arrays
        starts = self.postings[2]
        with self._lock:
            read, arrays = self._read
            for part in self.postings:
                if isinstance(part, VerifiedArray):
                    part.read_rows(starts[terms], starts[terms + 1])
            now = tuple(map(_plain, self.postings))
            if any(new is not old for new, old in zip(now, arrays, strict=True)):  # dropped by `VerifiedArray`
                read = np.zeros(len(read), np.bool_)
            read[terms] = True
            self._read = read, now
            return now

    def write(self, folder: Path) -> None:
        for name, array in zip(FILES, self.files, strict=True):
            durable.save_array(array, folder / f"{name}.npy")

    @classmethod
    def open(cls, folder: Path, corpus: Corpus, parameters: dict) -> Self:
        """Open what `write` wrote. Terms are read at once, postings when they are needed, see `verified_array`."""
        keys, scores, rows, starts, maxima = (folder / f"{name}.npy" for name in FILES)
        postings = VerifiedArray(scores), VerifiedArray(rows), read_array(starts), read_array(maxima)
        return cls(corpus, read_array(keys), postings, parameters)


def _plain(array: np.ndarray | VerifiedArray) -> np.ndarray:
    return array.array if isinstance(array, VerifiedArray) else array


def _freeze(array: np.ndarray) -> np.ndarray:
    view = np.asarray(array).view()
    view.setflags(write=False)
    return view
