"""Rewriting of the conversation that the agent sees (Agent-R1's step-level MDP).

A context is a list of messages, ``{"role": "user" | "assistant", "content": text}``, that begins with the task. A
rewriting maps the whole conversation to a context after every turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib import import_module

from agent_envs.formats import Native
from agent_envs.formats.json_text import dumps

Messages = list[dict[str, str]]
Rewriting = Callable[[Messages], Messages]
_INERT = str.maketrans("<>", "‹›")
_NATIVE = Native([])
_THOUGHT = re.compile(r"(?:.*?</think>)?(?:\s*Thought:.*?(?=^Action:))?", re.DOTALL | re.MULTILINE)  # always matches
_LINE = 200  # characters of a turn, and of its observation, that a summary keeps


def make_context(spec: str | Rewriting) -> Rewriting | None:
    """Make a rewriting by name; None if the context only grows.

    Args:
        spec: ``"append"``; ``"template"``, see `keep_all`; ``"window:n"``, the task and the last n turns; ``"summary:n"``, the
            same with a line for each earlier turn; ``"module:function"``, or a function.

    Raises:
        ValueError: ``spec`` is none of these.
    """
    if callable(spec):
        return spec
    if spec == "append":
        return None
    if spec == "template":
        return keep_all
    kind, _, value = str(spec).partition(":")
    if kind in _KINDS:
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            raise ValueError(f"context {spec!r}: the number of turns must be 1 or more, as in '{kind}:2'")
        return partial(_KINDS[kind], turns=int(value))
    try:
        function = getattr(import_module(kind), value)
    except (ImportError, AttributeError, ValueError) as error:
        known = "'append', 'template', 'window:n', 'summary:n' or 'module:function'"
        raise ValueError(f"context must be {known}, got {spec!r} ({error})") from error
    if not callable(function):
        raise ValueError(f"context {spec!r} is not a function")
    return function


def keep_all(messages: Messages) -> Messages:
    """Keep all messages; the chat template writes them again for each turn, and keeps or drops earlier thoughts by its own rule.
    With "append" instead, all sampled ids stay, and an episode is one sequence of ids."""
    return messages


def keep_last(messages: Messages, turns: int) -> Messages:
    """Keep the task and the last ``turns`` turns, each with its observation."""
    return [messages[0], *messages[1:][-2 * turns :]]


def summarise(messages: Messages, turns: int) -> Messages:
    """Apply `keep_last`, and add to the task one line for each turn left out, without its thought."""
    task, *kept = keep_last(messages, turns)
    left_out = messages[1 : len(messages) - len(kept)]
    if not left_out:
        return messages
    pairs = zip(left_out[::2], left_out[1::2], strict=True)
    lines = [f"{n}. {_short(turn)} -> {_short(back)}" for n, (turn, back) in enumerate(pairs, 1)]
    told = task["content"] + "\n\nYour turns before, in short:\n" + "\n".join(lines)
    return [{"role": "user", "content": told}, *kept]


_KINDS = {"window": keep_last, "summary": summarise}


def _short(message: dict[str, str]) -> str:
    text = message["content"]
    if message["role"] == "user":
        text = " ".join(str(reply["content"]) for reply in _NATIVE.messages(text))
    elif calls := _NATIVE.parse(text).calls:
        text = " ".join(f"{call.name} {dumps(call.arguments)}" for call in calls)
    else:
        made = _NATIVE.message(text)
        text = str(made["content"]) if made["content"] or made["reasoning_content"] else text
        text = _THOUGHT.sub("", text, count=1)
    # The text of a tool is outside of its block here, so it must not look like a block or a turn.
    text = " ".join(text[: 4 * _LINE].translate(_INERT).split())
    return text if len(text) <= _LINE else text[: _LINE - 1] + "…"
