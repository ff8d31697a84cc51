"""The values that tools, formats and environments exchange."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A request to run one tool. ``id`` is the name that formats with call ids gave it."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool did; what it means for the task is decided by the environment.

    Attributes:
        text: what the agent reads.
        data: the raw result for the environment's own bookkeeping; for a search, the list of passages.
        ok: False where the call failed; ``text`` then says why.
        fault: the tool itself broke or ran out of time, which no call should make it do: not the agent's mistake.
    """

    text: str
    data: Any = None
    ok: bool = True
    fault: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One parsed assistant turn: tool calls, or a final answer, or an error that the agent should read.

    Attributes:
        thought: the reasoning in front of them, where the format has a place for it; None where it was left out.
        unfinished: what is wrong with the turn is that it ends within a thought, a call or an answer.
        cut: sampling reached its limit before the turn ended, so the turn is no action.
    """

    calls: tuple[ToolCall, ...] = ()
    answer: str | None = None
    error: str | None = None
    thought: str | None = None
    unfinished: bool = field(default=False, compare=False)
    cut: bool = False

    @property
    def is_mistake(self) -> bool:
        """Whether the turn is invalid by the agent's own doing: unreadable, and not `CUT`."""
        return self.error is not None and self.error != CUT.error


CUT = Turn(error="The turn was cut at the longest length that a turn may have, before it ended. Write less.", cut=True)


@dataclass(slots=True)
class History:
    """What has happened in an episode so far, kept by the environment."""

    turns: list[Turn] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)


@dataclass(slots=True)
class TurnOutcome:
    """What a turn came to, as the task reports it.

    Attributes:
        metrics: numbers that reward terms are made from; they are shown in ``info`` as well.
        info: anything else for ``info``.
        terminated: the task ended with this turn, as a solved puzzle does; a final answer always ends it.
        truncated: a budget of the task's own ran out.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class TurnContext:
    """A turn as reward terms see it: the agent's own text and the environment's own records, nothing a tool wrote."""

    turn: Turn
    metrics: dict[str, float]  # the task's, after this turn
    previous_metrics: dict[str, float]  # and after the turn before it
    done: bool  # the episode ends with this turn
    number: int  # of the turn, from 1
    previous_turns: list[Turn]
    failed: bool  # it could not be parsed, or a call in it failed by the agent's mistake
    repeated: bool  # it makes calls, and all of them were made before
