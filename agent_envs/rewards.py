"""Rewards of a question-answering episode, itemised. Each term is a float of its own; the reward is their sum."""

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class QARewards:
    """The weight of each term; 0 turns one off.

    Attributes:
        answer: times exact match (or F1) of the submitted answer. The goal, so it outweighs all the rest.
        metric: ``"em"``, what the benchmarks report, or ``"f1"``, which also pays for an answer that is nearly right.
        format: for an episode that ends with an answer, times the share of its turns that could be parsed. Small: it
            only separates a wrong answer from none.
        progress: times the potential-based shaping term F = γΦ(s') − Φ(s) (Ng, Harada & Russell 1999), where Φ is the
            share of gold passages found. Φ is 0 once the episode is over, so the terms of an episode add up to zero at
            γ = 1 and the optimal policy stays where it is: what changes is *when* the agent hears of its success.
        gamma: γ of the shaping term; use the trainer's discount.
        invalid: for a turn that could not be parsed, or with a call that failed. Enough that a group of attempts ranks
            the clean ones first.
        repeat: for a turn whose calls were all made before: it costs a turn and brings nothing.
    """

    answer: float = 1.0
    metric: str = "em"
    format: float = 0.05
    progress: float = 0.3
    gamma: float = 1.0
    invalid: float = -0.1
    repeat: float = -0.05

    def __post_init__(self):
        for name in ("answer", "format", "progress", "gamma", "invalid", "repeat"):
            weight = getattr(self, name)
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
                raise ValueError(f"{name} must be a finite number, got {weight!r}")
        if self.metric not in ("em", "f1"):
            raise ValueError(f"metric must be 'em' or 'f1', got {self.metric!r}")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {self.gamma}")

    @classmethod
    def from_dict(cls, weights: dict | None) -> "QARewards":
        """Defaults with ``weights`` put over them; an unknown name is an error that lists the known ones."""
        known = [f.name for f in fields(cls)]
        if unknown := set(weights or {}) - set(known):
            raise ValueError(f"unknown reward weights {sorted(unknown)}; known: {known}")
        return cls(**(weights or {}))


def shaping(gamma: float, before: float, after: float, done: bool) -> float:
    """F = γΦ(s') − Φ(s), with Φ = 0 in the state after the last turn."""
    return (0.0 if done else gamma * after) - before
