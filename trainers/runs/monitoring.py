"""The echo-trap monitor on a training loop: what it is fed with, and what it said.

Everything that it is fed with is logged, as ``monitor/…`` or as an evaluation, so that a resumed run reads its monitor
back from ``metrics.jsonl``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from agent_envs.vector import ToolVectorEnv
from trainers import distributed
from trainers.algorithms import group_filters as filters
from trainers.algorithms.collapse_monitor import EchoTrapMonitor, mutual_information, repeated_ngrams
from trainers.models.micro_batches import map_parts
from trainers.models.policy import Policy
from trainers.runs.arguments import TrainArgs
from trainers.runs.logger import Progress
from trainers.trajectory import Trajectory, collate

_PREFIX = "monitor/"


def measured(envs: ToolVectorEnv, episodes: list[Trajectory]) -> dict[str, float]:
    """A batch's numbers for the monitor, under ``monitor/``; what cannot be told is left out.

    Args:
        envs: those that have just played ``episodes``, one each, and still remember them.
    """
    returns = torch.tensor([t.episode_return for t in episodes])
    groups, valid = torch.tensor([t.group for t in episodes]), torch.tensor([not t.failed for t in episodes])
    sampled = [step.tokens for t in episodes for step in t.steps]
    turns = [(turn.error is None, bool(turn.calls)) for env in envs.envs for turn in env.history.turns]
    turns = distributed.all_gather(turns)
    numbers = {
        "reward_deviation": filters.group_deviation(returns, groups, valid)[0].mean().item(),
        "response_length": sum(map(len, sampled)) / len(sampled),
        "repetition": sum(map(repeated_ngrams, sampled)) / len(sampled),
        "valid_turns": sum(valid for valid, _ in turns) / len(turns),
    }
    if any(env.tools for env in envs.envs):
        numbers["search_rate"] = sum(calls for _, calls in turns) / len(turns)
    return {_PREFIX + name: value for name, value in numbers.items()}


def informed(policy: Policy, episodes: list[Trajectory], args: TrainArgs, prompts: int = 8) -> dict[str, float]:
    """How much the first turns tell about the prompts that they answer: `monitor.mutual_information` of one episode of
    each of the first groups, from log-probabilities that are means over the turn's tokens, in nats a token.

    A sum over the tokens would say log N as soon as one of them names its prompt. Left out where fewer prompts differ than
    there are groups, up to ``prompts``: the bound, log N, must stay where it is.
    """
    firsts = {}
    for episode in (t for t in episodes if not t.failed):
        firsts.setdefault(tuple(episode.steps[0].prompt), episode.steps[0])
    firsts = list(firsts.values())[:prompts]
    if len(firsts) < max(2, min(prompts, len({t.group for t in episodes}))):
        return {}
    pairs = [replace(said, prompt=asked.prompt) for said in firsts for asked in firsts]
    batch = collate([Trajectory(steps=[step]) for step in pairs], policy.pad_id).to(policy.device)
    found = map_parts(lambda part: policy.logprobs(part, args.temperature)[0], batch, args.max_tokens_per_micro_batch)
    means = found.sum(1) / batch.mask.sum(1)
    return {_PREFIX + "mutual_information": mutual_information(means.view(len(firsts), len(firsts)))}


def learned(metrics: Mapping[str, float]) -> dict[str, float]:
    """An update's numbers for the monitor, from its metrics."""
    numbers = {}
    if "filter/kept" in metrics:
        numbers["empty_filter"] = float(metrics["filter/kept"] == 0)
    if "policy/entropy" in metrics:  # something was learned from
        numbers |= {"entropy": metrics["policy/entropy"], "gradient_norm": metrics["policy/grad_norm"]}
    return {_PREFIX + name: value for name, value in numbers.items()}


class Watch:
    """Shows the monitor each line of the metrics, and keeps what it says.

    Args:
        score: the task's own measure; ``eval/<score>`` is the success rate of a validation.
        lines: the metrics of an earlier part of the run, to go on from.

    Attributes:
        symptoms: everything that was noticed: ``update``, ``name``, ``message`` and ``stop`` of each, fit for JSON.
    """

    def __init__(self, score: str, lines: Iterable[Mapping[str, float | None]] = ()):
        self.score, self.symptoms, self._monitor = score, [], EchoTrapMonitor()
        for line in lines:
            self.see(line["step"], line)

    def see(self, update: int, metrics: Mapping[str, float | None], progress: Progress | None = None) -> bool:
        """Take a line in, and warn of what is noticed for the first time; returns whether training should end by the
        rules of the papers."""
        numbers = {n.removeprefix(_PREFIX): v for n, v in metrics.items() if n.startswith(_PREFIX) and v is not None}
        found = self._monitor.update(**numbers) if numbers else []
        success = metrics.get(f"eval/{self.score}")
        found = found + (self._monitor.validate(success) if success is not None else [])
        for symptom in found:
            if progress and symptom.name not in {known["name"] for known in self.symptoms}:
                text = f"Warning: {symptom.name} at update {update} ({symptom.message})"
                progress.console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
            named = {"name": symptom.name, "message": symptom.message, "stop": symptom.stop}
            self.symptoms.append({"update": update, **named})
        return any(symptom.stop for symptom in found)
