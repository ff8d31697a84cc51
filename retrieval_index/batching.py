"""Searches that wait while another runs become one: a search of many queries costs little more than that of a few."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from retrieval_index.corpus import Passage
from retrieval_index.search import Searcher

BATCH = 256  # queries that a search takes together; a request of more is searched alone


class QueueFull(RuntimeError):
    """More queries wait than the batcher holds: try again later."""


class SearcherFailed(RuntimeError):
    """The searcher raised; `__cause__` says what."""


class ClientGone(RuntimeError):
    """The client has disconnected, and the search was not made."""


@dataclass(slots=True, eq=False)
class _Request:
    queries: list[str]
    k: int
    is_gone: Callable[[], Awaitable[bool]]
    found: asyncio.Future[list[list[Passage]]]


class Batcher:
    """Runs one search at a time in a thread of its own; requests that arrive meanwhile are the next one.

    A request that finds the searcher idle is searched at once: nothing waits for company. Requests are joined where
    their `k` is equal, because an approximate index may look deeper for a larger one, and ranks as alone.

    Args:
        searcher: what to search.
        waiting: queries that may wait, beside those being searched.
        observe: told the number of queries of every search.
    """

    def __init__(self, searcher: Searcher, waiting: int, observe: Callable[[int], None] = lambda queries: None):
        self.searcher, self.limit, self.observe = searcher, waiting, observe
        self.waiting = 0  # queries
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
        request = _Request(queries, k, is_gone, asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self.waiting += len(queries)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return await request.found

    async def close(self) -> None:
        """Finish what waits, and end the thread."""
        if self._runner is not None:
            await self._runner
        self._thread.shutdown()

    async def _run(self) -> None:
        while self._requests:
            batch = self._next_batch()
            try:
                gone = [await request.is_gone() for request in batch]
                for request, has_gone in zip(batch, gone, strict=True):
                    if has_gone:
                        _settle(request, ClientGone("the client has disconnected"))
                if left := [request for request, has_gone in zip(batch, gone, strict=True) if not has_gone]:
                    await self._answer(left)
            except Exception as error:  # whatever it is, nobody may wait for ever
                for request in batch:
                    _settle(request, SearcherFailed(f"the batch failed: {type(error).__name__}: {error}"))

    def _next_batch(self) -> list[_Request]:
        """Take the oldest request off the queue, and those of the same k that fit beside it."""
        batch: list[_Request] = []
        left: deque[_Request] = deque()
        size, k = 0, self._requests[0].k
        while self._requests and size < BATCH:
            request = self._requests.popleft()
            if request.k == k and (not batch or size + len(request.queries) <= BATCH):
                batch.append(request)
                size += len(request.queries)
            else:
                left.append(request)
        self._requests.extendleft(reversed(left))
        self.waiting -= size
        return batch

    async def _answer(self, batch: list[_Request]) -> None:
        queries = [query for request in batch for query in request.queries]
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._search, queries, batch[0].k)
        except SearcherFailed as error:
            if len(batch) == 1:
                _settle(batch[0], error)
            else:
                for request in batch:  # only those whose own queries are at fault shall fail
                    await self._answer([request])
            return
        lists = iter(found)
        for request in batch:
            _settle(request, list(islice(lists, len(request.queries))))

    def _search(self, queries: list[str], k: int) -> list[list[Passage]]:
        try:
            self.observe(len(queries))
            found = self.searcher.search(queries, k)
            if len(found) != len(queries):
                raise ValueError(f"it gave {len(found)} results for {len(queries)} queries")
            return found
        except Exception as error:
            raise SearcherFailed(f"the search failed: {type(error).__name__}: {error}") from error


def _settle(request: _Request, outcome: list[list[Passage]] | Exception) -> None:
    if request.found.done():  # cancelled
        return
    if isinstance(outcome, Exception):
        request.found.set_exception(outcome)
    else:
        request.found.set_result(outcome)
