"""Plain Python functions as tools."""

import asyncio
import inspect
import json
import os
import re
import typing
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Thread
from typing import Any

from agent_envs.tools.schema import compile_parameters
from agent_envs.types import ToolResult


class ToolError(Exception):
    """The agent made an invalid call; it reads the message."""


@dataclass(frozen=True)
class FunctionTool:
    """A function with type hints and a docstring, as a tool.

    The hints become the JSON schema of the arguments; the docstring's first paragraph is the description and its ``Args:``
    describe the parameters. A returned string or `ToolResult` is used unchanged, anything else as JSON. `ToolError`,
    ValueError, ArithmeticError, MemoryError and RecursionError are the agent's mistakes; any other exception, and a timeout, is
    a tool failure. Calls of one turn run in order; those of one async function run together. All async functions of a process
    share one event loop, which they must not block.

    Args:
        function: sync or async, also an async ``__call__`` or a decorated function, with named parameters only. The agent cannot
            set those that a `functools.partial` binds.
        name: name of the tool, instead of the function's own.
        timeout: seconds per call, which then runs in a thread; a sync function continues there after the timeout.
        max_output: characters of the result that the agent reads.
        batch_key: see `agent_envs.tools.Tool`; functions that change the same state need equal keys, such as ``batch_key=self``.
    """

    function: Callable[..., Any]
    name: str = ""
    timeout: float | None = None
    max_output: int = 20_000
    batch_key: Hashable = None

    def __post_init__(self):
        if not callable(self.function):
            raise ValueError(f"a tool is made from a function, got {self.function!r}")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout must be positive or None, got {self.timeout}")
        if self.max_output < 1:
            raise ValueError(f"max_output must be at least 1, got {self.max_output}")
        object.__setattr__(self, "name", self.name or getattr(_unbound(self.function), "__name__", ""))
        if not re.fullmatch(r"[A-Za-z_][\w.-]{0,63}", self.name, re.ASCII):
            raise ValueError(f"a tool's name is made of letters, digits, '_', '-' and '.', got {self.name!r}")
        # A function that cannot be described is rejected here and not in the middle of an episode.
        try:
            compile_parameters(self.parameters)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None

    @cached_property
    def description(self) -> str:
        """The first paragraph of the function's docstring, on one line."""
        return " ".join((inspect.getdoc(_unbound(self.function)) or "").split("\n\n")[0].split())

    @cached_property
    def parameters(self) -> dict[str, Any]:
        return schema_of(self.function)

    @cached_property
    def _model(self) -> Any:
        return _model_of(self.function)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_model"}

    @property
    def io_bound(self) -> bool:
        """Whether its calls run in a thread: those with a timeout, and those of async functions."""
        return self.timeout is not None or self._is_async

    @property
    def _is_async(self) -> bool:
        """Whether a call returns a coroutine: also one of an object, or of an ordinary decorator around an async function."""
        inner = inspect.unwrap(_unbound(self.function))
        return any(map(inspect.iscoroutinefunction, (self.function, inner, type(inner).__call__)))

    def execute_batch(self, arguments: list[dict[str, Any]]) -> list[ToolResult]:
        """Run the calls in order, those of an async function at the same time."""
        if self._is_async:
            found: list[ToolResult | None] = [None] * len(arguments)
            loop = _event_loop()
            # asyncio's timeout cannot stop a function that blocks its event loop or ignores cancellation.
            limit = None if self.timeout is None else self.timeout + _GRACE
            late = self._finish(lambda: asyncio.run_coroutine_threadsafe(self._gather(arguments, found), loop), limit)
            if late is not None:
                _drop_if_blocked(loop)
            return [late if one is None else one for one in found]
        if self.timeout is None:
            return [self._call(one) for one in arguments]
        return [self._finish(partial(_start_thread, partial(self._call, one)), self.timeout) for one in arguments]

    def _finish(self, start: Callable[[], Future], limit: float | None) -> Any:
        """Start a job and return its result, or a tool failure if it takes longer than ``limit`` seconds."""
        here = os.getpid()
        _abandoned.difference_update([one for one in _abandoned.copy() if one[0] != here or one[1].done()])
        if len(_abandoned) >= MOST_ABANDONED:
            return ToolResult(f"{self.name}: too many calls before this one still hang.", ok=False, fault=True)
        job = start()
        if wait([job], limit).done:
            return job.result()
        _abandoned.add((here, job))
        return self._report_timeout()

    def _report_timeout(self) -> ToolResult:
        return ToolResult(f"{self.name} took longer than {self.timeout} s.", ok=False, fault=True)

    async def _gather(self, arguments: list[dict[str, Any]], found: list[ToolResult | None]) -> None:
        """Run the calls together, and put each result in its place in ``found`` as soon as it is there."""

        async def fill(place: int) -> None:
            try:
                async with asyncio.timeout(self.timeout) as limit:
                    result = await self._await(arguments[place])
                found[place] = _as_result(result)
            except BaseException as error:  # a TimeoutError may also be the function's own
                late = isinstance(error, TimeoutError) and limit.expired()
                found[place] = self._report_timeout() if late else self._report_error(error)

        await asyncio.gather(*map(fill, range(len(arguments))))

    async def _await(self, arguments: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**self._convert(arguments))
        # A decorator may also run the coroutine itself, which needs a thread without an event loop.
        result = await asyncio.to_thread(self._call, arguments, raw=True)
        return await result if inspect.isawaitable(result) else result

    def _call(self, arguments: dict[str, Any], raw: bool = False) -> Any:
        """Return the result of a call, or what the function returns if ``raw``; for an error always a result."""
        try:
            returned = self.function(**self._convert(arguments))
            return returned if raw else _as_result(returned)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a tool may raise anything, even CancelledError
            return self._report_error(error)

    def _report_error(self, error: BaseException) -> ToolResult:
        if isinstance(error, ToolError | ValueError):
            return ToolResult(f"{self.name}: {error}"[:500], ok=False)
        if isinstance(error, ArithmeticError | MemoryError | RecursionError):
            return ToolResult(f"{self.name}: {type(error).__name__}: {error}"[:500], ok=False)
        return ToolResult(f"{self.name} failed: {type(error).__name__}: {error}"[:500], ok=False, fault=True)

    def _convert(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Convert the arguments to the types of the hints; those left out keep the function's defaults."""
        model = self._model.model_validate(arguments)
        names = {field.alias: name for name, field in type(model).model_fields.items()}
        return {name: getattr(model, names[name]) for name in arguments}


MOST_ABANDONED = 64  # calls that hang; at this number, further calls with a timeout, and of async functions, fail
_GRACE = 1.0  # seconds that a cancelled async function has to clean up
_PROBE = 1.0  # seconds that an event loop has to show that nothing blocks it
# Both by process, since a fork inherits no threads; loops also by the loop that a call inside another call blocks.
_abandoned: set[tuple[int, Future]] = set()
_loops: dict[tuple[int, Any], asyncio.AbstractEventLoop] = {}


def _start_thread(job: Callable[[], Any]) -> Future:
    """Start a job in a daemon thread: one that hangs must not keep the process from ending, as an executor's would."""
    future: Future = Future()

    def run() -> None:
        try:
            future.set_result(job())
        except BaseException as error:  # raised again where the result is read
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


def _event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all async functions, which may share a client or a semaphore; start it at the first call."""
    inside = asyncio._get_running_loop()
    key = os.getpid(), inside if inside in _loops.values() else None
    if found := _loops.get(key):
        return found
    made = asyncio.new_event_loop()
    found = _loops.setdefault(key, made)
    if found is made:
        Thread(target=_serve, args=(made,), daemon=True).start()
    else:  # another thread was first
        made.close()
    return found


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    while loop in _loops.values():
        with suppress(KeyboardInterrupt, SystemExit):  # of a task that a function started
            loop.run_forever()
    loop.close()


def _drop_if_blocked(loop: asyncio.AbstractEventLoop) -> None:
    """Let the next call start another event loop if a function blocks this one, which ends after its last call."""

    async def end() -> None:
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        loop.stop()

    keys = [key for key, one in list(_loops.items()) if one is loop]
    if not keys or wait([asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop)], _PROBE).done:
        return
    if _loops.pop(keys[0], None) is loop:
        asyncio.run_coroutine_threadsafe(end(), loop)


def _as_result(value: Any) -> ToolResult:
    if isinstance(value, ToolResult):
        return value
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_to_json_types)
    except ValueError as error:  # which would be the agent's mistake
        raise TypeError(f"what the function returned has no JSON form: {error}") from error
    return ToolResult(text, data=value)


def _to_json_types(value: Any) -> Any:
    """Convert a pydantic model, dataclass, set, date, … or a value of NumPy. Raises TypeError or ValueError for others."""
    import pydantic_core

    return value.tolist() if hasattr(value, "tolist") else pydantic_core.to_jsonable_python(value)


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON schema of a function's arguments, by pydantic, with descriptions from its docstring.
    Raises ValueError for a parameter without a type hint, without a name, or of a type without a JSON form."""
    import pydantic
    import pydantic_core

    try:
        schema = _model_of(function).model_json_schema()
    except (pydantic.errors.PydanticUserError, pydantic_core.SchemaError) as error:
        raise ValueError(f"{_name_of(function)}: a parameter's type has no JSON form: {error}") from error
    schema.pop("title", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
    return {"properties": {}, **schema}


def _unbound(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.func if isinstance(function, partial) else function


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(_unbound(function), "__name__", repr(function))


def _model_of(function: Callable[..., Any]) -> Any:
    """The pydantic model of a function's arguments."""
    import pydantic

    target, bound = _unbound(function), function.keywords if isinstance(function, partial) else {}
    target = target if inspect.isroutine(target) else type(target).__call__
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except NameError as error:
        raise ValueError(f"{_name_of(function)}: a type hint cannot be resolved: {error}") from error
    descriptions, fields = _describe_parameters(_unbound(function)), {}
    for parameter in inspect.signature(function).parameters.values():
        if (name := parameter.name) in bound:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(
                f"{_name_of(function)}: a tool's parameters have names, unlike *{name} or positional-only ones"
            )
        if name not in hints:
            raise ValueError(f"{_name_of(function)}: the parameter {name!r} has no type hint")
        default = ... if parameter.default is parameter.empty else parameter.default
        # A description of None would replace that of the hint.
        described: dict[str, Any] = {"description": descriptions[name]} if descriptions.get(name) else {}
        fields[name] = (hints[name], pydantic.Field(default, alias=name, **described))
    # Fields are known by their aliases, since a parameter may have the name of an attribute of the model.
    made: dict[str, Any] = {f"field_{i}": field for i, field in enumerate(fields.values())}
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return pydantic.create_model("Arguments", __config__=config, **made)


def _describe_parameters(function: Callable[..., Any]) -> dict[str, str]:
    """Descriptions of the parameters from the ``Args:`` section of the docstring."""
    _, _, section = (inspect.getdoc(function) or "").partition("Args:\n")
    descriptions: dict[str, str] = {}
    for line in section.split("\n\n")[0].splitlines():
        if found := re.match(r"    (\w+)(?: \(.*?\))?:\s*(.*)", line):
            descriptions[found[1]] = found[2]
        elif descriptions and line.startswith("      "):
            last = list(descriptions)[-1]
            descriptions[last] = f"{descriptions[last]} {line.strip()}".strip()
    return descriptions
