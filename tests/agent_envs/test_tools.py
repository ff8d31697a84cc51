"""Functions as tools, and calls that hurt only themselves."""

import asyncio
import contextlib
import dataclasses
import datetime
import enum
import threading
import time
from functools import partial
from typing import Annotated, Literal

import numpy as np
import pytest
from pydantic import Field

import retrieval_index
from agent_envs.tools import FunctionTool, SearchTool, ToolError, function, run_calls
from agent_envs.types import ToolCall, ToolResult
from retrieval_index.cache import CachedSearcher
from retrieval_index.client import RemoteSearcher
from retrieval_index.corpus import Passage


def book(city: str, nights: int = 1, meal: Literal["none", "half"] = "none", guests: list[str] | None = None) -> str:
    """book a room.

    More about rooms.

    Args:
        city: where to stay,
            by name.
        nights (int): how long.
    """
    return f"{city} {nights} {meal} {guests}"


def test_the_schema_comes_from_the_signature():
    tool = FunctionTool(book)
    assert (tool.name, tool.description) == ("book", "book a room.")
    guests = [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]
    properties = {
        "city": {"type": "string", "description": "where to stay, by name."},
        "nights": {"type": "integer", "default": 1, "description": "how long."},
        "meal": {"type": "string", "enum": ["none", "half"], "default": "none"},
        "guests": {"anyOf": guests, "default": None},
    }
    rest = {"type": "object", "required": ["city"], "additionalProperties": False}
    assert tool.parameters == {"properties": properties, **rest}


def test_descriptions_in_a_hint_and_on_the_line_after_the_name():
    def f(where: Annotated[str, Field(description="a city")], day: str, hour: int):
        """goes.

        Args:
            day:
                a date
            hour: of it
        """

    properties = FunctionTool(f).parameters["properties"]
    assert [properties[name]["description"] for name in ("where", "day", "hour")] == ["a city", "a date", "of it"]


def test_a_partial_is_a_tool_without_what_it_binds():
    tool = FunctionTool(partial(book, "Oslo", meal="half"))
    properties = tool.parameters["properties"]
    assert (tool.name, tool.description, list(properties)) == ("book", "book a room.", ["nights", "guests"])
    assert properties["nights"]["description"] == "how long."
    assert one(tool, nights=2).text == "Oslo 2 half None" and not one(tool, meal="none").ok


def untyped(x):
    """does things."""


def variadic(*xs: int):
    """does things."""


def unresolved(x: "Nowhere"):  # noqa: F821
    """does things."""


def test_functions_that_cannot_be_described_are_refused():
    for f, message in ((untyped, "no type hint"), (variadic, "have names"), (unresolved, "cannot be resolved")):
        with pytest.raises(ValueError, match=message):
            FunctionTool(f)


def one(tool, **arguments) -> ToolResult:
    return run_calls([({tool.name: tool}, ToolCall(tool.name, arguments))])[0]


WRONG = [
    ({}, "'city' is a required property"),
    ({"city": "Oslo", "nights": "two"}, "['nights'] do not fit: 'two' is not of type 'integer'"),
    ({"city": "Oslo", "nights": True}, "True is not of type 'integer'"),
    ({"city": "Oslo", "meal": "full"}, "'full' is not one of"),
    ({"city": "Oslo", "guests": ["a", 1]}, "['guests'] do not fit"),
    ({"city": "Oslo", "town": "x"}, "'town' was unexpected"),
]


def test_arguments_that_do_not_fit_are_not_passed_on():
    for arguments, problem in WRONG:
        result = one(FunctionTool(book), **arguments)
        assert not result.ok and not result.fault and problem in result.text


@dataclasses.dataclass
class Room:
    number: int
    free: set[str]


def test_what_is_no_json_itself_but_has_a_json_form():
    loop = []
    loop.append(loop)
    values = {
        "room": Room(3, {"May"}),
        "count": np.int64(4),
        "days": [datetime.date(2031, 6, 15), np.array([1.5])],
        "loop": loop,
    }

    def f(what: str):
        """returns things."""
        return values.get(what, object())

    shown = {name: one(FunctionTool(f), what=name) for name in (*values, "no")}
    assert shown["room"].text == '{"number": 3, "free": ["May"]}' and shown["room"].data is values["room"]
    assert (shown["count"].text, shown["days"].text) == ("4", '["2031-06-15", [1.5]]')
    assert shown["loop"].fault and shown["no"].fault and "has no JSON form" in shown["loop"].text


