"""The base of all formats."""

import re
import reprlib
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, Protocol

from agent_envs.tools import Tool
from agent_envs.types import ToolCall, ToolResult, Turn


class Format(Protocol):
    """The syntax of calls, answers and results.

    A format knows syntax only: it does not check whether a tool exists or whether the arguments fit it.

    Attributes:
        name: its name for `make_format`.
        stop: strings that end a turn, for the sampler.
        tags: tags that it writes in addition to ``<think>``, which some tokenizers have as special tokens.
    """

    name: str
    stop: tuple[str, ...]
    tags: tuple[str, ...] = ()

    def __init__(self, tools: Sequence[Tool], *, answers: bool = True): ...

    def instructions(self) -> str:
        """Explain how to call these tools and how to finish, to be put after the text of the task."""
        ...

    def parse(self, text: str) -> Turn:
        """Read one assistant turn. Any string gives a Turn, in time linear in its length; never raises.

        Text in a thought, or posing as the result of a tool, is never a call or an answer.
        """
        ...

    def write(self, turn: Turn) -> str:
        """Write a turn, the inverse of `parse`: ``parse(write(turn)) == turn``.

        Raises:
            ValueError: the turn cannot be expressed in this format.
        """
        ...

    def render(self, turn: Turn, results: list[ToolResult]) -> str:
        """Write the reply to ``turn.calls``: the results, in order. No result can end its block or pose as anything else."""
        ...

    def render_error(self, error: str) -> str:
        """Write the reply to a rejected turn."""
        ...

    def schemas(self) -> list[dict[str, Any]]:
        """Return the functions for the chat template or the API; none if `instructions` describe them."""
        return []

    def message(self, action: str) -> dict[str, Any]:
        """Convert an action to a message of a chat."""
        return {"role": "assistant", "content": action}

    def messages(self, observation: str) -> list[dict[str, Any]]:
        """Convert a reply, as `render` and `render_error` wrote it, to messages of a chat."""
        return [{"role": "user", "content": observation}]


class Malformed(ValueError):
    """The turn is malformed; the agent reads the message."""


class Unfinished(Malformed):
    """The turn ends within a thought, a call or an answer."""


def total(read: Callable[[Any, str], Turn]) -> Callable[[Any, str], Turn]:
    """Decorate a ``parse`` that raises `Malformed`, so that it returns a Turn with that error instead."""

    @wraps(read)
    def parse(self, text: str) -> Turn:
        try:
            return read(self, text)
        except Malformed as problem:
            return Turn(error=str(problem), unfinished=isinstance(problem, Unfinished))

    return parse


def exact(express: Callable[[Any, Turn], str]) -> Callable[[Any, Turn], str]:
    """Decorate a ``write``, so that it raises ValueError if its text would not be parsed as the same turn."""

    @wraps(express)
    def write(self, turn: Turn) -> str:
        try:
            text = express(self, turn)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as problem:
            raise ValueError(f"the format {self.name!r} cannot express {reprlib.repr(turn)}: {problem}") from problem
        read = self.parse(text)
        if read != turn:
            why = read.error or f"it would be read as {reprlib.repr(read)}"
            raise ValueError(f"the format {self.name!r} cannot express {reprlib.repr(turn)}: {why}")
        return text

    return write


def check_tools(tools: Sequence[Tool], answers: bool, reserved: Iterable[str] = ()) -> None:
    """Raise ValueError if names are invalid, reserved or repeated, or if there are neither tools nor answers."""
    names = [tool.name for tool in tools]
    if not names and not answers:
        raise ValueError("an agent without tools and without answers can do nothing: give it a tool, or answers=True")
    for name in names:
        if not re.fullmatch(r"\w[\w./-]*", name):
            raise ValueError(f"a tool's name is made of letters, digits, '_', '-', '.' and '/', got {name!r}")
        if name in reserved:
            raise ValueError(f"a tool cannot be called {name!r}, which means something else in this format: rename it")
    if len(set(names)) < len(names):
        raise ValueError(f"two tools have the same name: {names}")


def make_turn(
    thoughts: list[str], calls: list[ToolCall], answers: list[str], usage: str, may_answer: bool = True
) -> Turn:
    """Make a turn of its parsed parts, or raise `Malformed`. ``usage`` tells the agent what it may write."""
    if answers and not may_answer:
        raise Malformed(f"There is no final answer here. Write {usage}.")
    if not calls and not answers:
        raise Malformed(f"There is no action. Write {usage}.")
    if answers and (calls or len(answers) > 1):
        raise Malformed("A turn either calls tools or gives exactly one answer.")
    if answers and not answers[0]:
        raise Malformed(f"The answer is empty. Write {usage}.")
    thought = "\n".join(filter(None, thoughts)) if thoughts else None
    return Turn(calls=tuple(calls), answer=answers[0] if answers else None, thought=thought)
