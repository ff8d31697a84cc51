"""Cache of recent queries: in group rollouts the same questions are asked many times."""

import threading
from collections import OrderedDict

from retrieval_index.corpus import Passage
from retrieval_index.search import Searcher, check_request

_PASSAGES = 10  # passages kept per query, on average


class CachedSearcher:
    """Cache of another searcher's results for the latest queries.

    It holds ``size`` queries, and at most ten times that number of passages. Threads may share it.
    """

    def __init__(self, searcher: Searcher, size: int = 10_000):
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}; without a cache, use the searcher itself")
        self.searcher = searcher
        self.size = size
        self._found: OrderedDict[tuple[str, int], list[Passage]] = OrderedDict()
        self._passages = 0
        self._lock = threading.Lock()

    def __reduce__(self):
        return CachedSearcher, (self.searcher, self.size)

    def __getattr__(self, name: str):
        return getattr(self.searcher, name)

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        k = check_request(queries, k)
        with self._lock:
            known = {query: self._found[query, k] for query in set(queries) if (query, k) in self._found}
            for query in known:
                self._found.move_to_end((query, k))
        if asked := [query for query in dict.fromkeys(queries) if query not in known]:
            known.update(zip(asked, self.searcher.search(asked, k), strict=True))
            with self._lock:
                for query in asked:
                    self._passages += len(known[query]) - len(self._found.pop((query, k), ()))
                    self._found[query, k] = known[query]
                while len(self._found) > self.size or self._passages > _PASSAGES * self.size:
                    self._passages -= len(self._found.popitem(last=False)[1])
        return [list(known[query]) for query in queries]
