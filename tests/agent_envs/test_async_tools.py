"""Async functions as tools, on the event loop that they share."""

import asyncio
import functools
import os
import threading
import time
from functools import partial

from agent_envs.tools import FunctionTool, function, run_calls
from agent_envs.types import ToolCall, ToolResult


def one(tool, **arguments) -> ToolResult:
    return run_calls([({tool.name: tool}, ToolCall(tool.name, arguments))])[0]


narrow = asyncio.Semaphore(1)  # bound to the event loop of the first call that waits for it


async def queue(x: int):
    """waits in line."""
    async with narrow:
        await asyncio.sleep(0.01)
    return x


def test_async_functions_share_an_event_loop():
    tools = FunctionTool(queue), FunctionTool(queue), FunctionTool(queue, timeout=30)
    for tool in (*tools, *tools):
        assert [r.text for r in tool.execute_batch([{"x": i} for i in range(3)])] == list("012")
    calls = [({"queue": tool}, ToolCall("queue", {"x": i})) for i, tool in enumerate(tools)]
    assert [r.text for r in run_calls(calls)] == list("012")  # in a thread each


async def where():
    """says its event loop."""
    return ToolResult("", data=asyncio.get_running_loop())


def test_a_blocked_event_loop_is_replaced_and_ends(monkeypatch):
    monkeypatch.setattr(function, "_GRACE", 0.1)
    monkeypatch.setattr(function, "_PROBE", 0.1)
    never, seen = threading.Event(), []

    async def block():
        """blocks its event loop."""
        seen.append(asyncio.get_running_loop())
        never.wait(60)

    assert one(FunctionTool(block, timeout=0.1)).fault
    fresh = one(FunctionTool(where)).data
    assert fresh is not seen[0] and fresh is one(FunctionTool(where)).data
    never.set()
    deadline = time.monotonic() + 20
    while not seen[0].is_closed() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen[0].is_closed()


def test_a_call_inside_a_call_and_a_forked_process_have_event_loops_of_their_own(monkeypatch):
    async def outer():
        """calls."""
        return one(FunctionTool(where))

    inner, here = one(FunctionTool(outer, timeout=30)).data, one(FunctionTool(where)).data
    assert inner is not None and inner is not here
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert one(FunctionTool(where)).data not in (inner, here)


def test_an_event_loop_survives_what_ends_a_process():
    async def interrupt():
        """interrupts."""
        raise KeyboardInterrupt

    async def leave():
        """leaves, in a task of its own."""
        await asyncio.create_task(interrupt())

    here = one(FunctionTool(where)).data
    for f in (interrupt, leave):
        assert "KeyboardInterrupt" in one(FunctionTool(f, timeout=30)).text
    assert one(FunctionTool(where)).data is here


def test_functions_that_return_a_coroutine_are_async():
    class Double:
        """doubles."""

        async def __call__(self, x: int) -> int:
            await asyncio.sleep(0)
            return 2 * x

    def decorated(f):
        return functools.wraps(f)(lambda **arguments: f(**arguments))

    def finished(f):
        return functools.wraps(f)(lambda **arguments: asyncio.run(f(**arguments)))

    async def double(x: int) -> int:
        """doubles."""
        return await Double()(x)

    for f in (Double(), decorated(double), partial(decorated(double)), finished(double)):
        tool = FunctionTool(f, name="double")
        assert tool.io_bound and [r.text for r in tool.execute_batch([{"x": 2}, {"x": 3}])] == ["4", "6"]
