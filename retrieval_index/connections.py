"""Connections that ask for nothing, or never end asking, shut nobody out.

uvicorn waits for the rest of a request for ever, and takes connections until the process has no descriptors left. Here a
request has to arrive within `READ`, an answer has to be taken bit by bit, and where there are as many connections as
there may be, the one that has been without a request for the longest is closed for a new one.
"""

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

READ = 10.0  # seconds from the first byte of a request, or from the connection, to the last byte of the request
WRITE = 30.0  # seconds in which a client takes at least
LEAST = 1 << 16  # bytes of a long answer

_TOO_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 50\r\n\r\n"
    b'{"detail": "the request did not arrive in time."}\n'
)


def most_connections() -> int:
    """A quarter of the descriptors that the process may have; the rest is for files, for what is accepted at once, and for
    connections on their way out, which are closed a round of the loop or two later."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(soft, 16384) // 4)


def guarded_protocol(most: int) -> type[asyncio.Protocol]:
    """uvicorn's protocol with limits, for a server that has ``most`` connections at once."""
    idle: dict[Any, None] = {}  # connections without a request that has arrived, the one that has been so longest first

    class Guarded(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._arrived: Any = None  # the last request that did
            self._reading: asyncio.TimerHandle | None = None
            self._writing: asyncio.TimerHandle | None = None
            self._start_reading()
            idle[self] = None
            if len(self.connections) > most:
                oldest = next(iter(idle))
                del idle[oldest]
                oldest._drop()

        def data_received(self, data: bytes) -> None:
            self._start_reading()
            super().data_received(data)
            cycle = self.cycle
            if cycle is not None and cycle is not self._arrived and not cycle.more_body:
                self._arrived = cycle
                _cancel(self._reading)
                self._reading = None
                if not cycle.response_complete:
                    idle.pop(self, None)

        def on_response_complete(self) -> None:
            idle[self] = None
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            _cancel(self._reading)
            _cancel(self._writing)
            idle.pop(self, None)
            super().connection_lost(exc)

        def shutdown(self) -> None:
            if self in idle:
                self._drop()
            else:  # what was asked is answered
                super().shutdown()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch_writing()

        def resume_writing(self) -> None:
            super().resume_writing()
            _cancel(self._writing)
            self._writing = None

        def _drop(self) -> None:
            """Close a connection without a request; what is still on its way to the client gets there."""
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()
            else:
                self.transport.abort()

        def _start_reading(self) -> None:
            self._reading = self._reading or self.loop.call_later(READ, self._stop_reading)

        def _stop_reading(self) -> None:
            self._reading = None
            if self.cycle is not None and self.cycle is self._arrived and not self.cycle.response_complete:
                self._start_reading()  # bytes of a next request; it is the turn of the server
                return
            if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
                self.transport.write(_TOO_LATE)
            self.transport.close()

        def _watch_writing(self, before: int | None = None) -> None:
            left = self.transport.get_write_buffer_size()
            if before is not None and left > before - LEAST:
                self.transport.abort()
            else:
                self._writing = self.loop.call_later(WRITE, self._watch_writing, left)

    return Guarded


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
