"""Statistics of a training loop: what its episodes were like, what the collapse monitor takes, and the symptoms that it names.

All statistics of the monitor are logged, as ``monitor/…`` or as an evaluation, so that a resumed run reads the state of
its monitor back from ``metrics.jsonl``.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from agent_envs.vector import ToolVectorEnv
from trainers import distributed
from trainers.algorithms import group_filters as filters
from trainers.algorithms.collapse_monitor import CollapseMonitor, mutual_information, repeated_ngrams
from trainers.models.finite import check_finite
from trainers.models.micro_batches import compute_logprobs
from trainers.models.policy import Policy
from trainers.preparation import Metrics
from trainers.runs.arguments import TrainArgs
from trainers.runs.logger import Progress
from trainers.trajectory import Step, Trajectory, collate, to_sequences

_PREFIX = "monitor/"


def episode_metrics(trajectories: list[Trajectory], score: str) -> Metrics:
    """What the episodes of a batch were like."""
    valid = [t for t in trajectories if not t.failed] or trajectories  # as those that are learned from
    groups = [[t.episode_return for t in valid if t.group == g] for g in {t.group for t in valid}]
    sequences = [s for t in trajectories for s in to_sequences(t.steps)]
    metrics = {
        "tokens/action": sum(sum(s.mask) for s in sequences),
        "tokens/all": sum(len(s.ids) for s in sequences),
        "train/return": np.mean([t.episode_return for t in valid]),
        f"train/{score}": np.mean([t.info[score] for t in valid]),
        "train/turns": np.mean([len(t.steps) for t in trajectories]),
        "train/truncated": np.mean([t.truncated for t in trajectories]),
        "train/failed": np.mean([t.failed for t in trajectories]),
        "train/tool_faults": sum(t.tool_faults for t in trajectories),
    }
    if len(groups) < len(valid):  # a group of one has no deviation
        metrics["train/group_std"] = np.mean([np.std(group) for group in groups])
        metrics["train/zero_std_groups"] = np.mean([np.ptp(group) < filters.ZERO_STD for group in groups])
    for name in ("f1", "support_recall", "calls"):
        if all(name in t.info for t in trajectories):
            metrics[f"train/{name}"] = np.mean([float(t.info[name]) for t in trajectories])
    for name in dict.fromkeys(name for t in valid for name in t.reward_terms):
        metrics[f"reward/{name}"] = np.mean([t.reward_terms.get(name, 0.0) for t in valid])
    return {name: float(value) for name, value in metrics.items()}


def rollout_statistics(envs: ToolVectorEnv, episodes: list[Trajectory]) -> dict[str, float]:
    """Statistics of a batch of episodes for the monitor, under ``monitor/``; what is not known is left out.

    Args:
        envs: those that have just played ``episodes``, one each, before any of them is reset.
    """
    returns = torch.tensor([t.episode_return for t in episodes])
    groups, valid = torch.tensor([t.group for t in episodes]), torch.tensor([not t.failed for t in episodes])
    sampled = [step.tokens for t in episodes for step in t.steps]
    turns = [(turn.error is None, bool(turn.calls)) for env in envs.envs for turn in env.history.turns]
    turns = distributed.all_gather(turns)
    numbers = {
        "response_length": sum(map(len, sampled)) / len(sampled),
        "repetition": sum(map(repeated_ngrams, sampled)) / len(sampled),
        "valid_turns": sum(valid for valid, _ in turns) / len(turns),
    }
    if len(groups.unique()) < len(groups):  # a group of one has no deviation
        numbers["reward_deviation"] = filters.group_deviation(returns, groups, valid)[0].mean().item()
    if any(env.tools for env in envs.envs):
        numbers["search_rate"] = sum(calls for _, calls in turns) / len(turns)
    return {_PREFIX + name: value for name, value in numbers.items()}


def mutual_information_statistics(
    policy: Policy, episodes: list[Trajectory], args: TrainArgs, prompts: int = 8
) -> dict[str, float]:
    """How much the first turns tell about the prompts that they answer: `collapse_monitor.mutual_information` of one
    episode of each of the first groups, from log-probabilities that are means over the turn's tokens, in nats a token.

    A sum over the tokens would say log N as soon as one of them names its prompt. Left out where fewer prompts differ than
    there are groups, up to ``prompts``: the bound, log N, must stay where it is.
    """
    by_prompt: dict[tuple[int, ...], Step] = {}
    for episode in (t for t in episodes if not t.failed):
        by_prompt.setdefault(tuple(episode.steps[0].prompt), episode.steps[0])
    firsts = list(by_prompt.values())[:prompts]
    if len(firsts) < max(2, min(prompts, len({t.group for t in episodes}))):
        return {}
    pairs = [replace(turn, prompt=other.prompt) for turn in firsts for other in firsts]
    batch = collate([Trajectory(steps=[step]) for step in pairs], policy.pad_id).to(policy.device)
    logprobs = compute_logprobs(policy, batch, args.temperature, args.max_tokens_per_micro_batch)
    means = logprobs.sum(1) / batch.mask.sum(1)
    return {_PREFIX + "mutual_information": mutual_information(means.view(len(firsts), len(firsts)))}


def update_statistics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Statistics of an update for the monitor, under ``monitor/``, from the update's metrics."""
    numbers = {}
    if "filter/kept" in metrics:
        numbers["empty_filter"] = float(metrics["filter/kept"] == 0)
    if "policy/entropy" in metrics:  # the update was not skipped
        numbers |= {"entropy": metrics["policy/entropy"], "gradient_norm": metrics["policy/grad_norm"]}
    return {_PREFIX + name: value for name, value in numbers.items()}


def find_not_finite(metrics: Mapping[str, float], modules: Mapping[str, torch.nn.Module]) -> str:
    """Which loss of an update, or which weight that it trained, is NaN or infinite, in words; "" where all are finite.

    A gradient that is not finite is no step, and does no harm. Such a loss says that the next ones will be no better, and such
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
    """Passes each line of the metrics to a `CollapseMonitor`, and keeps the symptoms that it names.

    Args:
        score: the task's own measure; ``eval/<score>`` is the success rate of a validation.
        lines: the metrics of an earlier part of the run, to go on from.

    Attributes:
        symptoms: all of them in order: ``update``, ``name``, ``message`` and ``stop`` of each, fit for JSON.
    """

    def __init__(self, score: str, lines: Iterable[Mapping[str, float | None]] = ()):
        self.score, self._monitor = score, CollapseMonitor()
        self.symptoms: list[dict[str, Any]] = []
        for line in lines:
            step = line["step"]
            assert step is not None
            self.record(int(step), line)

    def record(self, update: int, metrics: Mapping[str, float | None], progress: Progress | None = None) -> bool:
        """Pass on the metrics of one update, and warn of symptoms that appear for the first time; returns whether training
        should end by the rules of the papers."""
        numbers: dict[str, Any] = {
            n.removeprefix(_PREFIX): v for n, v in metrics.items() if n.startswith(_PREFIX) and v is not None
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
            named = {"name": symptom.name, "message": symptom.message, "stop": symptom.stop}
            self.symptoms.append({"update": update, **named})
        return any(symptom.stop for symptom in found)
