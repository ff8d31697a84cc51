"""Searches that wait while another runs become one: a search of many queries costs little more than that of a few.

The searcher is shared by turns. A search takes a bounded amount of work, and all requests that wait have an equal share in
it: a small one is answered with the next search or the one after it, however large the others are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from retrieval_index.corpus import Passage
from retrieval_index.search import Searcher

BATCH = 256  # queries that a search takes together
WORK = 2560  # of a search: passages asked for, and characters of the queries, of which
CHARS = 25  # cost as much as a passage


class QueueFull(RuntimeError):
    """More waits than the batcher holds: try again later."""


class SearcherFailed(RuntimeError):
    """The searcher raised; `__cause__` says what."""


class ClientGone(RuntimeError):
    """The client has disconnected, and the search was not made."""


@dataclass(slots=True, eq=False)
class _Request:
    queries: list[str]
    k: int
    is_gone: Callable[[], Awaitable[bool]]
    answer: asyncio.Future[list[list[Passage]]]
    taken: int = 0  # queries that have been part of a search
    found: list[list[Passage]] = field(default_factory=list)

    @property
    def left(self) -> int:
        return len(self.queries) - self.taken


class Batcher:
    """Runs one search at a time in a thread of its own; requests that arrive meanwhile have a part in the next one.

    A request that finds the searcher idle is searched at once: nothing waits for company. Requests are joined where
    their `k` is equal, because an approximate index may look deeper for a larger one, and ranks as alone.

    Args:
        searcher: what to search.
        waiting: queries that may wait, beside those being searched.
        passages: that they may ask for, queries times k.
        observe: told the number of queries of every search.
    """

    def __init__(
        self,
        searcher: Searcher,
        waiting: int,
        passages: int | None = None,
        observe: Callable[[int], None] = lambda queries: None,
    ):
        self.searcher, self.limit, self.passages, self.observe = searcher, waiting, passages, observe
        self.waiting = 0  # queries
        self._work = 0  # passages that they ask for
        self._requests: deque[_Request] = deque()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
        self._runner: asyncio.Task | None = None

    async def search(self, queries: list[str], k: int, is_gone: Callable[[], Awaitable[bool]]) -> list[list[Passage]]:
        """As `Searcher.search`, for arguments that are known to be valid.

        Raises:
            QueueFull: at once.
            SearcherFailed: the search raised, also when made for these queries alone.
            ClientGone: `is_gone()` was true when their turn came.
        """
        if not queries:
            return []
        if self.waiting + len(queries) > self.limit:
            raise QueueFull(f"{self.waiting} queries wait already, {self.limit} at most")
        if self.passages is not None and self._work + len(queries) * k > self.passages:
            raise QueueFull(f"{self._work} passages are asked for already, {self.passages} at most")
        request = _Request(queries, k, is_gone, asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self._count(len(queries), k)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return await request.answer

    async def close(self) -> None:
        """Finish what waits, and end the thread."""
        if self._runner is not None:
            await self._runner
        self._thread.shutdown()

    def _count(self, queries: int, k: int) -> None:
        self.waiting += queries
        self._work += queries * k

    async def _run(self) -> None:
        while self._requests:
            batch = self._next_batch()
            try:
                await self._drop_gone(batch)
                if batch:
                    await self._answer(batch)
            except Exception as error:  # whatever it is, nobody may wait for ever
                for request in batch:
                    self._settle(request, SearcherFailed(f"the batch failed: {type(error).__name__}: {error}"))

    def _next_batch(self) -> dict[_Request, list[str]]:
        """The oldest request, and those of the same k, with the queries of each that the next search takes: one of each
        in turn, until there is no more room. Those that are not through go to the end of the queue."""
        k = self._requests[0].k
        batch: dict[_Request, list[str]] = {}
        turns = deque(request for request in self._requests if request.k == k)
        queries = work = 0
        while turns and queries < BATCH and work < WORK:
            request = turns.popleft()
            query = request.queries[request.taken]
            batch.setdefault(request, []).append(query)
            request.taken += 1
            queries, work = queries + 1, work + k + len(query) // CHARS
            if request.left:
                turns.append(request)
        self._count(-queries, k)
        behind = [request for request in batch if request.left]
        self._requests = deque([*(request for request in self._requests if request not in batch), *behind])
        return batch

    async def _drop_gone(self, batch: dict[_Request, list[str]]) -> None:
        for request in list(batch):
            if await request.is_gone():
                self._settle(request, ClientGone("the client has disconnected"))
                del batch[request]

    async def _answer(self, batch: dict[_Request, list[str]]) -> None:
        queries = [query for part in batch.values() for query in part]
        k = next(iter(batch)).k
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._search, queries, k)
        except SearcherFailed as error:
            if len(batch) == 1:
                self._settle(next(iter(batch)), error)
            else:
                for request, part in batch.items():  # only those whose own queries are at fault shall fail
                    await self._answer({request: part})
            return
        lists = iter(found)
        for request, part in batch.items():
            request.found += [next(lists) for _ in part]
            if len(request.found) == len(request.queries):
                self._settle(request, request.found)

    def _search(self, queries: list[str], k: int) -> list[list[Passage]]:
        try:
            self.observe(len(queries))
            found = self.searcher.search(queries, k)
            if len(found) != len(queries):
                raise ValueError(f"it gave {len(found)} results for {len(queries)} queries")
            return found
        except Exception as error:
            raise SearcherFailed(f"the search failed: {type(error).__name__}: {error}") from error

    def _settle(self, request: _Request, outcome: list[list[Passage]] | Exception) -> None:
        """Give the outcome to whoever waits; what is left of a request that failed is not searched."""
        if request.left:
            self._count(-request.left, request.k)
            request.taken = len(request.queries)
            self._requests.remove(request)
        if request.answer.done():  # cancelled
            return
        if isinstance(outcome, Exception):
            request.answer.set_exception(outcome)
        else:
            request.answer.set_result(outcome)
