"""The Responses API on top of chat: a request becomes the body of a chat call, and its turn a response.

Text and function calls are supported. Nothing is kept between requests: ``input`` is the whole conversation each time.
"""

import secrets
from collections.abc import Mapping
from typing import Any

from trainers.agents.calls import CallRefused, Message, Turn, text_of

_MEMORY = ("previous_response_id", "conversation", "prompt", "background")
_SAME = ("model", "temperature", "tool_choice")
Item = dict[str, Any]


def read_request(body: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a request into the body of a chat call. Raises CallRefused for what chat calls do not support."""
    if kept := [name for name in _MEMORY if body.get(name)]:
        raise CallRefused(
            400, f"{kept[0]} cannot be used: nothing is kept here, so send the whole conversation as input"
        )
    if body.get("stream"):
        raise CallRefused(400, "a response comes in one piece here: leave out stream, or use chat completions")
    items, tools, text = body.get("input"), body.get("tools") or [], body.get("text")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise CallRefused(400, f"input must be text or a list of items, got {items!r}"[:300])
    for tool in tools if isinstance(tools, list) else [None]:
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise CallRefused(400, f"tools must be functions of your program, got {tool!r}"[:300])
    system = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    told = ("name", "description", "parameters")
    chat = {name: body[name] for name in _SAME if body.get(name) is not None}
    return chat | {
        "messages": [*system, *_read_items(items)],
        "tools": [{"type": "function", "function": {n: tool[n] for n in told if tool.get(n)}} for tool in tools],
        "max_tokens": body.get("max_output_tokens"),
        "response_format": text.get("format") if isinstance(text, dict) else text,
    }  # fmt: skip


def _read_items(items: list[Item]) -> list[Message]:
    """Translate items into messages: the thought, the text and the function calls of a turn are one message."""
    messages, thought = list[Message](), ""
    for item in items:
        kind = item.get("type", "message")
        if kind == "reasoning":
            thought = text_of(item.get("content") or item.get("summary"))
            continue
        if kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call":
            if thought or not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            made = {"id": item.get("call_id"), "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(made)
        elif kind == "function_call_output":
            output = {"tool_call_id": item.get("call_id"), "content": item.get("output")}
            messages.append({"role": "tool", **output})
        else:
            raise CallRefused(400, f"input may hold messages and function calls, got an item of type {kind!r}")
        if thought and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = thought
        thought = ""
    return messages


def write_response(turn: Turn, body: Mapping[str, Any]) -> dict[str, Any]:
    """Write a turn as a response. A cut turn is "incomplete" only if the request set a limit, since some clients raise on it."""
    message, sampled = turn.message, turn.completion_tokens
    was_cut = turn.finish_reason == "length" and body.get("max_output_tokens")
    status = "incomplete" if was_cut else "completed"
    output = list[Item]()
    if thought := message.get("reasoning_content"):
        output.append({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]})
    calls = message.get("tool_calls") or []
    if message["content"] or not calls:
        text = {"type": "output_text", "text": message["content"], "annotations": []}
        output.append({"type": "message", "role": "assistant", "status": status, "content": [text]})
    output += [{"type": "function_call", "call_id": call["id"], "status": status, **call["function"]} for call in calls]
    for item in output:
        item["id"] = _make_id("item")
    return {
        "id": _make_id("resp"), "object": "response", "created_at": 0, "status": status, "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "model": body.get("model") or "policy", "output": output, "instructions": body.get("instructions"),
        "tools": body.get("tools") or [], "tool_choice": body.get("tool_choice") or "auto",
        "parallel_tool_calls": True, "metadata": {}, "temperature": None, "top_p": None,
        "usage": {
            "input_tokens": turn.prompt_tokens, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": sampled, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": turn.prompt_tokens + sampled,
        },
    }  # fmt: skip


def _make_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
