"""BM25 by rank_bm25: a reference that the faster index is tested against, and that can replace it."""

from pathlib import Path
from typing import Self

import numpy as np

from retrieval_index.corpus import Corpus
from retrieval_index.progress import Track, silent
from retrieval_index.search import Index, check_request
from retrieval_index.tokenizer import TITLE_WEIGHT, Analyzer


class RankBM25Index(Index):
    """rank_bm25's `BM25Okapi` as a `Searcher`: slow, for comparisons.

    It has no stored form: opening a saved index reads the corpus and builds the index again.
    """

    backend = "rank-bm25"
    __reduce__ = object.__reduce__  # type: ignore[assignment]  # pickling it is faster than building it again

    def __init__(self, corpus: Corpus, analyzer: Analyzer, track: Track = silent):
        from rank_bm25 import BM25Okapi

        self.corpus = corpus
        self.analyzer = analyzer
        terms = [analyzer.passage_terms(p.title, p.text) for p in track(corpus, "Reading words", len(corpus))]
        if not any(terms):
            raise ValueError(
                f"nothing to index: none of the {len(corpus)} passages holds a word that is not a stop word"
            )
        self.okapi = BM25Okapi(terms, k1=1.5, b=0.75, epsilon=0.25)
        self.parameters = {"k1": 1.5, "b": 0.75, "epsilon": 0.25, **analyzer.parameters}

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        *,
        title_weight: int = TITLE_WEIGHT,
        exact_title: bool = True,
        work: Path | None = None,
        track: Track = silent,
    ) -> Self:
        """Index title and text of every passage, see `BM25Index.build`."""
        return cls(corpus, Analyzer(title_weight, exact_title), track)

    def top_k(self, queries: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        k = min(check_request(queries, k), len(self.corpus))
        rows = np.full((len(queries), k), -1, np.int64)
        scores = np.zeros((len(queries), k), np.float32)
        for number, query in enumerate(queries):
            terms = self.analyzer.query_terms(query)
            totals = self.okapi.get_scores(terms).astype(np.float32)
            # Also for words of half the passages, whose weight is 0 or negative.
            words = set(terms)
            shares = np.array([not words.isdisjoint(frequencies) for frequencies in self.okapi.doc_freqs])
            best = np.lexsort((-totals, ~shares))[:k]  # stable: equal scores stay in the order of their rows
            best = best[shares[best]]
            rows[number, : len(best)] = best
            scores[number, : len(best)] = totals[best]
        return rows, scores

    def write(self, folder: Path) -> None:
        """Write nothing: the index is built again from the corpus beside it."""

    @classmethod
    def open(cls, folder: Path, corpus: Corpus, parameters: dict) -> Self:
        return cls(corpus, Analyzer.of(parameters))
