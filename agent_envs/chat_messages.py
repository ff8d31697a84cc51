"""Conversions of chat messages between the forms of APIs, data files and chat templates."""

import hashlib
import json
import re
from typing import Any

from agent_envs.formats.dialects import to_tool_call
from agent_envs.formats.notations import quote_free

Message = dict[str, Any]
Schemas = list[dict[str, Any]]  # of functions, as chat templates take them


def read_arguments(call: Message) -> Any:
    """Return the arguments of a call as an object; some APIs and files give none, or JSON text."""
    given = call["function"].get("arguments")
    if given in (None, ""):
        return {}
    return json.loads(given) if isinstance(given, str) else given


def split_thought_off(message: Message) -> Message:
    """Move the thought at the start of a message's content to ``reasoning_content``."""
    begun, closed, rest = message["content"].lstrip().partition("</think>")
    if not closed or not begun.startswith("<think>") or message.get("reasoning_content"):
        return message
    return {**message, "reasoning_content": begun.removeprefix("<think>").strip(), "content": rest.lstrip()}


def quote_strings(message: Message) -> Message:
    """Escape the string arguments of a message's calls as between quotes (`quote_free`)."""
    if not (calls := message.get("tool_calls")):
        return message
    quoted = [
        to_tool_call(one["name"], {name: quote_free(value) for name, value in one["arguments"].items()}, call["id"])
        for call in calls
        for one in [call["function"]]
    ]
    return {**message, "tool_calls": quoted}


def short_id(id: str) -> str:
    """Return the id if it has the form of Mistral's templates, else one derived from it."""
    return id if re.fullmatch(r"[a-zA-Z0-9]{9}", id) else hashlib.sha256(id.encode()).hexdigest()[:9]
