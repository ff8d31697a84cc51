"""A small algebra of reward terms.

A **term** is a function of a `TurnContext` that returns a float. A `Reward` is a weighted sum of named terms:

    >>> print(Reward(answer=(1.0, AtEnd(Metric("em"))), progress=(0.3, Shaping("support_recall"))))
    answer    1     × em at the end
    progress  0.3   × γ·Φ(s') − Φ(s) with Φ = support_recall, γ = 1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from agent_envs.types import TurnContext

Term = Callable[[TurnContext], float]


class _Term:
    """Base of the terms here; prints as ``SAYS``, filled in with the fields of the term."""

    SAYS: ClassVar[str]

    def __str__(self) -> str:
        return self.SAYS.format(**{k: _name(v) if callable(v) else v for k, v in vars(self).items()})


# -- what a turn is worth ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric(_Term):
    """A metric that the task reports for this turn; 0 if it reports none."""

    name: str
    SAYS = "{name}"

    def __call__(self, context: TurnContext) -> float:
        return context.metrics.get(self.name, 0.0)


@dataclass(frozen=True)
class PerTurn(_Term):
    """1 in every turn; with a negative weight, a cost of time."""

    SAYS = "1 in every turn"

    def __call__(self, context: TurnContext) -> float:
        return 1.0


@dataclass(frozen=True)
class Invalid(_Term):
    """1 for a malformed turn, or one with a call that failed by the agent's mistake."""

    SAYS = "1 for an invalid turn"

    def __call__(self, context: TurnContext) -> float:
        return float(context.failed)


@dataclass(frozen=True)
class Repeat(_Term):
    """1 for a turn that only repeats earlier calls."""

    SAYS = "1 for a turn that repeats itself"

    def __call__(self, context: TurnContext) -> float:
        return float(context.repeated)


@dataclass(frozen=True)
class Format(_Term):
    """Share of well-formed turns, in a last turn that answers; otherwise 0.

    Cut turns count only if they are malformed, too.
    """

    SAYS = "share of well-formed turns, once there is an answer"

    def __call__(self, context: TurnContext) -> float:
        if not context.done or context.turn.answer is None:
            return 0.0
        turns = [turn for turn in (*context.previous_turns, context.turn) if turn.is_mistake or not turn.cut]
        return sum(turn.error is None for turn in turns) / len(turns)


@dataclass(frozen=True)
class Thought(_Term):
    """1 for a well-formed turn with reasoning (RAGEN)."""

    SAYS = "1 for a turn with a thought"

    def __call__(self, context: TurnContext) -> float:
        return float(context.turn.error is None and bool((context.turn.thought or "").strip()))


@dataclass(frozen=True)
class ThoughtfulFormat(_Term):
    """½ for each earlier turn with a thought and one call, and ½ if this turn has a thought and an answer; 1 at most.
    Source: Agent-R1's ``qa_em_and_format.py``, which does not check the content of the call either."""

    SAYS = "½ for each turn of a thought and a call or the answer, 1 at most"

    def __call__(self, context: TurnContext) -> float:
        before = [turn for turn in context.previous_turns if turn.error is None and turn.thought is not None]
        called = sum(len(turn.calls) == 1 and turn.answer is None for turn in before)
        last = context.turn
        answered = last.error is None and last.thought is not None and last.answer is not None
        return min(1.0, 0.5 * (called + answered))


@dataclass(frozen=True)
class Shaping(_Term):
    """Potential-based shaping by a metric (Ng et al. 1999).

    F = γΦ(s') − Φ(s). Φ is 0 once the episode is over, so the optimal policy stays the same. γ is the trainer's discount.
    """

    potential: str
    gamma: float = 1.0
    SAYS = "γ·Φ(s') − Φ(s) with Φ = {potential}, γ = {gamma:g}"

    def __call__(self, context: TurnContext) -> float:
        after = 0.0 if context.done else self.gamma * context.metrics.get(self.potential, 0.0)
        return after - context.previous_metrics.get(self.potential, 0.0)


@dataclass(frozen=True)
class Gain(_Term):
    """Growth of a metric in this turn.

    This term moves the optimal policy towards the metric, which must be bounded.
    """

    metric: str
    SAYS = "what {metric} gained"

    def __call__(self, context: TurnContext) -> float:
        return context.metrics.get(self.metric, 0.0) - context.previous_metrics.get(self.metric, 0.0)


# -- how terms are put together ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AtEnd(_Term):
    """A term that counts in the last turn only."""

    term: Term
    SAYS = "{term} at the end"

    def __call__(self, context: TurnContext) -> float:
        return self.term(context) if context.done else 0.0


@dataclass(frozen=True)
class AtLeast(_Term):
    """A condition: 1 if the term reaches the threshold."""

    term: Term
    threshold: float
    SAYS = "{term} ≥ {threshold:g}"

    def __call__(self, context: TurnContext) -> float:
        return float(self.term(context) >= self.threshold)


