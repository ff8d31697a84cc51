"""The echo trap: a policy that repeats itself, stops exploring and collapses (RAGEN, Wang et al. 2025).

`CollapseMonitor` takes the statistics of each update and names the symptom when a rule fires. The rules for in-group deviation,
empty filters, gradient norm and success are those of RAGEN and RAGEN-2 (arXiv 2604.06268). The rule for a hacked reward is our
own. The others apply a rule of the same kind to what the papers plot.
"""

import math
from dataclasses import dataclass

import torch

WINDOW = 10  # the first updates, which are the measure of the later ones, and how long a symptom must last
FEW = 3  # of them, where a policy may collapse before they are over, and be its own measure
EMPTY_FILTERS = 5
FAILED_VALIDATIONS, SUCCESS = 5, 0.01
SPIKE, EMA = 5.0, 0.9  # times the moving average of the gradient norm; its memory
HACKED = 3.0  # standard errors by which returns must have risen, and scores fallen


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Fires if a statistic is beyond ``bound`` times its first mean for `WINDOW` updates in a row.

    The first mean is over `WINDOW` updates. If the rule is not ``exact``, it is over as few as `FEW` of them, those with the
    largest change.
    """

    symptom: str
    bound: float
    stop: bool = False
    exact: bool = False


RULES = {  # by statistic
    # mean over groups of the deviation of the raw returns, before any filter
    "reward_deviation": (Rule(symptom="reward deviation collapsed", bound=0.1, stop=True, exact=True),),
    # mean per action token, in nats
    "entropy": (Rule(symptom="entropy collapsed", bound=0.1), Rule(symptom="entropy exploded", bound=3.0)),
    # mean tokens of a turn
    "response_length": (Rule(symptom="responses shrank", bound=0.25), Rule(symptom="responses grew", bound=4.0)),
    # mean share of n-grams that occurred before
    "repetition": (Rule(symptom="text repeats itself", bound=2.0),),
    # shares of turns that use a tool, and that could be parsed
    "search_rate": (Rule(symptom="search was given up", bound=0.1),),
    "valid_turns": (Rule(symptom="turns became invalid", bound=0.5),),
    "mutual_information": (Rule(symptom="template collapse", bound=0.1),),
}
LEAST = {"search_rate": 0.0, "valid_turns": 0.0, "mutual_information": 0.1}  # share, share, nats
REPETITION = 0.2  # below this share repeated n-grams are ordinary text, however few there were at first


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """A symptom of collapse.

    ``name``: what is wrong; ``message``: with its numbers; ``stop``: the RAGEN papers end training here.
    """

    name: str
    message: str
    stop: bool


class CollapseMonitor:
    """Names symptoms of collapse when they begin.

    Each is reported once, and again if it went away and came back.
    """

    def __init__(self):
        self._updates = 0
        self._first: dict[str, list[float]] = {}  # of each statistic, the first ones
        self._lasting: dict[str, int] = {}  # of each symptom, for how long it has lasted
        self._gradient_norm: float | None = None  # moving average
        self._first_paid: list[tuple[float, float]] = []  # returns and scores
        self._last_paid: list[tuple[float, float]] = []

    def update(
        self, *, gradient_norm: float | None = None, empty_filter: bool | None = None, **statistics: float
    ) -> list[Symptom]:
        """Take the statistics of one update, whichever there are; one that is left out neither continues nor ends a symptom.

        Args:
            gradient_norm: before clipping; left out if the update was skipped.
            empty_filter: whether the filter left no group, so that the update was skipped.
            statistics: by the names of `RULES`.
        """
        found = [s for name in RULES if name in statistics for s in self._compare(name, statistics[name])]
        if gradient_norm is not None:
            found += self._check_gradient(gradient_norm)
        if empty_filter is not None:
            message = f"the filter left no group, {EMPTY_FILTERS} times in a row: no group's returns differ"
            found += self._count("no signal left", empty_filter, EMPTY_FILTERS, message, stop=True)
        self._updates += 1
        return found

    def validate(self, success: float) -> list[Symptom]:
        """Take the success rate of a validation, 0 to 1."""
        message = f"success was under {SUCCESS:.0%} at {FAILED_VALIDATIONS} validations in a row"
        return self._count("no success", success < SUCCESS, FAILED_VALIDATIONS, message, stop=True)

    def check_tools(self, failed: float) -> list[Symptom]:
        """Take the share of episodes in which a tool failed, 0 to 1."""
        message = f"a tool failed in {failed:.1%} of the episodes, which are left out"
        return self._count("tools broke", failed > 0, 1, message, stop=False)

    def check_reward(self, returns: float, score: float) -> list[Symptom]:
        """Take the mean return of a batch of training episodes and their mean score, the measure that the reward is meant for.

        The reward is hacked where, of the last `WINDOW` batches against the first ones, the one rises and the other falls.
        """
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
        return self._count("reward hacked", bool(moved.all()), 1, message, stop=False)

    def _compare(self, name: str, value: float) -> list[Symptom]:
        if not math.isfinite(value):
            return [Symptom(name=f"{name.replace('_', ' ')} is not finite", message=f"{name} {value}", stop=True)]
        first = self._first.setdefault(name, [])
        found = []
        for rule in RULES[name]:
            least = WINDOW if rule.exact else FEW
            means = [sum(first[:count]) / count for count in range(least, len(first) + 1)]
            if not means:
                continue
            mean = max(means) if rule.bound < 1 else min(means)
            limit = rule.bound * mean
            beyond = value <= limit if rule.bound < 1 else value > limit
            if name in LEAST:  # what never was cannot be lost
                beyond = beyond and mean > LEAST[name]
            if name == "repetition":
                beyond = value > max(limit, REPETITION)
            message = f"{name} {value:.3g}, {WINDOW} updates beyond {rule.bound:g} x its first ones ({mean:.3g})"
            found += self._count(rule.symptom, beyond, WINDOW, message, rule.stop)
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

    def _count(self, symptom: str, present: bool, needed: int, message: str, stop: bool) -> list[Symptom]:
        self._lasting[symptom] = self._lasting.get(symptom, 0) + 1 if present else 0
        return [Symptom(name=symptom, message=message, stop=stop)] if self._lasting[symptom] == needed else []


def mutual_information(logprobs: torch.Tensor) -> float:
    """Mutual information of a policy's reasoning and its prompts, in nats: E_i[l_ii − log mean_j exp l_ij].

    The proxy of RAGEN-2. Near log N, its most, each prompt has reasoning of its own; near 0 the same template answers them all,
    which entropy does not show. ``logprobs``: [N, N], l_ij = log p(reasoning i | prompt j), summed over the reasoning's tokens
    or, where that would always be near log N, their mean.
    """
    if logprobs.ndim != 2 or logprobs.shape[0] != logprobs.shape[1] or not len(logprobs):
        raise ValueError(f"expected one log-probability per reasoning and prompt, [N, N]; got {list(logprobs.shape)}")
    logprobs = logprobs.double()
    marginal = logprobs.logsumexp(1) - math.log(len(logprobs))
    return float((logprobs.diagonal() - marginal).mean())
