"""Several indexes over one corpus, their rankings fused by reciprocal rank (Cormack, Clarke & Büttcher 2009)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from retrieval_index.bm25 import BM25Index
from retrieval_index.corpus import Corpus
from retrieval_index.dense import DenseIndex
from retrieval_index.encoder import Encoder
from retrieval_index.progress import Track, silent
from retrieval_index.reference import RankBM25Index
from retrieval_index.search import Index, check_request
from retrieval_index.tokenizer import TITLE_WEIGHT

RANK_CONSTANT = 60  # as in the paper
DEPTH = 100  # minimum number of rows of each ranking


class HybridIndex(Index):
    """Reciprocal rank fusion of indexes: a score is a sum of 1 / (60 + rank).

    The parts may be any indexes; to be saved, they must be of different kinds.
    """

    backend = "hybrid"

    def __init__(self, parts: Sequence[Index]):
        if len(parts) < 2:
            raise ValueError(f"a hybrid index has two parts or more, got {len(parts)}")
        # A fingerprint is computed from all passages: it is not read for parts that share their corpus.
        if len({id(part.corpus) for part in parts}) > 1 and len({part.corpus.fingerprint for part in parts}) > 1:
            raise ValueError("the parts of a hybrid index must be over the same corpus")
        self.parts = list(parts)
        self.corpus = parts[0].corpus
        self.parameters = {"parts": {part.backend: part.parameters for part in parts}}

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        *,
        encoder: Encoder | str | Path | None = None,
        factory: str = "Flat",
        title_weight: int = TITLE_WEIGHT,
        exact_title: bool = True,
        work: Path | None = None,
        track: Track = silent,
    ) -> Self:
        """Build a BM25 index and a dense index, see `BM25Index.build` and `DenseIndex.build`."""
        lexical = BM25Index.build(corpus, title_weight=title_weight, exact_title=exact_title, work=work, track=track)
        return cls([lexical, DenseIndex.build(corpus, encoder=encoder, factory=factory, work=work, track=track)])

    def top_k(self, queries: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Fuse the rankings of the parts, each at least 100 rows deep."""
        k = min(check_request(queries, k), len(self.corpus))
        rankings = [part.top_k(queries, max(k, DEPTH))[0] for part in self.parts]
        rows, scores = np.full((len(queries), k), -1, np.int64), np.zeros((len(queries), k), np.float32)
        for query in range(len(queries)):
            found, fused = fuse([ranking[query] for ranking in rankings])
            rows[query, : len(found)], scores[query, : len(found)] = found[:k], fused[:k]
        return rows, scores

    def write(self, folder: Path) -> None:
        if len(self.parameters["parts"]) < len(self.parts):
            raise ValueError("a hybrid index with two parts of one kind cannot be saved")
        for part in self.parts:
            part.write(folder)

    @classmethod
    def open(cls, folder: Path, corpus: Corpus, parameters: dict, **options) -> Self:
        """Open the parts of a saved index; `options` go to the dense part."""
        kinds = {kind.backend: kind for kind in (BM25Index, RankBM25Index, DenseIndex)}
        parts: list[Index] = []
        for backend, own in parameters["parts"].items():
            parts.append(kinds[backend].open(folder, corpus, own, **(options if backend == "dense" else {})))
        return cls(parts)


def fuse(rankings: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Fuse rankings of one query (rows int64, best first, -1 after a ranking's end). Returns all rows found, best first
    and equal ones in ascending order, and their scores, float64."""
    rows = np.concatenate(rankings)
    gains = np.concatenate([1 / (RANK_CONSTANT + 1 + np.arange(len(ranking))) for ranking in rankings])
    found, places = np.unique(rows[rows >= 0], return_inverse=True)
    fused = np.bincount(places, gains[rows >= 0], len(found))
    order = np.argsort(-fused, kind="stable")
    return found[order], fused[order]