def test_what_a_function_returns_and_raises():
    def f(what: str):
        """returns things."""
        return {
            "text": "plain",
            "json": {"é": [1, None]},
            "result": ToolResult("own", data=7),
            "none": ToolResult(None),
        }[what]

    def g(how: str):
        """fails."""
        raise {"mistake": ToolError("no such room"), "value": ValueError("bad"), "fault": KeyError("oops")}[how]

    returns, fails = FunctionTool(f), FunctionTool(g)
    assert one(returns, what="none").fault and one(returns, what="text").text == "plain"
    assert one(returns, what="result").data == 7
    assert one(returns, what="json").text == '{"é": [1, null]}' and one(returns, what="json").data == {"é": [1, None]}
    assert one(fails, how="mistake") == ToolResult("g: no such room", ok=False)
    assert one(fails, how="value") == ToolResult("g: bad", ok=False)
    assert one(fails, how="fault").fault


def test_a_call_that_hangs_hurts_only_itself():
    never = threading.Event()

    def f(wait: bool):
        """waits."""
        if wait:
            never.wait(60)
        return "back"

    tool = FunctionTool(f, timeout=1)
    start = time.perf_counter()
    results = run_calls([({"f": tool}, ToolCall("f", {"wait": w})) for w in (False, True, False, True)])
    assert time.perf_counter() - start < 20
    assert [r.text for r in results] == ["back", "f took longer than 1 s."] * 2
    assert [r.fault for r in results] == [False, True] * 2
    never.set()


def test_a_timeout_ends_async_functions_that_block_or_refuse_to_end(monkeypatch):
    monkeypatch.setattr(function, "_GRACE", 0.2)
    never = threading.Event()

    async def block(wait: bool):
        """blocks its event loop."""
        if wait:
            never.wait(60)
        return "back"

    async def stay(wait: bool):
        """will not be cancelled."""
        while wait and not never.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.1)
        return "back"

    start = time.perf_counter()
    for f in (block, stay):
        found = FunctionTool(f, timeout=1).execute_batch([{"wait": wait} for wait in (False, True)])
        assert [(r.text, r.fault) for r in found] == [("back", False), (f"{f.__name__} took longer than 1 s.", True)]
    assert time.perf_counter() - start < 20
    never.set()


def test_async_functions_run_together():
    running, most = 0, 0

    async def f(x: int):
        """counts."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        return x

    assert [r.text for r in FunctionTool(f).execute_batch([{"x": i} for i in range(5)])] == list("01234")
    assert most > 1

    async def inside():  # a caller that has an event loop of its own, as a notebook does
        return one(FunctionTool(f), x=3).text

    assert asyncio.run(inside()) == "3"


def test_a_flood_is_cut():
    def f(n: int):
        """floods."""
        return "x" * n

    cut, whole = (one(FunctionTool(f, max_output=100), n=n).text for n in (10_000_000, 100))
    assert len(cut) < 200 and "10000000 characters" in cut and whole == "x" * 100


class Batches:
    """A tool of somebody's whose batches fail, or are no results; ``asked``: how large each was."""

    name, description, parameters = "ask", "asks.", {"type": "object", "properties": {"x": {}}}
    interchangeable = True

    def __init__(self):
        self.asked = []

    def execute_batch(self, arguments):
        self.asked.append(len(arguments))
        if any(a["x"] == "down" for a in arguments):
            raise ConnectionError("nobody is there")
        return [None if a["x"] == "none" else ToolResult(str(a["x"])) for a in arguments]


