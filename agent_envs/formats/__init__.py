"""How an agent writes its calls and answers, and how results are shown to it.

A format goes both ways: `Format.parse` reads a turn and `Format.write` writes one, `Format.render` shows results.
"""

from collections.abc import Sequence

from agent_envs.formats.base import Format
from agent_envs.formats.hermes import Hermes
from agent_envs.formats.native import Native
from agent_envs.formats.plain import Plain
from agent_envs.formats.react import React
from agent_envs.formats.tags import Ragen, SearchTags
from agent_envs.tools import Tool

FORMATS: dict[str, type[Format]] = {kind.name: kind for kind in (SearchTags, Ragen, Hermes, React, Native)}
# Plain text can call nothing but the one tool of a hosted environment.
_MADE: dict[str, type[Format]] = {**FORMATS, Plain.name: Plain}


def make_format(name: str, tools: Sequence[Tool], *, answers: bool = True) -> Format:
    """The format of that name for these tools.

    Args:
        name: one of `FORMATS`, or "plain".
        tools: what the agent may call.
        answers: whether it may give a final answer.

    Raises:
        ValueError: no such format, or one that these tools cannot be called in.
    """
    if name not in _MADE:
        raise ValueError(f"there is no format {name!r}; there are: {', '.join(_MADE)}")
    return _MADE[name](tools, answers=answers)


__all__ = ["FORMATS", "Format", "Hermes", "Native", "Plain", "Ragen", "React", "SearchTags", "make_format"]
