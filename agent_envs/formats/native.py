"""Function calls in the form of the chat API, which chat templates and APIs translate to a model's own syntax."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from agent_envs.formats.base import Format, Malformed, Unfinished, check_tools, exact, make_turn, total
from agent_envs.formats.blocks import split_thought
from agent_envs.formats.json_text import dumps, function_schema, read_object, read_value
from agent_envs.tools import Tool
from agent_envs.types import ToolCall, ToolResult, Turn

NATIVE_CALLS = "Use the functions that you are given."
ANSWER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "answer",
        "description": "Give the final answer, as short as possible, and finish.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "the final answer"}},
            "required": ["text"],
        },
    },
}


class Native(Format):
    """A turn is the assistant message of the chat-completions API, as JSON; results are messages of the role "tool".

    A pretrained model reads and writes them in the syntax of its chat template (`agent_envs.chat_tokens.ChatTokens`), a model of
    an API in that of the API.

    The final answer is a call of `ANSWER`: tasks want one exact string, so text without a call is no action. Reasoning is in
    ``reasoning_content`` or ``reasoning``, or ``<think>…</think>`` at the start of the content. ``error`` is the reason why
    a turn is malformed; ``unfinished`` is true if it lacks its end. Other keys are ignored. A call without an id is known by its
    place in the turn: ``call_0``, ``call_1`` in text, "" in a `ToolCall`.
    """

    name = "native"
    stop: tuple[str, ...] = ()

    def __init__(self, tools: Sequence[Tool], *, answers: bool = True):
        check_tools(tools, answers, reserved=("answer",) * answers)
        self._tools, self._answers = tools, answers

    def schemas(self) -> list[dict[str, Any]]:
        """Return the list for the ``tools`` argument of the API or of a chat template."""
        return [function_schema(tool) for tool in self._tools] + [ANSWER] * self._answers

    def instructions(self) -> str:
        """Explain the tools to an agent that is given `schemas`."""
        finish = "To finish, call answer with the final answer alone."
        return " ".join([NATIVE_CALLS] * bool(self._tools) + [finish] * self._answers)

    @total
    def parse(self, text: str) -> Turn:
        text = text.strip()
        thoughts, text = ([], text) if text.startswith("{") else split_thought(text)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if text.lstrip().startswith("{"):
            message = read_object(text, "The message")
        if message.get("role") != "assistant":
            raise Malformed('The message must have "role": "assistant".')
        if isinstance(message.get("error"), str):
            raise (Unfinished if message.get("unfinished") else Malformed)(message["error"])
        content = message.get("content") or ""
        reasoning = [message[key] for key in ("reasoning_content", "reasoning") if message.get(key) is not None][:1]
        if not all(isinstance(part, str) for part in [content, *reasoning]):
            raise Malformed('The "content" of the message must be a string or null, and its reasoning too.')
        thoughts += [*map(str.strip, reasoning), *split_thought(content)[0]]
        calls = _read_calls(message.get("tool_calls") or [])
        if not calls:
            raise Malformed(f"No function was called: call one.{' To finish, call answer.' * self._answers}")
        answers: list[str] = []
        if any(call.name == "answer" for call in calls) and all(tool.name != "answer" for tool in self._tools):
            answers = [_read_answer(call) for call in calls if call.name == "answer"]
            calls = [call for call in calls if call.name != "answer"]
        return make_turn(thoughts, calls, answers, "a call", self._answers)

    @exact
    def write(self, turn: Turn) -> str:
        message: dict[str, Any] = {"role": "assistant", "content": None}
        if turn.thought is not None:
            message["reasoning_content"] = turn.thought
        calls = [*turn.calls, *[ToolCall("answer", {"text": turn.answer})] * (turn.answer is not None)]
        message["tool_calls"] = [_write_call(call, place) for place, call in enumerate(calls)]
        return dumps(message)

    def render(self, turn: Turn, results: list[ToolResult]) -> str:
        ids = [call.id or _id(place) for place, call in enumerate(turn.calls)]
        told = zip(turn.calls, ids, results, strict=True)
        return dumps(
            [{"role": "tool", "tool_call_id": id, "name": call.name, "content": r.text} for call, id, r in told]
        )

    def render_error(self, error: str) -> str:
        return dumps([{"role": "user", "content": f"Invalid turn: {error}"}])

    def message(self, action: str) -> dict[str, Any]:
        """Convert an action to a message of a chat, always with the same keys; if it is no JSON object, it is the content."""
        try:
            message = read_object(action, "The message")
        except Malformed:
            return {"role": "assistant", "content": action, "reasoning_content": "", "tool_calls": []}
        thought = message.get("reasoning_content") or message.get("reasoning") or ""
        calls = message.get("tool_calls") or []
        return {
            "role": "assistant", "content": message.get("content") or "", "reasoning_content": thought, "tool_calls": calls,
        }  # fmt: skip

    def messages(self, observation: str) -> list[dict[str, Any]]:
        """Convert a reply to messages of a chat; any other text is a message of the user."""
        with suppress(Malformed):
            made = read_value(observation, "")
            if (
                made
                and isinstance(made, list)
                and all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in made)
            ):
                return made
        return [{"role": "user", "content": observation}]


def _read_answer(call: ToolCall) -> str:
    text = call.arguments.get("text")
    if not isinstance(text, str) or not text.strip():
        raise Malformed('answer: give the final answer as "text".')
    return text.strip()


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
    arguments = "{}" if arguments in (None, "") else arguments  # some servers write none
    if not isinstance(arguments, str):
        raise Malformed('The "arguments" of a function must be a string that holds a JSON object.')
    given = call.get("id") or ""
    return ToolCall(
        name, read_object(arguments, 'The "arguments" of a function'), id="" if given == _id(place) else given
    )


def _write_call(call: ToolCall, place: int) -> dict[str, Any]:
    function = {"name": call.name, "arguments": dumps(call.arguments)}
    return {"id": call.id or _id(place), "type": "function", "function": function}
