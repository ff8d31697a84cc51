"""The words that tools, formats and environments exchange."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A request to run one tool."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool did, with no opinion on what it means for the task.

    Attributes:
        text: what the agent reads.
        data: the raw result for the environment's own bookkeeping; for a search, the list of passages.
        ok: False where the call failed; ``text`` then says why.
    """

    text: str
    data: Any = None
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Turn:
    """One parsed assistant turn: tool calls, or a final answer, or an error that the agent should read."""

    calls: tuple[ToolCall, ...] = ()
    answer: str | None = None
    error: str | None = None


@dataclass(slots=True)
class History:
    """What has happened in an episode so far, kept by the environment."""

    turns: list[Turn] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
