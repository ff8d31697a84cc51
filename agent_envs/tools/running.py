"""Running the calls of a turn, or of a whole vector of environments, so that a call that fails affects no other."""

import warnings
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from threading import Thread
from typing import Any, Protocol

from agent_envs.tools.function import FunctionTool, ToolError
from agent_envs.tools.schema import compile_parameters
from agent_envs.types import ToolCall, ToolResult
from retrieval_index.printable import encodable, map_texts

MAX_OUTPUT = 20_000  # characters of a result that the agent reads, unless the tool sets another bound
UNANSWERED = 3  # consecutive calls with a ConnectionError, after which the rest of a batch fails
_warned_of: set[tuple[str, ...]] = set()  # (tool, kind of failure)


class Tool(Protocol):
    """Base of the tools that an agent can call.

    Optional attributes:
        batch_key: calls of tools with equal keys run in order. By default each tool object is its own key. Tools that change the
            same state share a key, such as the environment.
        interchangeable: tools of one name and batch key can replace each other: consecutive calls, also of several environments,
            make one batch. If it raises an error, its calls are run again one by one.
        io_bound: calls wait for a process or server, and run in a thread parallel to those of other batch keys.
        max_output: characters of a result that the agent reads.
    """

    @property
    def name(self) -> str:
        """Name of the tool in calls."""
        ...

    @property
    def description(self) -> str:
        """One sentence for the agent."""
        ...

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON schema of the arguments, an object with ``properties`` and ``required``."""
        ...

    def execute_batch(self, arguments: list[dict[str, Any]]) -> list[ToolResult]:
        """Return the results of calls, in order: of one call unless the tool is ``interchangeable``. Arguments fit the schema."""
        ...


Request = tuple[Mapping[str, Tool], ToolCall]
_Queue = list[tuple[int, Tool, dict[str, Any]]]  # of calls: number of the request, tool, arguments


def run_calls(requests: Iterable[Request]) -> list[ToolResult]:
    """Run calls, each with the tools it may choose from by name; return the results in the order of the requests.
    An unknown tool, arguments that do not fit and `ToolError` give a result with an error message. If a tool raises anything
    else, or returns no result, the result of that call has a ``fault``. Lone surrogates in arguments become "?"."""
    results: dict[int, ToolResult] = {}  # by number of the request
    queues: dict[Hashable, _Queue] = {}  # by batch key
    for i, (tools, call) in enumerate(requests):
        call, tool = _with_unicode(call), tools.get(call.name)
        if tool is None:
            results[i] = ToolResult(f"There is no tool {call.name!r}; there are: {', '.join(tools)}.", ok=False)
        elif rejection := _reject(tool, call):
            results[i] = rejection
        else:
            key = getattr(tool, "batch_key", None)
            queues.setdefault(id(tool) if key is None else key, []).append((i, tool, call.arguments))
    waiting = [key for key, queue in queues.items() if len(queues) > 1 and getattr(queue[0][1], "io_bound", False)]
    threads = [Thread(target=_run_queue, args=(queues.pop(key), results), daemon=True) for key in waiting]
    for thread in threads:
        thread.start()
    for queue in queues.values():
        _run_queue(queue, results)
    for thread in threads:
        thread.join()
    for result in results.values():
        if result.fault:
            _warn_of_fault(result.text)
    return [results[i] for i in sorted(results)]


def _warn_of_fault(text: str) -> None:
    """Warn why a tool failed, once for each tool and kind of failure."""
    kind = tuple(text.split(":")[:2])  # "search failed", "SearchFailed"; what follows may be different in each call
    if kind not in _warned_of:
        _warned_of.add(kind)
        warnings.warn(f"a tool failed: {' '.join(text.split())}", stacklevel=3)


def _reject(tool: Tool, call: ToolCall) -> ToolResult | None:
    """Return the result of a call with arguments that do not fit; None if they do."""
    try:
        problem = compile_parameters(tool.parameters)(call.arguments)
    except Exception as error:  # a tool may have anything as its schema
        return ToolResult(f"{call.name} cannot be called: {error}"[:500], ok=False, fault=True)
    return ToolResult(f"{call.name}: {problem}", ok=False) if problem else None


def _executor(tool: Tool) -> Hashable:
    """Return a key of the tool: consecutive calls in a queue with equal keys are run together."""
    return tool.name if getattr(tool, "interchangeable", False) else id(tool)


def _run_queue(queue: _Queue, results: dict[int, ToolResult]) -> None:
    for _, group in groupby(queue, key=lambda one: _executor(one[1])):
        numbers, tools, arguments = zip(*group, strict=True)
        results.update(zip(numbers, _run_batch(tools[0], list(arguments)), strict=True))


def _run_batch(tool: Tool, arguments: list[dict[str, Any]]) -> list[ToolResult]:
    """Run calls of a tool as a batch; if it fails, run them one by one, so that only the call at fault fails. Calls that may have
    effects are not run twice: they are run one by one from the start."""
    outcome: list[ToolResult] | BaseException = RuntimeError("not run")
    if len(arguments) == 1 or isinstance(tool, FunctionTool) or getattr(tool, "interchangeable", False):
        outcome = _attempt(tool, arguments)
    if isinstance(outcome, list):
        return outcome
    found, unanswered = list[ToolResult](), 0
    for one in arguments:
        if len(arguments) > 1 and unanswered < UNANSWERED:
            outcome = _attempt(tool, [one])
            unanswered = unanswered + 1 if isinstance(outcome, ConnectionError) else 0
        failed = ToolResult(f"{tool.name} failed: {f'{type(outcome).__name__}: {outcome}'[:500]}", ok=False, fault=True)
        found += outcome if isinstance(outcome, list) else [failed]
    return found


def _attempt(tool: Tool, arguments: list[dict[str, Any]]) -> list[ToolResult] | BaseException:
    """Return the results of a batch, or the error of the tool."""
    try:
        results = list(tool.execute_batch(arguments))
    except ToolError as error:  # the agent's own mistake
        return [ToolResult(f"{tool.name}: {error}"[:500], ok=False)] if len(arguments) == 1 else error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a tool may raise anything
        return error
    if len(results) == len(arguments) and all(isinstance(r, ToolResult) and isinstance(r.text, str) for r in results):
        return [_cap_output(result, getattr(tool, "max_output", MAX_OUTPUT)) for result in results]
    return TypeError(f"returned {len(results)} results for {len(arguments)} calls, or not ToolResults with a text")


def _cap_output(result: ToolResult, longest: int) -> ToolResult:
    if len(result.text) <= longest:
        return result
    cut = f"[cut: {len(result.text)} characters, of which {longest} are shown]"
    return replace(result, text=f"{result.text[:longest]}\n{cut}")


def _with_unicode(call: ToolCall) -> ToolCall:
    """Replace lone surrogates in the arguments, so that they can be sent, stored and printed."""
    try:
        return replace(call, arguments=map_texts(call.arguments, encodable))
    except RecursionError:  # the check of the arguments reports this to the agent
        return call
