"""Formats: the syntax of calls, answers and results.

A format goes both ways: `Format.parse` reads a turn and `Format.write` writes one, `Format.render` shows results.
"""

from collections.abc import Callable, Sequence
from importlib import import_module

from agent_envs.formats.base import Format
from agent_envs.formats.hermes import Hermes
from agent_envs.formats.native import Native
from agent_envs.formats.plain import Plain
from agent_envs.formats.react import React
from agent_envs.formats.tags import Ragen, SearchTags
from agent_envs.tools import Tool

FORMATS: dict[str, type[Format]] = {kind.name: kind for kind in (SearchTags, Ragen, Hermes, React, Native)}
# Plain text can only call the one tool of a hosted environment.
_MADE: dict[str, type[Format]] = {**FORMATS, Plain.name: Plain}


def make_format(kind: str | Callable[..., Format], tools: Sequence[Tool], *, answers: bool = True) -> Format:
    """Make a format for these tools.

    Args:
        kind: a name of `FORMATS`, or "plain"; a subclass of `Format`; or ``"module:Class"``.
        tools: tools that the agent may call.
        answers: whether the agent may give a final answer.

    Raises:
        ValueError: there is no such format, or these tools cannot be called in it.
    """
    make = find_format(kind) if isinstance(kind, str) else kind
    if not callable(make):
        raise ValueError(f"format must be a name, a class or 'module:Class', got {kind!r}")
    return make(tools, answers=answers)


def find_format(name: str) -> Callable[..., Format]:
    """Return the class of a format by its name or ``"module:Class"``. Raises ValueError if there is none."""
    if name in _MADE:
        return _MADE[name]
    module, colon, of_module = name.partition(":")
    if not colon:
        raise ValueError(f"there is no format {name!r}; there are: {', '.join(_MADE)}, or your own as 'module:Class'")
    try:
        return getattr(import_module(module), of_module)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"format {name!r} cannot be imported: {error}") from error


__all__ = [
    "FORMATS",
    "Format",
    "Hermes",
    "Native",
    "Plain",
    "Ragen",
    "React",
    "SearchTags",
    "find_format",
    "make_format",
]
