"""Statistics of a training loop: what its episodes were like, what the collapse monitor takes, and the symptoms that it names.

All statistics of the monitor are logged, as ``monitor/…`` or as an evaluation, so that a resumed run reads the state of
its monitor back from ``metrics.jsonl``.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from trainers.config import TrainArgs
from trainers.lifecycle.collapse_monitor import CollapseMonitor, mutual_information
from trainers.models.micro_batches import compute_logprobs
from trainers.models.policy import Policy, check_finite
from trainers.rollouts.statistics import MONITOR
from trainers.runtime.progress import Progress
from trainers.trajectory import Step, Trajectory, collate


def mutual_information_statistics(
    policy: Policy, episodes: list[Trajectory], args: TrainArgs, prompts: int = 8
) -> dict[str, float]:
    """How much the first turns tell about the prompts that they answer: `collapse_monitor.mutual_information` of one
    episode of each of the first groups, from log-probabilities that are means over the turn's tokens, in nats a token.

    A sum over the tokens would say log N as soon as one of them names its prompt. Left out where fewer prompts differ than
    there are groups, up to ``prompts``: the bound, log N, must stay where it is.
    """
    by_prompt: dict[tuple[int, ...], Step] = {}
    for episode in (t for t in episodes if t.steps and not t.failed):
        by_prompt.setdefault(tuple(episode.steps[0].prompt), episode.steps[0])
    firsts = list(by_prompt.values())[:prompts]
    if len(firsts) < max(2, min(prompts, len({t.group for t in episodes}))):
        return {}
    pairs = [replace(turn, prompt=other.prompt) for turn in firsts for other in firsts]
    batch = collate([Trajectory(steps=[step]) for step in pairs], policy.pad_id).to(policy.device)
    logprobs = compute_logprobs(policy, batch, args.temperature, args.max_tokens_per_micro_batch)
    means = logprobs.sum(1) / batch.mask.sum(1)
    return {MONITOR + "mutual_information": mutual_information(means.view(len(firsts), len(firsts)))}


def update_statistics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Statistics of an update for the monitor, under ``monitor/``, from the update's metrics."""
    numbers = {}
    if "filter/kept" in metrics:
        numbers["empty_filter"] = float(metrics["filter/kept"] == 0)
    if "policy/entropy" in metrics:  # the update was not skipped
        numbers |= {"entropy": metrics["policy/entropy"], "gradient_norm": metrics["policy/grad_norm"]}
    return {MONITOR + name: value for name, value in numbers.items()}


def find_not_finite(metrics: Mapping[str, float], modules: Mapping[str, torch.nn.Module]) -> str:
    """Which loss of an update, or which weight that it trained, is NaN or infinite, in words; "" if all are finite.

    A gradient that is not finite is no step, and does no harm. Such a loss shows that the next ones will be no better, and such
    a weight makes every number that follows worthless.
    """
    for name, value in metrics.items():
        if name.endswith("loss") and not math.isfinite(value):
            return f"{name} is {value}"
    try:
        for name, module in modules.items():
            check_finite(((n, p) for n, p in module.named_parameters() if p.requires_grad), name)
    except ValueError as error:
        return str(error)
    return ""


class CollapseTracker:
    """Passes each line of the metrics to a `CollapseMonitor`, and keeps the symptoms that it names. ``eval/<score>`` is the
    success rate of a validation."""

    def __init__(self, score: str):
        self.score, self._monitor = score, CollapseMonitor()
        self.symptoms: list[dict[str, Any]] = []  # in order: ``update``, ``name``, ``message`` and ``stop`` of each

    def record(self, update: int, metrics: Mapping[str, float | None], progress: Progress | None = None) -> bool:
        """Pass on the metrics of one update, and warn of symptoms that appear for the first time; returns whether training
        should end by the rules of the papers."""
        numbers: dict[str, Any] = {
            n.removeprefix(MONITOR): v for n, v in metrics.items() if n.startswith(MONITOR) and v is not None
        }
        found = self._monitor.update(**numbers) if numbers else []
        failed = metrics.get("train/failed")
        found = found + (self._monitor.check_tools(failed) if failed is not None else [])
        returns, score = metrics.get("train/return"), metrics.get(f"train/{self.score}")
        if returns is not None and score is not None:
            found = found + self._monitor.check_reward(returns, score)
        success = metrics.get(f"eval/{self.score}")
        # What is negative is a return, as of an environment of costs, and no rate of success.
        found = found + (self._monitor.validate(success) if success is not None and success >= 0 else [])
        for symptom in found:
            if progress and symptom.name not in {known["name"] for known in self.symptoms}:
                text = f"Warning: {symptom.name} at update {update} ({symptom.message})"
                progress.console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
            self.symptoms.append({"update": update, **asdict(symptom)})
        return any(symptom.stop for symptom in found)