@dataclass(frozen=True)
class Gate(_Term):
    """A term that counts if a condition holds."""

    term: Term
    condition: Term
    SAYS = "{term} where {condition}"

    def __call__(self, context: TurnContext) -> float:
        return self.term(context) if self.condition(context) else 0.0


@dataclass(frozen=True)
class Minus(_Term):
    """A term minus a constant."""

    term: Term
    constant: float
    SAYS = "({term} − {constant:g})"

    def __call__(self, context: TurnContext) -> float:
        return self.term(context) - self.constant


class Reward(Mapping[str, tuple[float, Term]]):
    """A weighted sum of named terms.

    Example: ``Reward(answer=(1.0, AtEnd(Metric("em"))), invalid=(-0.1, Invalid()))``. Calling it returns the weighted value of
    each term by name. Terms of weight 0 are left out.
    """

    def __init__(self, **terms: tuple[float, Term]):
        for name, (weight, term) in terms.items():
            _check_number(name, weight)
            if not callable(term):
                raise ValueError(f"the term {name!r} must be a function of a TurnContext, got {term!r}")
        self._terms = {name: (float(weight), term) for name, (weight, term) in terms.items()}
        self._counting = [(name, value) for name, value in self._terms.items() if value[0]]

    def __call__(self, context: TurnContext) -> dict[str, float]:
        return {name: _weigh(name, weight, term(context)) for name, (weight, term) in self._counting}

    def __getitem__(self, name: str) -> tuple[float, Term]:
        return self._terms[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._terms)

    def __len__(self) -> int:
        return len(self._terms)

    def __repr__(self) -> str:
        return f"Reward({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{name:{width}}  {weight:<5g} × {_name(term)}" for name, (weight, term) in self._counting)

    @property
    def metrics(self) -> set[str]:
        """Names of the metrics that the terms read."""
        return set().union(*(_metrics_of(term) for _, (_, term) in self._counting))

    def with_gamma(self, gamma: float) -> Reward:
        """Return the same terms, with this discount in those that have one."""
        _check_number("gamma", gamma)
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {gamma}")
        return Reward(**{name: (weight, _with_gamma(term, gamma)) for name, (weight, term) in self.items()})


def _metrics_of(term: object) -> set[str]:
    """Return the metrics that a term reads: the only strings in terms of this module. For other terms they are unknown."""
    parts = vars(term).values() if isinstance(term, _Term) else ()
    inner = (_metrics_of(part) for part in parts if isinstance(part, _Term))
    return {part for part in parts if isinstance(part, str)}.union(*inner)


def make_reward(
    requested: str | Mapping[str, Any] | Reward | None, default: Reward, presets: Mapping[str, Reward] | None = None
) -> Reward:
    """Make the reward that an environment was asked for.

    Args:
        requested: None for the default; the name of a preset; a `Reward`; or a mapping from names to weights, or to
            (weight, term) pairs, which overrides the default. Its key ``"preset"`` names a preset to start from instead, and
            ``"gamma"`` sets the discount.

    Raises:
        ValueError: an unknown preset or term, or a weight that is not a finite number.
    """
    presets = {"default": default, **(presets or {})}
    if requested is None or isinstance(requested, Reward):
        return default if requested is None else requested
    requested = {"preset": requested} if isinstance(requested, str) else dict(requested)
    name, gamma = requested.pop("preset", "default"), requested.pop("gamma", None)
    if name not in presets:
        raise ValueError(f"unknown reward preset {name!r}; known: {sorted(presets)}")
    terms = dict(presets[name])
    for term, value in requested.items():
        if isinstance(value, tuple | list) and len(value) == 2:
            terms[term] = tuple(value)
        elif known := terms.get(term) or default.get(term):
            terms[term] = (value, known[1])
        else:
            raise ValueError(f"unknown reward weight {term!r}; known: {sorted({*terms, *default})}")
    reward = Reward(**terms)
    return reward if gamma is None else reward.with_gamma(gamma)


def _weigh(name: str, weight: float, value: Any) -> float:
    try:
        paid = weight * float(value) + 0.0  # + 0.0: no -0.0
    except (TypeError, ValueError):
        paid = math.nan
    if not math.isfinite(paid):
        raise ValueError(f"the reward term {name!r} must give a finite number, got {value!r}")
    return paid


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")


def _with_gamma(term: Term, gamma: float) -> Term:
    if isinstance(term, Shaping):
        return replace(term, gamma=gamma)
    if not isinstance(term, _Term):  # a plain function, or another field of a term
        return term
    inner = {field.name: _with_gamma(getattr(term, field.name), gamma) for field in fields(term)}
    return replace(term, **inner)


def _name(term: Term) -> str:
    return getattr(term, "__name__", None) or str(term)
