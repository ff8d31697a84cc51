"""Messages of an OpenAI-compatible API: request turns, read answers, and send messages back."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_envs.formats.json_text import dumps, read_object
from agent_envs.integrations.episode import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How to request a turn, and how to read its answer.

    Attributes:
        fields: further fields of the request, besides the model and the messages.
        end_turn: `Episode.end_turn` if turns are text; None if they may have function calls.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    end_turn: Callable[..., tuple[str, bool]] | None = None

    @property
    def native(self) -> bool:
        """Whether turns may have function calls."""
        return self.end_turn is None


def read_turn(body: bytes, form: Form) -> tuple[Message, Message, bool]:
    """Read an answer; return the assistant message, its token usage, and whether a length limit cut it. The message has strings
    as ``content`` and ``reasoning_content``, and a list of ``tool_calls`` with ids and names. Raises ValueError if invalid."""
    try:
        answer = json.loads(json.dumps(json.loads(body), ensure_ascii=False).encode("utf-8", "replace"))
        choice = answer["choices"][0]
        message = choice["message"]
        content = _read_text(message.get("content"))
        reasoning = _read_text(message.get("reasoning_content") or message.get("reasoning"))
        calls = [_read_call(call, place) for place, call in enumerate(message.get("tool_calls") or [])]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"the answer is no chat completion: {body[:200].decode('utf-8', 'replace')!r}") from None
    if len({call["id"] for call in calls}) < len(calls):
        calls = [{**call, "id": f"call_{place}"} for place, call in enumerate(calls)]
    cut = choice.get("finish_reason") == "length"
    if form.end_turn:
        content, cut = form.end_turn(content, cut=cut)
        calls = []
    usage = answer.get("usage")
    response = {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": calls}
    return response, usage if isinstance(usage, dict) else {}, cut


def thinks(response: Message) -> str:
    """Return the state of the thought in an answer: "" for none, "ended", or "still" if nothing follows it."""
    content = response["content"]
    if "</think>" in content or (response["reasoning_content"] and (content or response["tool_calls"])):
        return "ended"
    return "still" if "<think>" in content or response["reasoning_content"] else ""


def _read_text(content: Any) -> str:
    """Return the text of a content, which may be a list of parts."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") == "text")
    if not isinstance(content, str | None):
        raise TypeError
    return content or ""


def _read_call(call: Any, place: int) -> dict[str, Any]:
    function = call.get("function") or {}
    name, arguments = function.get("name"), function.get("arguments")
    written = arguments if isinstance(arguments, str) else dumps({} if arguments is None else arguments)
    made = {"name": name if isinstance(name, str) and name else "unknown", "arguments": written}
    return {**call, "id": call.get("id") or f"call_{place}", "type": "function", "function": made}


def to_send(message: Message, quirks: frozenset[str]) -> Message:
    """Convert a message for the API. An assistant's message loses its thought, unless the API needs it, and its arguments
    become valid JSON, as some chat templates fail otherwise."""
    if "tool_calls" not in message:
        return message
    sent: Message = {"role": "assistant", "content": message["content"] or None}
    if message["tool_calls"]:
        sent["tool_calls"] = [_with_json_arguments(call) for call in message["tool_calls"]]
    elif not message["content"]:
        sent["content"] = "(nothing)"  # some APIs refuse an empty message
    if "reasoning" in quirks:
        sent["reasoning_content"] = message.get("reasoning_content") or ""
    return sent


def _with_json_arguments(call: dict[str, Any]) -> dict[str, Any]:
    written = call["function"]["arguments"] or "{}"
    try:
        read_object(written, "")
    except ValueError:
        written = dumps({"unreadable": written})
    return {**call, "function": {**call["function"], "arguments": written}}
