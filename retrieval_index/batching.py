"""Batching of search requests: those that arrive during a search are joined into the next one.

A search of many queries costs little more than a search of a few. A large request is searched in parts, each at most a
quarter of a search, so that small requests get their turn between the parts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from retrieval_index.corpus import Passage
from retrieval_index.search import Searcher

WORK = 2560  # maximum work of one search; the work of a query is its `k` plus its characters / CHARS
CHARS = 25  # characters of a query that cost as much as one passage
LEAST = 10  # minimum work of a query


class QueueFull(RuntimeError):
    """Too many queries wait in the batcher: try again later."""


class SearcherFailed(RuntimeError):
    """The searcher raised; `__cause__` is the error."""


class ClientGone(RuntimeError):
    """The client disconnected before all parts of its request were searched."""


@dataclass(slots=True, eq=False)
class _Part:
    """A part of a request, whose queries are searched together."""

    queries: list[str]
    k: int
    work: int
    is_gone: Callable[[], Awaitable[bool]]
    answer: asyncio.Future[list[list[Passage]]]

    def settle(self, outcome: list[list[Passage]] | Exception) -> None:
        if self.answer.done():  # cancelled
            return
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class Batcher:
    """Run one search at a time, in a separate thread; requests that arrive during a search share the next one.

    A request that finds the searcher idle is searched at once, without waiting for others. Only requests of equal `k`
    are joined: an approximate index may search deeper for a larger `k`, and each query must rank as in a search of its own.
    """

    def __init__(self, searcher: Searcher, waiting: int):
        self.searcher, self.limit = searcher, waiting  # queries that may wait for their answers
        self.waiting = 0  # number of queries that wait
        self._parts: list[_Part] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
        self._runner: asyncio.Task | None = None

    async def search(self, queries: list[str], k: int, is_gone: Callable[[], Awaitable[bool]]) -> list[list[Passage]]:
        """Search as `Searcher.search` does, without checking the arguments. Raises `QueueFull` at once if too many queries
        wait, `SearcherFailed`, or `ClientGone` if `is_gone()` is true when a part of the request is due."""
        if self.waiting + len(queries) > self.limit:
            raise QueueFull(f"{self.waiting} queries wait already, {self.limit} at most")
        self.waiting += len(queries)
        found: list[list[Passage]] = []
        try:
            for part, work in _cut(queries, k):
                answer: asyncio.Future[list[list[Passage]]] = asyncio.get_running_loop().create_future()
                self._parts.append(_Part(part, k, work, is_gone, answer))
                if self._runner is None or self._runner.done():
                    self._runner = asyncio.create_task(self._run())
                found += await answer
        finally:
            self.waiting -= len(queries)
        return found

    async def close(self) -> None:
        """Answer the requests that wait, then end the thread."""
        if self._runner is not None:
            await self._runner
        self._thread.shutdown()

    async def _run(self) -> None:
        while self._parts:
            batch = self._next_batch()
            for part in batch:
                if await part.is_gone():
                    part.settle(ClientGone("the client has disconnected"))
            await self._answer([part for part in batch if not part.answer.done()])
            await asyncio.sleep(0)  # requests with further parts add their next part here

    def _next_batch(self) -> list[_Part]:
        """Take from the queue the oldest part and, oldest first, parts of equal `k` that fit into the same search."""
        batch: list[_Part] = []
        for part in [part for part in self._parts if part.k == self._parts[0].k]:
            if batch and sum(each.work for each in batch) + part.work > WORK:
                break
            batch.append(part)
        self._parts = [part for part in self._parts if part not in batch]
        return batch

    async def _answer(self, batch: list[_Part]) -> None:
        if not batch:
            return
        queries = [query for part in batch for query in part.queries]
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._search, queries, batch[0].k)
        except SearcherFailed as error:
            if len(batch) == 1:
                batch[0].settle(error)
            else:
                for part in batch:  # search each part separately: only requests with faulty queries fail
                    await self._answer([part])
            return
        lists = iter(found)
        for part in batch:
            part.settle(list(islice(lists, len(part.queries))))

    def _search(self, queries: list[str], k: int) -> list[list[Passage]]:
        try:
            found = self.searcher.search(queries, k)
            if len(found) != len(queries):
                raise ValueError(f"it gave {len(found)} results for {len(queries)} queries")
            return found
        except BaseException as error:  # one of Rust's is no Exception
            raise SearcherFailed(f"the search failed: {type(error).__name__}: {error}") from error


def _cut(queries: list[str], k: int) -> Iterator[tuple[list[str], int]]:
    """Cut a request into parts of one query or of at most a quarter of a search, each with its work."""
    part: list[str] = []
    work = 0
    for query in queries:
        more = max(k + len(query) // CHARS, LEAST)
        if part and work + more > WORK // 4:
            yield part, work
            part, work = [], 0
        part.append(query)
        work += more
    if part:
        yield part, work
