"""BM25 (Robertson & Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond").

With tf the count of a term in a passage, |d| the words of the passage, N the passages and df those that hold the term:

"lucene", the default of bm25s and here:

    score(q, d) = Σ_{t in q} idf(t) · tf / (tf + k1 (1 - b + b |d| / avg|d|))
    idf(t)      = ln(1 + (N - df + 0.5) / (df + 0.5))        always above 0

"okapi", as rank_bm25's BM25Okapi (see `reference.py`):

    score(q, d) = Σ_{t in q} idf(t) · tf (k1 + 1) / (tf + k1 (1 - b + b |d| / avg|d|))
    idf(t)      = ln((N - df + 0.5) / (df + 0.5));           where this is negative, for a term in more than half of
                  the passages, 0.25 times the mean idf of all terms instead ("epsilon", a device of rank_bm25's own)

So the scores differ by the factor k1 + 1, which moves no rank, and by the idf, which differs little but for common
terms; there Lucene's needs no repair. A word that a query repeats counts each time, in both.

The index is built with bm25s (Lù 2024, arXiv 2407.03618).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np

from retrieval_index import store
from retrieval_index.corpus import Corpus, Passage
from retrieval_index.progress import Track, silent
from retrieval_index.search import check_request, passages_of
from retrieval_index.tokenizer import tokenize, tokenize_corpus

VOCABULARY_FILE = "vocabulary.json"
POSTINGS_FILES = ("posting_scores.npy", "posting_rows.npy", "posting_starts.npy")
OKAPI_EPSILON = 0.25


class BM25Index:
    """BM25 over the eager sparse index of bm25s. Make one with `build`, or open one with `retrieval_index.load`.

    Attributes:
        vocabulary: term -> term id.
        postings: scores float32 [n postings], rows int32 [n postings], starts int64 [n terms + 1]; memory-mapped
            after loading.
    """

    backend = "bm25"
    folder: Path | None = None  # where it was loaded from

    def __init__(self, corpus: Corpus, vocabulary: dict[str, int], postings: tuple[np.ndarray, ...], parameters: dict):
        self.corpus = corpus
        self.vocabulary = vocabulary
        # numba compiles anew for writable and for read-only arrays: as read-only views, built and loaded indexes
        # share one compilation.
        self.postings = tuple(np.asarray(array).view() for array in postings)
        for array in self.postings:
            array.setflags(write=False)
        self.parameters = parameters

    def __reduce__(self):
        if self.folder is not None:
            from retrieval_index.build import load

            return load, (self.folder,)  # worker processes map the same files
        return BM25Index, (self.corpus, self.vocabulary, self.postings, self.parameters)

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        *,
        k1: float = 1.5,
        b: float = 0.75,
        variant: Literal["lucene", "okapi"] = "lucene",
        track: Track = silent,
    ) -> BM25Index:
        """Index title and text of every passage. Raises ValueError where there is no word to index."""
        import bm25s

        if variant not in ("lucene", "okapi"):
            raise ValueError(f"variant must be 'lucene' or 'okapi', got {variant!r}")
        vocabulary: dict[str, int] = {}
        passages = [
            [vocabulary.setdefault(term, len(vocabulary)) for term in terms] for terms in tokenize_corpus(corpus, track)
        ]
        # bm25s knows Okapi's term frequency as ATIRE's, and has no epsilon: Okapi's idf replaces Lucene's afterwards.
        method = {"lucene": "lucene", "okapi": "atire"}[variant]
        engine = bm25s.BM25(k1=k1, b=b, method=method, idf_method="lucene", backend="numpy")
        for _ in track([None], "Scoring postings", 1):
            engine.index((passages, vocabulary), create_empty_token=False, show_progress=False)
        scores, rows, starts = (engine.scores[name] for name in ("data", "indices", "indptr"))
        if variant == "okapi":
            frequencies = np.diff(starts)
            factors = _okapi_over_lucene_idf(frequencies, len(corpus))
            scores = scores * np.repeat(factors, frequencies).astype(np.float32)
        return cls(corpus, vocabulary, (scores, rows, starts), {"k1": k1, "b": b, "variant": variant})

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """See `Searcher.search`."""
        return passages_of(self.corpus, *self.top_k(queries, k))

    def top_k(self, queries: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Searcher.top_k`."""
        from retrieval_index import kernel

        k = min(check_request(queries, k), len(self.corpus))
        lookup = self.vocabulary.get
        terms = [[term for word in tokenize(query) if (term := lookup(word)) is not None] for query in queries]
        starts = np.zeros(len(terms) + 1, np.int64)
        np.cumsum([len(query) for query in terms], out=starts[1:])
        flat = np.array([term for query in terms for term in query], np.int64)
        return kernel.top_k(flat, starts, k, *self.postings, len(self.corpus))

    def save(self, folder: str | Path) -> None:
        """See `Searcher.save`."""
        store.save(self, folder)

    def write(self, folder: Path) -> None:
        """Write what the backend needs beside the corpus."""
        terms = list(self.vocabulary)  # in the order of their ids
        (folder / VOCABULARY_FILE).write_text(json.dumps(terms, ensure_ascii=False), encoding="utf-8")
        for name, array in zip(POSTINGS_FILES, self.postings, strict=True):
            np.save(folder / name, array, allow_pickle=False)

    @classmethod
    def open(cls, folder: Path, corpus: Corpus, parameters: dict) -> BM25Index:
        """Read what `write` wrote; the postings stay on disk, memory-mapped."""
        terms = json.loads((folder / VOCABULARY_FILE).read_text(encoding="utf-8"))
        postings = tuple(np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in POSTINGS_FILES)
        return cls(corpus, {term: number for number, term in enumerate(terms)}, postings, parameters)


def _okapi_over_lucene_idf(frequencies: np.ndarray, n_passages: int) -> np.ndarray:
    """The factor that turns Lucene's idf into that of rank_bm25's BM25Okapi; int [n terms] -> float64 [n terms]."""
    odds = (n_passages - frequencies + 0.5) / (frequencies + 0.5)
    okapi = np.log(odds)
    okapi[okapi < 0] = OKAPI_EPSILON * okapi.mean()
    return okapi / np.log1p(odds)
