"""Tools of an MCP server (https://modelcontextprotocol.io), through the official client.

    tools = mount(["python", "my_server.py"])          # a program that speaks MCP on its standard input and output
    tools = mount("http://127.0.0.1:8000/mcp")         # or a server

All episodes share the state of the server: an environment has to reset it itself.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import cache
from typing import Any

from agent_envs.tools.schema import compile_parameters
from agent_envs.types import ToolResult

_OPENING = 60.0  # seconds that a server has to start and to list its tools
_PROBE = 5.0  # seconds that a server has to show that it is alive, after all calls timed out
_LEAVING = 10.0  # seconds that a client has to end its program
_MOST_PAGES = 100  # of a server's list of tools

# If a server writes a line that is no message, the call times out, as the agent is told. Logging, if set up, shows the line.
logging.getLogger("mcp").addHandler(logging.NullHandler())


def mount(
    server: str | Sequence[str], *, only: Sequence[str] | None = None, timeout: float = 30.0
) -> tuple[MCPTool, ...]:
    """Mount the tools of an MCP server.

    The environments of a process share one connection. If the server dies, calls in progress are tool failures, and the next call
    connects again.

    Args:
        server: the URL of a server (streamable HTTP), or a command as a list of words.
        only: names of tools to take, in this order; all by default.
        timeout: seconds for the calls of one turn, or of one step of a vector, which are sent together.

    Raises:
        ImportError: the package ``mcp`` is not installed, or is older than 2.
        ConnectionError: the server does not start, does not answer, or lists tools without end.
        ValueError: ``server`` is neither a URL nor a command, ``only`` names an unknown tool, or a tool cannot be used.
    """
    connection = _connect(server if isinstance(server, str) else tuple(server), timeout)
    listed = {tool.name: tool for tool in connection.list_tools()}
    if missing := set(only or ()) - set(listed):
        raise ValueError(f"the server has no tools {sorted(missing)}; it has {sorted(listed)}")
    return tuple(_take(connection, listed[name]) for name in (only or listed))


def _take(connection: Connection, listed: Any) -> MCPTool:
    """Make a tool of an entry in the server's list. Raises ValueError if it cannot be used."""
    tool = MCPTool(connection, listed.name, listed.description or "", dict(listed.input_schema))
    try:
        if not re.fullmatch(r"\w[\w./-]{0,127}", tool.name):
            raise ValueError("a tool's name is made of letters, digits, '_', '-', '.' and '/'")
        compile_parameters(tool.parameters)
    except ValueError as error:
        name = tool.name[:128]
        raise ValueError(f"the server's tool {name!r} cannot be used: {error}; only=[...] takes others") from None
    return tool


class MCPTool:
    """One tool of a server. Calls of a batch are made at the same time."""

    io_bound = True
    interchangeable = True

    def __init__(self, connection: Connection, name: str, description: str, parameters: dict[str, Any]):
        self.connection, self.name, self.description, self.parameters = connection, name, description, parameters

    @property
    def batch_key(self) -> tuple:
        """Equal for the same tool of the same connection."""
        return "mcp", id(self.connection), self.name

    def execute_batch(self, arguments: list[dict[str, Any]]) -> list[ToolResult]:
        return self.connection.call(self.name, arguments)


class Connection:
    """A client of a server. It connects again after its connection broke."""

    def __init__(self, server: str | tuple[str, ...], timeout: float):
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, got {timeout}")
        if not (server.startswith(("http://", "https://")) if isinstance(server, str) else server):
            raise ValueError(f"server must be a URL (http://…) or a command as a list of words, got {server!r}")
        self.server, self.timeout = server, timeout
        self._lock, self._client_thread = threading.Lock(), _ClientThread(server)

    def __reduce__(self):
        return _connect, (self.server, self.timeout)

    def list_tools(self) -> list[Any]:
        """List the tools of the server, with a second try on a new connection. Raises ConnectionError if both fail."""

        async def all_pages(client: Any) -> list[Any]:
            found, cursor = [], None
            for _ in range(_MOST_PAGES):
                page = await client.list_tools(cursor=cursor)
                found += page.tools
                cursor = page.next_cursor
                if not cursor:
                    return found
            raise ConnectionError(f"the list goes on after {_MOST_PAGES} pages")

        problems: list[Exception] = []
        while len(problems) < 2:  # the server may have died since the last call
            thread = self._open()
            try:
                return thread.run(all_pages, _OPENING)
            except Exception as error:
                problems.append(error)
                thread.close()
        why = _describe_error(problems[-1])
        raise ConnectionError(f"the MCP server {self.server!r} does not list its tools: {why}") from problems[-1]

    def call(self, name: str, arguments: list[dict[str, Any]]) -> list[ToolResult]:
        """Call one tool several times at once. A failed call gives a result with the error; a broken connection is closed."""

        async def all_of_them(client: Any) -> list[Any]:
            calls = (asyncio.wait_for(client.call_tool(name, one), self.timeout) for one in arguments)
            return await asyncio.gather(*calls, return_exceptions=True)

        thread = self._open()
        try:
            replies = thread.run(
                all_of_them, self.timeout + 10
            )  # the client takes 5 s to tell a silent server that it gives up
        except TimeoutError as error:
            replies = [error] * len(arguments)
        silent = all(isinstance(reply, TimeoutError) for reply in replies)
        refused = any(
            _has_code(reply, "INVALID_REQUEST") for reply in replies
        )  # by a tool; or the server has lost its session
        is_closed = any(_has_code(reply, "CONNECTION_CLOSED") for reply in replies)
        if is_closed or ((silent or refused) and not self._is_alive(thread)):
            thread.close()
        return [_as_result(name, reply) for reply in replies]

    def _is_alive(self, thread: _ClientThread) -> bool:
        """Whether the server still answers at all. If not, `call` ends the connection, and the next call opens another."""
        try:
            thread.run(lambda client: client.session.list_tools(), _PROBE)
        except Exception as error:
            # Others are an answer, or of a connection that is broken already.
            return not (isinstance(error, TimeoutError) or _has_code(error, "INVALID_REQUEST"))
        return True

    def close(self) -> None:
        """End the connection, and its program."""
        self._client_thread.close()

    def _open(self) -> _ClientThread:
        with self._lock:
            if not self._client_thread.alive:
                self._client_thread = _ClientThread(self.server)
            return self._client_thread


