"""Conversions of chat messages between the forms of APIs, data files and chat templates, and a template's switch for thoughts."""

import hashlib
import json
import re
from functools import partial
from typing import Any

from agent_envs.formats.dialects import to_tool_call
from agent_envs.formats.notations import quote_free

_GAP = "\u2064"  # only while a template reads a text
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


def make_regular(messages: list[Message]) -> list[Message]:
    """Write a conversation with malformed turns as strict templates want it: with results after calls, and no empty turn."""
    regular: list[Message] = []
    for message in messages:
        calls = regular[-1].get("tool_calls") if regular else None
        if calls and message["role"] == "user":
            names = [(call["id"], call["function"]["name"]) for call in calls]
            told = {"role": "tool", "content": message["content"]}
            regular += [told | {"tool_call_id": id, "name": name} for id, name in names]
        else:
            is_empty = message["role"] == "assistant" and not (message["content"] or message.get("tool_calls"))
            regular.append({**message, "content": " "} if is_empty else message)
    return regular


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


def part_switch(message: Message) -> Message:
    """Part "/think" and ">" in what an agent is told: some templates (SmolLM3, Nemotron) take "/think" for a switch, and would
    find it in "</think>"."""
    if message["role"] not in ("system", "user") or not isinstance(message.get("content"), str):
        return message
    return message | {"content": message["content"].replace("/think>", f"/{_GAP}think>")}


def join_switch(text: str) -> str:
    """Undo `part_switch` in a rendered text."""
    return text.replace(f"/{_GAP}think>", "/think>")


def find_switch(tokenizer: Any, thinking: str) -> dict[str, bool]:
    """Return the template options for ``thinking``; none for "auto", or for a number if the template has no switch."""
    if thinking == "auto":
        return {}
    options = [dict.fromkeys(("enable_thinking", "thinking"), on) for on in (True, False)]
    hello = [{"role": "user", "content": "hello"}]
    write = partial(tokenizer.apply_chat_template, hello, tokenize=False, add_generation_prompt=True)
    try:
        prompts = [write(**each) for each in options]
    except Exception as error:  # a template may raise anything
        raise ValueError(f"the chat template cannot write a conversation: {error}") from error
    if prompts[0] != prompts[1]:
        return options[thinking == "off"]
    if not thinking.isdecimal():
        raise ValueError(f"the chat template has no switch for thoughts, got thinking {thinking!r}: leave it at auto")
    return {}