def test_a_broken_call_hurts_only_itself_and_a_server_that_is_gone_is_not_waited_for_once_for_each():
    def ask(tool, *words):
        return run_calls([({"ask": tool}, ToolCall("ask", {"x": word})) for word in words])

    results = ask(Batches(), 1, "down", "none", 2)
    assert [r.fault for r in results] == [False, True, True, False]
    assert [results[0].text, results[3].text] == ["1", "2"] and "ConnectionError: nobody is there" in results[1].text
    tool = Batches()
    assert all(result.fault and "nobody is there" in result.text for result in ask(tool, *["down"] * 50))
    assert tool.asked == [50, 1, 1, 1]
    words = ["down", "down", "up", "down", "up"]
    assert [result.ok for result in ask(tool, *words)] == [word == "up" for word in words]
    tool = Batches()
    tool.interchangeable = False  # then each call may have effects, and is run once
    assert [result.ok for result in ask(tool, *words)] == [word == "up" for word in words] and tool.asked == [1] * 5
    assert not any(result.ok for result in ask(tool, *["down"] * 50)) and tool.asked == [1] * 8


class Meal(enum.Enum):
    HALF = "half"


def test_arguments_come_in_the_types_of_the_hints():
    def f(day: datetime.date, meal: Meal, n: int, rest: str = "given"):
        """types."""
        return f"{day.year} {meal.name} {n!r} {rest}"

    assert one(FunctionTool(f), day="2031-06-15", meal="half", n=3.0).text == "2031 HALF 3 given"
    result = one(FunctionTool(f), day="someday", meal="half", n=3)
    assert not result.ok and not result.fault


def raising(error, is_async):
    def f():
        """fails."""
        raise error

    async def g():
        """fails."""
        raise error

    return g if is_async else f


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError("boom"), TimeoutError("in a second"), SystemExit(3)], ids=repr
)
@pytest.mark.parametrize("timeout", [None, 30.0])
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_a_tool_raises_is_a_fault_of_it(error, is_async, timeout):
    """What is no `Exception` too; and its own TimeoutError is none of ours."""
    result = one(FunctionTool(raising(error, is_async), name="f", timeout=timeout))
    assert result.fault and result.text == f"f failed: {type(error).__name__}: {error}"


def test_an_interrupt_is_the_callers_also_from_a_thread():
    for timeout in (None, 30.0):
        with pytest.raises(KeyboardInterrupt):
            one(FunctionTool(raising(KeyboardInterrupt(), False), timeout=timeout))


def test_a_call_that_ran_out_of_time_is_not_made_again():
    """Its effect may have happened."""
    made, never = [], threading.Event()

    def pay(amount: int):
        """pays."""
        made.append(amount)
        never.wait(60)

    async def send(amount: int):
        """sends."""
        made.append(amount)
        await asyncio.sleep(60)

    for made_late in (pay, send):
        made.clear()
        result = one(FunctionTool(made_late, timeout=0.5), amount=7)
        assert result.fault and made == [7]
    never.set()


def test_threads_of_calls_that_hang_are_bounded(monkeypatch):
    monkeypatch.setattr(function, "MOST_ABANDONED", 5)
    monkeypatch.setattr(function, "_abandoned", set())
    never = threading.Event()

    def f():
        """hangs."""
        never.wait(60)

    tool = FunctionTool(f, timeout=0.01)
    results = tool.execute_batch([{}] * 12)
    assert len(function._abandoned) == 5 and all(result.fault for result in results)
    assert "still hang" in results[-1].text
    never.set()


def test_why_a_tool_failed_is_told_once():
    def ask(number: int):
        """asks."""
        raise {1: KeyError("a"), 2: KeyError("b"), 3: OSError("c")}[number]

    tool = FunctionTool(ask, name="ask_once")
    with pytest.warns(UserWarning) as told:
        run_calls([({"ask_once": tool}, ToolCall("ask_once", {"number": number})) for number in (1, 2, 3, 1)])
    assert [str(one.message) for one in told] == [
        "a tool failed: ask_once failed: KeyError: 'a'", "a tool failed: ask_once failed: OSError: c",
    ]  # fmt: skip


def test_a_search_waits_where_its_searcher_is_a_server():
    server = CachedSearcher(RemoteSearcher("http://127.0.0.1:9"))
    assert SearchTool(server).io_bound and SearchTool(RemoteSearcher("http://127.0.0.1:9")).io_bound
    assert not SearchTool(retrieval_index.build([Passage("1", "Rome", "Rome is a city.")])).io_bound
