"""The echo trap: a policy that repeats itself, stops exploring and collapses (RAGEN, Wang et al. 2025).

`CollapseMonitor` reads the metrics of each update and names the symptom when a rule fires. The rules for in-group deviation,
empty filters, gradient norm and success are those of RAGEN and RAGEN-2 (arXiv 2604.06268). The rule for a hacked reward is our
own. The others apply a rule of the same kind to what the papers plot.

Everything that it reads is logged as ``monitor/…``, ``train/…`` or ``eval/…``, so a resumed run restores its monitor from
``metrics.jsonl``.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from trainers.config import TrainArgs
from trainers.models.micro_batches import compute_logprobs
from trainers.models.policy import Policy
from trainers.rollouts.statistics import MONITOR
from trainers.runtime.progress import Progress
from trainers.trajectory import Step, Trajectory, collate

WINDOW = 10  # updates: the first ones, with which later ones are compared, and how long a symptom must last
FEW = 3  # least number of first updates to compare with, as a policy may collapse within the first `WINDOW`
EMPTY_FILTERS = 5
FAILED_VALIDATIONS, SUCCESS = 5, 0.01
CUT = 1 / 3  # of the turns
SPIKE, EMA = 5.0, 0.9  # a spike: times the moving average of the gradient norm; the decay of that average
PROMPTS = 8  # most prompts of `mutual_information`
HACKED = 3.0  # standard errors by which returns must have risen, and scores fallen


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule that fires if a statistic is beyond ``bound`` times its first mean for `WINDOW` updates in a row.

    The first mean is over `WINDOW` updates. If the rule is not ``exact``, it is over the first `FEW` to `WINDOW` updates: the
    number that shows the largest change. A fall counts only from a first mean above ``least``, a growth only to a value above it.
    """

    symptom: str
    bound: float
    least: float = -math.inf
    stop: bool = False
    exact: bool = False


