"""An HTTP server for a searcher, for trainers on other machines or in other processes: see `wire.py` for its format.

    POST /retrieve   searches
    GET /health      what is served: passages, backend, fingerprint of the corpus, limits
    GET /metrics     counters for Prometheus

Errors are {"detail": "what was wrong"}: 408, the body does not arrive in time; 413 and 422, it exceeds the limits or is invalid;
429, with Retry-After, too many queries wait; 500, the search failed. Needs the extra `[server]`, so import it late.
"""

import asyncio
import logging
import time
from contextlib import asynccontextmanager
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from retrieval_index.batching import Batcher, ClientGone, QueueFull, SearcherFailed
from retrieval_index.search import Searcher
from retrieval_index.wire import PATH, Limits, entry_of

DEFAULT_TOPK = 3  # as in Search-R1
ARRIVAL = 10.0  # maximum seconds for the head of a request to arrive, and for its body


class Protocol(H11Protocol):
    """A connection that is closed if it opens or begins a request and the request's head does not arrive in time."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_watching()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(ARRIVAL, self.transport.close)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None


# Options of uvicorn. Idle connections are kept longer than clients keep them, so that none is closed during a request.
CONNECTION_LIMITS: dict[str, Any] = {
    "http": Protocol,
    "ws": "none",
    "limit_concurrency": 512,
    "h11_max_incomplete_event_size": 1 << 14,
    "timeout_keep_alive": 75,
    "timeout_graceful_shutdown": 60,
    "access_log": False,
}
CLIENT_GONE = 499  # nginx's code for it, which no one receives

_CLOSE = {"Connection": "close"}

logger = logging.getLogger(__name__)


class Query(BaseModel):
    """The body of a search request."""

    model_config = ConfigDict(extra="forbid", strict=True)
    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


def serve(searcher: Searcher, *, host: str = "127.0.0.1", port: int = 8000, limits: Limits | None = None) -> None:
    """Serve until SIGINT or SIGTERM; requests that were accepted by then are still answered. Host "0.0.0.0" means
    all addresses: anyone who reaches the machine can search."""
    searcher.search(["warm up"], k=1)  # numba compiles at the first search
    uvicorn.run(create_app(searcher, limits), host=host, port=port, **CONNECTION_LIMITS)


def create_app(searcher: Searcher, limits: Limits | None = None) -> FastAPI:
    """Create the ASGI application that `serve` runs. For an index that was not loaded, it reads all passages once, for the
    fingerprint."""
    limits = limits or Limits()
    metrics = _Metrics()
    batcher = Batcher(searcher, limits.waiting)
    metrics.waiting.set_function(lambda: batcher.waiting)
    health_body = _health(searcher, limits)

    @asynccontextmanager
    async def lifespan(app):
        yield
        await batcher.close()

    app = FastAPI(title="retrieval_index", lifespan=lifespan)

    # Body and answer are handled here: FastAPI itself reads bodies of any size, and is several times slower.
    @app.post(PATH)
    async def retrieve(request: Request) -> Response:
        started = time.perf_counter()
        status = 500
        try:
            response = await _retrieve(request, batcher, limits, metrics)
            status = response.status_code
            return response
        except HTTPException as error:
            status = error.status_code
            raise
        finally:
            metrics.requests.labels(status).inc()
            metrics.seconds.observe(time.perf_counter() - started)

    @app.get("/health")
    async def health() -> Response:
        return Response(health_body, media_type="application/json")

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


async def _retrieve(request: Request, batcher: Batcher, limits: Limits, metrics: "_Metrics") -> Response:
    try:
        query = _parse(await read_body(request, limits.body_bytes), limits)
        found = await batcher.search(query.queries, _topk(query, limits), request.is_disconnected)
    except QueueFull as error:
        raise HTTPException(429, f"{error}: try again later", {"Retry-After": "1"}) from None
    except SearcherFailed as error:
        logger.exception("a search failed")
        raise HTTPException(500, str(error)) from error
    except (ClientDisconnect, ClientGone):
        return Response(status_code=CLIENT_GONE)
    metrics.queries.inc(len(query.queries))
    result = [[entry_of(passage, query.return_scores) for passage in ranking] for ranking in found]
    return Response(to_json({"result": result}), media_type="application/json")


async def read_body(request: Request, limit: int) -> bytes:
    """Read the body of a request; stop as soon as it has more than ``limit`` bytes, whatever the Content-Length."""
    body = bytearray()
    try:
        async with asyncio.timeout(ARRIVAL):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise HTTPException(413, f"the request has more than {limit:,} bytes: split it", _CLOSE)
    except TimeoutError:
        raise HTTPException(408, f"the request did not arrive within {ARRIVAL:g} s", _CLOSE) from None
    return bytes(body)


def _parse(body: bytes, limits: Limits) -> Query:
    try:
        query = Query.model_validate_json(body)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in error.errors(include_input=False)]
        raise HTTPException(422, f"{'; '.join(wrong[:3])} (fields: {', '.join(Query.model_fields)})") from None
    longest = max(map(len, query.queries), default=0)
    asked = len(query.queries) * _topk(query, limits)
    if len(query.queries) > limits.queries:
        raise HTTPException(422, f"queries: {len(query.queries)} in one request, {limits.queries} at most: split them")
    if longest > limits.query_chars:
        raise HTTPException(422, f"queries: one of {longest} characters, {limits.query_chars} at most")
    if query.topk is not None and not 1 <= query.topk <= limits.topk:
        raise HTTPException(422, f"topk: must be between 1 and {limits.topk}, got {query.topk}")
    if asked > limits.passages:
        raise HTTPException(422, f"queries times topk: {asked} passages, {limits.passages} at most: split the request")
    return query


def _topk(query: Query, limits: Limits) -> int:
    return min(DEFAULT_TOPK, limits.topk) if query.topk is None else query.topk


def _health(searcher: Searcher, limits: Limits) -> bytes:
    corpus = getattr(searcher, "corpus", None)  # None: an adapter to another server, or shards on servers
    served = {
        "status": "ok",
        "passages": None if corpus is None else len(corpus),
        "backend": getattr(searcher, "backend", type(searcher).__name__),
        "fingerprint": getattr(corpus, "fingerprint", None),
        "limits": limits,
    }
    return to_json(served)


class _Metrics:
    """The metrics for Prometheus, in a separate registry, so that two apps in one process do not mix."""

    def __init__(self):
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # process_resident_memory_bytes and more, on Linux
        self.requests = Counter("retrieval_requests", "Search requests by status", ["status"], registry=registry)
        self.queries = Counter("retrieval_queries", "Queries answered", registry=registry)
        self.seconds = Histogram("retrieval_request_seconds", "Time to answer a search request", registry=registry)
        self.waiting = Gauge("retrieval_waiting_queries", "Queries that wait for their answers", registry=registry)