class _ClientThread:
    """A client in an event loop on its own thread, so that synchronous code can call it."""

    def __init__(self, server: str | tuple[str, ...]):
        try:
            import mcp
            from mcp.client.stdio import stdio_client
        except ImportError as error:
            raise ImportError(
                "tools of MCP servers need mcp>=2: pip install -e '.[mcp]' in the clone, in another virtual environment than "
                "OpenEnv's, which needs mcp<2"
            ) from error
        target: Any = server
        if not isinstance(server, str):
            command = mcp.StdioServerParameters(command=server[0], args=list(server[1:]), env=dict(os.environ))
            target = stdio_client(command, sys.__stderr__ or sys.stderr)  # in notebooks the latter is not a file
        opened, failure = threading.Event(), list[BaseException]()

        async def live() -> None:
            self._loop, self._task, self._closing = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
            try:
                async with mcp.Client(target) as self._client:
                    opened.set()
                    await self._closing.wait()
            except BaseException as error:  # anyio raises groups, and a thread must not die in silence
                failure.append(error)
            finally:
                opened.set()

        self._thread = threading.Thread(target=lambda: asyncio.run(live()), daemon=True)
        self._thread.start()
        if not opened.wait(_OPENING):
            assert self._task is not None  # the first thing that the thread sets
            self._loop.call_soon_threadsafe(self._task.cancel)
            failure.append(TimeoutError(f"no answer in {_OPENING:g} s"))
        if failure:
            self._thread.join(_LEAVING)
            raise ConnectionError(f"the MCP server {server!r} cannot be reached: {_describe_error(failure[0])}")
        atexit.register(self.close)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def run(self, work: Callable[[Any], Any], seconds: float) -> Any:
        """Run ``work`` with the client and return its result. Raises ConnectionError if the connection breaks meanwhile."""
        job = work(self._client)
        try:
            return asyncio.run_coroutine_threadsafe(job, self._loop).result(seconds)
        except (CancelledError, RuntimeError) as error:  # its loop has ended
            job.close()
            raise ConnectionError("the connection to the MCP server broke") from error

    def close(self) -> None:
        """Let the client ask its program to exit, and kill its process group if it does not."""
        atexit.unregister(self.close)
        with suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(_LEAVING)


@cache
def _connect(server: str | tuple[str, ...], timeout: float) -> Connection:
    return Connection(server, timeout)


def _has_code(reply: Any, name: str) -> bool:
    """Whether a reply is the protocol's error of this name."""
    import mcp

    return isinstance(reply, mcp.MCPError) and reply.code == getattr(mcp.types, name)


def _as_result(name: str, reply: Any) -> ToolResult:
    if isinstance(reply, TimeoutError):
        return ToolResult(f"{name} took too long.", ok=False, fault=True)
    if isinstance(reply, BaseException):
        fault = not _has_code(reply, "INVALID_PARAMS")  # the agent's mistake, like a result with is_error
        return ToolResult(f"{name} failed: {_describe_error(reply)}"[:500], ok=False, fault=fault)
    text = "\n".join(map(_text_of, reply.content))
    if not text and reply.structured_content is not None:  # servers should give both, but need not
        text = json.dumps(reply.structured_content, ensure_ascii=False)
    if reply.is_error and not text.strip():
        text = f"{name} failed, without saying why."
    return ToolResult(text, data=reply.structured_content, ok=not reply.is_error)


def _text_of(block: Any) -> str:
    """Return what the agent reads of a part of a result: its text, or that of its resource; else its type."""
    text = getattr(block, "text", None) or getattr(getattr(block, "resource", None), "text", None)
    return text if isinstance(text, str) else "" if block.type == "text" else f"[{block.type}]"


def _describe_error(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