RULES = {  # by statistic
    # mean over groups of the deviation of the raw returns, before any filter
    "reward_deviation": (Rule(symptom="reward deviation collapsed", bound=0.1, stop=True, exact=True),),
    # mean per action token, in nats
    "entropy": (Rule(symptom="entropy collapsed", bound=0.1), Rule(symptom="entropy exploded", bound=3.0)),
    # mean tokens of a turn
    "response_length": (Rule(symptom="responses shrank", bound=0.25), Rule(symptom="responses grew", bound=4.0)),
    # mean share of n-grams that occurred before; a fifth is normal in text, even if it was lower at first
    "repetition": (Rule(symptom="text repeats itself", bound=2.0, least=0.2),),
    # shares of turns that use a tool, and that could be parsed
    "search_rate": (Rule(symptom="search was given up", bound=0.1, least=0.0),),
    "valid_turns": (Rule(symptom="turns became invalid", bound=0.5, least=0.0),),
    # of first turns and their prompts, in nats per token
    "mutual_information": (Rule(symptom="template collapse", bound=0.1, least=0.1),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """A symptom of collapse.

    ``name``: what is wrong; ``message``: the numbers that show it; ``stop``: whether the RAGEN papers end training here.
    """

    name: str
    message: str
    stop: bool


class CollapseMonitor:
    """Report symptoms of collapse when they begin.

    Each symptom is reported once, and again if it disappears and comes back.

    Attributes:
        symptoms: the reported symptoms, each with its ``update``, ``name``, ``message`` and ``stop``.
    """

    def __init__(self, score: str):
        self.score, self.symptoms = score, list[dict[str, Any]]()
        self._updates = 0
        self._first: dict[str, list[float]] = {}  # by statistic: its first values
        self._lasting: dict[str, int] = {}  # by symptom: the number of updates for which it has lasted
        self._gradient_norm: float | None = None  # moving average
        self._first_paid: list[tuple[float, float]] = []  # mean return and score of the first batches
        self._last_paid: list[tuple[float, float]] = []

    def record(self, update: int, metrics: Mapping[str, float | None], progress: Progress | None = None) -> bool:
        """Read the metrics of one update, and warn of symptoms that appear for the first time; returns whether training
        should end by the rules of the papers. A metric that is left out neither continues nor ends a symptom."""
        found = self._read({name: value for name, value in metrics.items() if value is not None})
        for symptom in found:
            if progress and symptom.name not in {known["name"] for known in self.symptoms}:
                text = f"Warning: {symptom.name} at update {update} ({symptom.message})"
                progress.console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
            self.symptoms.append({"update": update, **asdict(symptom)})
        return any(symptom.stop for symptom in found)

    def _read(self, metrics: Mapping[str, float]) -> list[Symptom]:
        numbers = {n.removeprefix(MONITOR): value for n, value in metrics.items() if n.startswith(MONITOR)}
        found = [s for name in RULES if name in numbers for s in self._compare(name, numbers[name])]
        if "gradient_norm" in numbers:
            found += self._check_gradient(numbers["gradient_norm"])
        if "empty_filter" in numbers:
            message = f"the filter left no group, {EMPTY_FILTERS} times in a row: no group's returns differ"
            found += self._count("no signal left", bool(numbers["empty_filter"]), EMPTY_FILTERS, message, stop=True)
        self._updates += bool(numbers)
        if (failed := metrics.get("train/failed")) is not None:
            message = f"{failed:.1%}, by a tool or the program of an agent; they are left out"
            found += self._count("episodes failed", failed > 0, 1, message)
        if (cut := metrics.get("train/cut_turns")) is not None:
            message = f"{cut:.0%} reach max_new_tokens before their end, and are no action: raise it"
            found += self._count("turns are cut", cut > CUT, 1, message)
        if {"train/return", f"train/{self.score}"} <= metrics.keys():
            found += self._check_reward(metrics["train/return"], metrics[f"train/{self.score}"])
        success = metrics.get(f"eval/{self.score}", -1.0)
        if success >= 0:  # a negative score is a return, as in an environment with costs, and no rate of success
            message = f"success was under {SUCCESS:.0%} at {FAILED_VALIDATIONS} validations in a row"
            found += self._count("no success", success < SUCCESS, FAILED_VALIDATIONS, message, stop=True)
        return found

    def _check_reward(self, returns: float, score: float) -> list[Symptom]:
        """Check for a hacked reward: from the first `WINDOW` batches to the last ones, the mean return rises, but the mean score,
        which the reward should measure, falls."""
        if not (math.isfinite(returns) and math.isfinite(score)):
            return []
        first = self._first_paid
        if len(first) < WINDOW:
            first.append((returns, score))
            return []
        self._last_paid = last = [*self._last_paid, (returns, score)][-WINDOW:]
        before, after = torch.tensor(first, dtype=torch.float64), torch.tensor(last, dtype=torch.float64)
        error = ((before.var(0) + after.var(0)) / WINDOW).sqrt() if len(last) == WINDOW else torch.tensor(math.inf)
        moved = (after.mean(0) - before.mean(0)) * torch.tensor([1.0, -1.0]) > HACKED * error
        (paid, right), (now_paid, now_right) = before.mean(0).tolist(), after.mean(0).tolist()
        message = (
            f"the return rose from {paid:.3g} to {now_paid:.3g}, the score fell from {right:.3g} to {now_right:.3g}"
        )
        return self._count("reward hacked", bool(moved.all()), 1, message)

    def _compare(self, name: str, value: float) -> list[Symptom]:
        if not math.isfinite(value):
            return [Symptom(name=f"{name.replace('_', ' ')} is not finite", message=f"{name} {value}", stop=True)]
        first = self._first.setdefault(name, [])
        found = []
        for rule in RULES[name]:
            counts = range(WINDOW if rule.exact else FEW, len(first) + 1)
            if means := [sum(first[:count]) / count for count in counts]:
                mean = max(means) if rule.bound < 1 else min(means)
                limit = rule.bound * mean
                fell, rose = value <= limit and mean > rule.least, value > max(limit, rule.least)
                message = f"{name} {value:.3g}, {WINDOW} updates beyond {rule.bound:g} x its first ones ({mean:.3g})"
                found += self._count(rule.symptom, fell if rule.bound < 1 else rose, WINDOW, message, rule.stop)
        if len(first) < WINDOW:
            first.append(value)
        return found

    def _check_gradient(self, norm: float) -> list[Symptom]:
        if not math.isfinite(norm):
            return [Symptom(name="gradient norm is not finite", message=f"gradient norm {norm}", stop=True)]
        average, self._gradient_norm = self._gradient_norm, norm
        if average is not None:
            self._gradient_norm = EMA * average + (1 - EMA) * norm
        if self._updates < WINDOW or average is None or norm <= SPIKE * average:
            return []
        message = f"gradient norm {norm:.3g}, over {SPIKE:g} x its moving average ({average:.3g})"
        return [Symptom(name="gradient norm spiked", message=message, stop=False)]

    def _count(self, symptom: str, present: bool, needed: int, message: str, stop: bool = False) -> list[Symptom]:
        self._lasting[symptom] = self._lasting.get(symptom, 0) + 1 if present else 0
        return [Symptom(name=symptom, message=message, stop=stop)] if self._lasting[symptom] == needed else []


def mutual_information(policy: Policy, trajectories: list[Trajectory], args: TrainArgs) -> float | None:
    """Estimate how much first turns depend on their prompts, in nats per token: E_i[l_ii − log mean_j exp l_ij].

    The proxy of RAGEN-2, from one episode of each of the first N groups, at most `PROMPTS`. l_ij is the mean over the tokens
    of turn i of log p(token | prompt j); a sum would reach log N as soon as one token names its prompt. Near log N, the maximum,
    each prompt has its own answer. Near 0 the same template answers all prompts, which entropy does not show. None if fewer
    than N prompts differ, as the maximum must stay the same, or if a turn after another's prompt is too long for the model.
    """
    by_prompt: dict[tuple[int, ...], Step] = {}
    for trajectory in (t for t in trajectories if t.steps and not t.failed):
        by_prompt.setdefault(tuple(trajectory.steps[0].prompt), trajectory.steps[0])
    firsts = list(by_prompt.values())[:PROMPTS]
    count = len(firsts)
    if count < max(2, min(PROMPTS, len({t.group for t in trajectories}))):
        return None
    longest = max(len(step.prompt) for step in firsts) + max(len(step.tokens) for step in firsts)
    if longest > policy.max_length:  # a model with learned positions would fail
        return None
    pairs = [replace(turn, prompt=other.prompt) for turn in firsts for other in firsts]
    batch = collate([Trajectory(steps=[step]) for step in pairs], policy.pad_id).to(policy.device)
    logprobs = compute_logprobs(policy, batch, args.temperature, args.max_tokens_per_micro_batch)
    means = (logprobs.sum(1) / batch.mask.sum(1)).view(count, count).double()
    marginal = means.logsumexp(1) - math.log(count)
    return float((means.diagonal() - marginal).mean())
