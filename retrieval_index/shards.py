"""A corpus in shards that are searched as one. Each shard is an index of its own, on this machine or on a server."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from retrieval_index.corpus import Corpus, Passage
from retrieval_index.search import Index, Searcher, check_request


class ShardedSearcher(Index):
    """Search every shard, and merge by score.

    The ranking is that of one index over all passages if scores are comparable: for BM25 shards with the statistics of all
    passages (`build_folder(..., shards=n)`), or for dense shards that share the encoder and search exactly or re-rank.
    Shards may be `RemoteSearcher`s: then `search` works, but `corpus` and `top_k` do not.
    """

    backend = "shards"

    def __init__(self, shards: Sequence[Searcher]):
        if not shards:
            raise ValueError("there must be at least one shard")
        if any(getattr(shard, "backend", None) == "hybrid" for shard in shards):
            raise ValueError(
                "ranks of hybrid indexes do not compare between shards: make a hybrid of sharded searchers"
            )
        self.shards = list(shards)
        self.parameters = {"shards": len(self.shards)}

    @cached_property
    def corpus(self) -> Corpus:  # type: ignore[override]
        """The passages of all shards, one shard after the other."""
        return Corpus.join([shard.corpus for shard in self.shards])

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        check_request(queries, k)
        found = self._ask(lambda shard: shard.search(queries, k))
        results = []
        for rankings in zip(*found, strict=True):
            merged = [passage for ranking in rankings for passage in ranking]
            results.append(sorted(merged, key=lambda passage: -passage.score)[:k])  # sorted is stable
        return results

    def top_k(self, queries: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        k = min(check_request(queries, k), len(self.corpus))
        found = self._ask(lambda shard: shard.top_k(queries, k))
        offsets = [0, *accumulate(len(shard.corpus) for shard in self.shards)]
        own_rows = [np.where(part < 0, -1, part + offset) for (part, _), offset in zip(found, offsets, strict=False)]
        rows, scores = np.concatenate(own_rows, axis=1), np.concatenate([part for _, part in found], axis=1)
        order = np.argsort(np.where(rows < 0, np.inf, -scores), axis=1, kind="stable")[:, :k]
        return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)

    def save(self, folder: str | Path) -> None:
        raise ValueError("a sharded searcher cannot be saved: save its shards, or copy the folder that it came from")

    def _ask(self, request: Callable[[Any], Any]) -> list[Any]:
        with ThreadPoolExecutor(len(self.shards)) as pool:
            return list(pool.map(request, self.shards))
