"""The `Searcher` protocol, and functions that its implementations share."""

import inspect
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from retrieval_index import store
from retrieval_index.corpus import Corpus, Passage, write_passages
from retrieval_index.publish import publishing


@runtime_checkable
class Searcher(Protocol):
    """Protocol of ranked retrieval over a corpus.

    Searchers are read-only: threads and forked processes may share one.
    """

    @property
    def corpus(self) -> Corpus:
        """The passages, by row number."""

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """Return the best passages of each query, best first, each with its `score` (higher is better).

        A list is shorter than `k` if fewer passages match. Under BM25, a passage matches if it shares a word with the query
        or has the query as its title. Equal scores are ordered by row number, lower first.

        Raises:
            TypeError: `queries` is one string instead of a list, or not all of them are strings; `k` is not an
                integer.
            ValueError: `k` is less than 1.
        """

    def top_k(self, queries: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the same ranking as arrays, for code that fuses or merges rankings.

        Returns:
            rows: int64 [len(queries), min(k, len(corpus))], row numbers of the corpus; -1 if nothing more matched.
            scores: float32, the same shape; 0 if `rows` is -1.
        """

    def save(self, folder: str | Path) -> None:
        """Write the index as a folder that `retrieval_index.load` opens; an index already there is replaced in one step."""


class Index:
    """Base class of backends: a searcher that can be saved as a folder."""

    backend: str  # name in the manifest
    corpus: Corpus
    parameters: dict  # JSON-able; kept in the manifest, and passed to `open`
    # Opens a loaded index again from its folder, with the same options; None for an index that was not loaded.
    reopen: Callable[[], "Index"] | None = None

    def top_k(self, queries: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def write(self, folder: Path) -> None:
        """Write what the backend needs beside the corpus."""
        raise NotImplementedError

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        rows, scores = self.top_k(queries, k)
        return [
            [self.corpus.with_score(row, score) for row, score in zip(*ranking, strict=True) if row >= 0]
            for ranking in zip(rows.tolist(), scores.tolist(), strict=True)
        ]

    def save(self, folder: str | Path) -> None:
        with publishing(folder) as staging:
            write_passages(self.corpus, staging)
            self.write(staging)
            store.seal(staging, self.backend, self.parameters, self.corpus)

    def __reduce__(self) -> tuple:
        """Pickle a loaded index as its folder, so that worker processes read the same files. Pickle any other index as the
        arguments of its constructor, which it keeps in attributes of the same names."""
        if self.reopen is not None:
            return self.reopen, ()
        return type(self), tuple(getattr(self, name) for name in inspect.signature(type(self)).parameters)


def check_request(queries: list[str], k: int) -> int:
    """Raise the errors that `Searcher.search` documents; returns `k` as a plain int."""
    if isinstance(queries, str):
        raise TypeError("queries must be a list of strings; for one query write search([query], k)")
    if not hasattr(queries, "__len__"):
        raise TypeError(
            f"queries must be a list of strings, got a {type(queries).__name__}, which can be read only once"
        )
    for query in queries:
        if not isinstance(query, str):
            raise TypeError(f"queries must be strings, got {type(query).__name__}: {query!r}")
    k = operator.index(k)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    return k
