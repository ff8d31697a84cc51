"""Values that tools, formats and environments exchange."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A request to run one tool.

    ``id`` is set by formats with call ids.
    """

    name: str
    arguments: dict[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool.

    Attributes:
        text: what the agent reads.
        data: the raw result for the environment's own records; for a search, the list of passages.
        ok: False if the call failed; ``text`` then gives the reason.
        fault: the tool itself broke or ran out of time (a tool failure), which is not the agent's mistake.
    """

    text: str
    data: Any = None
    ok: bool = True
    fault: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """A parsed turn: tool calls, a final answer, or an error.

    Attributes:
        thought: the reasoning before calls and answer, if the format has a place for it; None if there is none.
        unfinished: the turn ends within a thought, a call or an answer.
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
        """Whether the turn is malformed by the agent's own mistake, and not `CUT`."""
        return self.error is not None and not (self.cut and self.error == CUT.error)


CUT = Turn(error="The turn was cut at the longest length that a turn may have, before it ended. Write less.", cut=True)


@dataclass(slots=True)
class History:
    """The turns and calls of an episode, kept by the environment."""

    turns: list[Turn] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)


@dataclass(slots=True)
class TurnOutcome:
    """The result of a turn, as the task reports it.

    Attributes:
        metrics: numbers for reward terms, also in ``info``.
        info: other entries of ``info``.
        terminated: the task ended with this turn, as a solved puzzle does; a final answer always ends it.
        truncated: a budget of the task ran out.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False

    def __post_init__(self):
        self.metrics = {name: float(value) for name, value in self.metrics.items()}  # a success may be a bool


@dataclass(frozen=True, slots=True)
class TurnContext:
    """A turn as reward terms see it, without tool output."""

    turn: Turn
    metrics: dict[str, float]  # the task's, after this turn
    previous_metrics: dict[str, float]  # the task's, after the previous turn
    done: bool  # the episode ends with this turn
    number: int  # of the turn, from 1
    previous_turns: list[Turn]
    failed: bool  # it could not be parsed, or a call in it failed by the agent's mistake
    repeated: bool  # it makes calls, and all of them were made before
