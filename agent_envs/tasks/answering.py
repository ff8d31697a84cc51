"""Shared parts of the tasks that end with a right or wrong answer."""

from collections.abc import Callable
from typing import Any

from agent_envs.rewards import AtEnd, Format, Invalid, Metric, Repeat, Reward, Shaping
from agent_envs.types import ToolCall, Turn, TurnOutcome

ANSWER_REWARD = Reward(
    answer=(1.0, AtEnd(Metric("success"))),
    format=(0.05, Format()),
    progress=(0.3, Shaping("progress")),
    invalid=(-0.1, Invalid()),
    repeat=(-0.05, Repeat()),
)


def call(name: str, /, **arguments: Any) -> Turn:
    """A turn with one call of a tool."""
    return Turn(calls=(ToolCall(name, arguments),))


def score_answer(turn: Turn, done: bool, progress: float, is_right: Callable[[str], bool], **golds: Any) -> TurnOutcome:
    """The outcome of a turn: the metric ``progress`` and, if ``done``, ``success``; ``golds`` are reported with the answer."""
    if not done:
        return TurnOutcome({"progress": progress})
    prediction = turn.answer or ""
    metrics = {"progress": progress, "success": float(is_right(prediction))}
    return TurnOutcome(metrics, {"prediction": prediction, **golds})
