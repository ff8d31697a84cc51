"""Search an index over HTTP, on `python -m retrieval_index serve` or on Search-R1's own retrieval server."""

import json
import os
import random
import time
from functools import partial
from typing import TYPE_CHECKING

from retrieval_index.corpus import Passage
from retrieval_index.search import check_request
from retrieval_index.wire import PATH, Limits, passage_of

if TYPE_CHECKING:
    import httpx

BATCH = 64  # queries in a request, at most
BACKOFF = 0.25  # seconds before the first retry; doubled for each further one
LONGEST_PAUSE = 30.0  # seconds
REFUSALS = (400, 413, 414, 422)  # the request is wrong and is not sent again; after other errors a retry may succeed


class SearchFailed(ConnectionError):
    """The server gave no answer, or one that cannot be parsed."""


class RemoteSearcher:
    """`Searcher.search` over HTTP.

    The protocol's other members are missing. Threads and processes may share a searcher: it pickles, and reconnects after
    a fork.

    Args:
        url: address of the server, such as "http://127.0.0.1:8000"; with or without "/retrieve" at its end.
        timeout: seconds to connect, and for each part of an answer to arrive.
        retries: further requests after a failed connection, a timeout or an unexpected status, with growing pauses: about 2 s in
            all for three retries, plus the time that the server asks for.
    """

    io_bound = True  # searches mostly wait for the server: other work may run meanwhile

    def __init__(self, url: str, *, timeout: float = 10.0, retries: int = 3):
        import httpx

        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ValueError(f"{url!r} is no address of a server: {error}") from None
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
            raise ValueError(f"{url!r} is no address of a server: a url is written http://HOST:PORT")
        if timeout <= 0:
            raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
        if retries < 0:
            raise ValueError(f"retries must not be negative, got {retries}")
        self.url = url.rstrip("/").removesuffix(PATH) + PATH
        self.timeout, self.retries = timeout, retries
        self._connections: httpx.Client | None = None
        self._process = 0  # id of the process that opened the connections

    def __reduce__(self):
        return partial(RemoteSearcher, timeout=self.timeout, retries=self.retries), (self.url,)

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """Search as `Searcher.search` does.

        Raises:
            ValueError: the server rejected the request, for the reason in its message.
            SearchFailed: all tries failed, or the answer was malformed; never an empty result instead.
        """
        k = check_request(queries, k)
        queries = list(queries)
        size = max(1, min(BATCH, Limits.passages // k))
        starts = range(0, len(queries), size)
        return [passages for start in starts for passages in self._search(queries[start : start + size], k)]

    def _search(self, queries: list[str], k: int) -> list[list[Passage]]:
        answer = self._post({"queries": queries, "topk": k, "return_scores": True})
        try:
            result = json.loads(answer)["result"]
            if not isinstance(result, list) or not all(isinstance(entries, list) for entries in result):
                raise ValueError("'result' is no list of lists")
            if len(result) != len(queries):
                raise ValueError(f"{len(result)} results for {len(queries)} queries")
            return [[passage_of(entry) for entry in entries[:k]] for entries in result]
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            raise SearchFailed(f"{self.url} gave a malformed answer: {type(error).__name__}: {error}") from error

    def _post(self, body: dict) -> bytes:
        """Send a request, with retries. Returns the content of the first answer with status 200."""
        import httpx

        content = json.dumps(body).encode()  # ASCII, so encoding never fails: the server rejects invalid text
        failure: httpx.RequestError | None
        for attempt in range(1 + self.retries):
            pause = min(BACKOFF * 2**attempt, LONGEST_PAUSE) * random.uniform(0.5, 1)
            try:
                response = self._client().post(self.url, content=content, headers={"Content-Type": "application/json"})
            except httpx.RequestError as error:
                cause, failure = f"{type(error).__name__}: {error}", error
            else:
                if response.status_code == 200:
                    return response.content
                cause, failure = f"status {response.status_code}: {_detail(response.content)}", None
                if response.status_code in REFUSALS:
                    raise ValueError(f"{self.url} rejected the request with {cause}")
                pause += _retry_after(response.headers)
            if attempt < self.retries:
                time.sleep(pause)
        raise SearchFailed(f"{self.url} failed {1 + self.retries} times, at last with {cause}") from failure

    def _client(self) -> "httpx.Client":
        import httpx

        if self._connections is None or self._process != os.getpid():
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=BATCH)
            self._connections = httpx.Client(timeout=self.timeout, limits=limits)
            self._process = os.getpid()
        return self._connections


def _detail(answer: bytes) -> str:
    """Return the error message of the server, or the beginning of its answer."""
    try:
        return str(json.loads(answer)["detail"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return answer[:200].decode("utf-8", "replace")


def _retry_after(headers: "httpx.Headers") -> float:
    """Return the seconds that the server asks to wait; 0 without a `Retry-After` in seconds."""
    try:
        return min(max(float(headers["Retry-After"]), 0.0), LONGEST_PAUSE)
    except (KeyError, ValueError):
        return 0.0
