"""Turns as messages of the OpenAI chat API, for agents behind an API."""

from collections.abc import Sequence
from typing import Any

from agent_envs.formats.base import Format, Malformed, check_tools, exact, make_turn, total
from agent_envs.formats.blocks import split_thought
from agent_envs.formats.json_text import dumps, function_schema, read_object
from agent_envs.tools import Tool
from agent_envs.types import ToolCall, ToolResult, Turn

NATIVE_CALLS = "Use the functions that you are given; several calls in one message run together."


class OpenAI(Format):
    """A turn is the assistant message of the chat-completions API, as JSON; results are messages of the role "tool".

    ``content`` without ``tool_calls`` is the final answer, and so is text that is no JSON object. Reasoning is in
    ``reasoning_content`` or ``reasoning``, or ``<think>…</think>`` at the start of the content. Other keys are ignored.
    A call without an id goes by its place in the turn: ``call_0``, ``call_1`` in text, "" in a `ToolCall`.
    """

    name = "openai"
    special_tokens = False
    stop: tuple[str, ...] = ()

    def __init__(self, tools: Sequence[Tool], *, answers: bool = True):
        check_tools(tools, answers)
        self._tools, self._answers = tools, answers
        usage = ['{"role": "assistant", "content": null, "tool_calls": […]}'] * bool(tools) + [
            "the answer as text"
        ] * answers
        self._usage = " or ".join(usage)

    def schemas(self) -> list[dict[str, Any]]:
        """The list for the ``tools`` argument of the API."""
        return [function_schema(tool) for tool in self._tools]

    def instructions(self) -> str:
        """For an agent that is shown `schemas` by its API."""
        text = ""
        if self._tools:
            text = NATIVE_CALLS
        if self._answers:
            text += " To finish, reply with the final answer alone, as short as possible, and call nothing."
        return text.strip()

    @total
    def parse(self, text: str) -> Turn:
        text = text.strip()
        thoughts, text = ([], text) if text.startswith("{") else split_thought(text)
        message = {"content": text}
        if text.lstrip().startswith("{"):
            message = read_object(text, "The message")
            if message.get("role") != "assistant":
                raise Malformed('The message must have "role": "assistant".')
        content = message.get("content") or ""
        reasoning = [message[key] for key in ("reasoning_content", "reasoning") if message.get(key) is not None][:1]
        if not all(isinstance(part, str) for part in [content, *reasoning]):
            raise Malformed('The "content" of the message must be a string or null, and its reasoning too.')
        within, content = split_thought(content)
        thoughts += [*map(str.strip, reasoning), *within]
        calls = _read_calls(message.get("tool_calls") or [])
        answers = [content.strip()] if content.strip() and not calls else []
        return make_turn(thoughts, calls, answers, self._usage, self._answers)

    @exact
    def write(self, turn: Turn) -> str:
        message: dict[str, Any] = {"role": "assistant", "content": turn.answer}
        if turn.thought is not None:
            message["reasoning_content"] = turn.thought
        if turn.calls:
            message["tool_calls"] = [_write_call(call, place) for place, call in enumerate(turn.calls)]
        return dumps(message)

    def render(self, turn: Turn, results: list[ToolResult]) -> str:
        ids = [call.id or _id(place) for place, call in enumerate(turn.calls)]
        pairs = zip(ids, results, strict=True)
        return dumps([{"role": "tool", "tool_call_id": id, "content": result.text} for id, result in pairs])

    def render_error(self, error: str) -> str:
        return dumps([{"role": "user", "content": f"Invalid turn: {error}"}])


def _id(place: int) -> str:
    return f"call_{place}"


def _read_calls(made: Any) -> list[ToolCall]:
    if not isinstance(made, list):
        raise Malformed('"tool_calls" must be a list.')
    ids = [call.get("id") or _id(place) for place, call in enumerate(made) if isinstance(call, dict)]
    if not all(isinstance(id, str) for id in ids) or len(set(ids)) < len(ids):
        raise Malformed('Each of the "tool_calls" must have a string of its own as "id".')
    return [_read_call(call, place) for place, call in enumerate(made)]


def _read_call(call: Any, place: int) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) and call.get("type", "function") == "function" else None
    if not isinstance(function, dict) or not isinstance(name := function.get("name"), str):
        raise Malformed('Each of the "tool_calls" must have "type": "function" and a "function" with a "name".')
    arguments = function.get("arguments")
    arguments = "{}" if arguments in (None, "") else arguments  # as some servers write none
    if not isinstance(arguments, str):
        raise Malformed('The "arguments" of a function must be a string that holds a JSON object.')
    given = call.get("id") or ""
    return ToolCall(
        name, read_object(arguments, 'The "arguments" of a function'), id="" if given == _id(place) else given
    )


def _write_call(call: ToolCall, place: int) -> dict[str, Any]:
    function = {"name": call.name, "arguments": dumps(call.arguments)}
    return {"id": call.id or _id(place), "type": "function", "function": function}
