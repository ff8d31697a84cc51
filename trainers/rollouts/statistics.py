"""Statistics of a batch of episodes: their metrics, and the input of the collapse monitor."""

from collections.abc import Sequence

import numpy as np
import torch

from agent_envs.vector import ToolVectorEnv
from trainers.algorithms import group_filters as filters
from trainers.algorithms.advantages import compare_groups
from trainers.runtime import distributed
from trainers.trajectory import Trajectory, to_rows

MONITOR = "monitor/"  # prefix of the metrics that the collapse monitor reads


def episode_metrics(trajectories: list[Trajectory], score: str) -> dict[str, float]:
    """Compute the metrics of a batch of episodes."""
    valid = [t for t in trajectories if not t.failed] or trajectories  # failed episodes are not learned from either
    groups = [[(t.episode_return, t.score) for t in valid if t.group == g] for g in {t.group for t in valid}]
    rows = [s for t in trajectories for s in to_rows(t.steps)]
    metrics = {
        "tokens/action": sum(sum(s.mask) for s in rows),
        "tokens/all": sum(len(s.ids) for s in rows),
        "train/return": np.mean([t.episode_return for t in valid]),
        f"train/{score}": np.mean([t.info[score] for t in valid]),
        "train/turns": np.mean([len(t.steps) for t in valid]),
        "train/truncated": np.mean([t.truncated for t in valid]),
        "train/failed": np.mean([t.failed for t in trajectories]),
        "train/tool_faults": sum(t.tool_faults for t in trajectories),
    }
    if turns := [turn for t in trajectories for turn in t.turns if "cut" in turn]:
        metrics["train/cut_turns"] = np.mean([turn["cut"] for turn in turns])
    if any(closed := [None in step.logprobs for t in trajectories for step in t.steps]):
        metrics["train/closed_thoughts"] = np.mean(closed)
    if len(groups) < len(valid):  # a group of one has no deviation
        spread, outcomes = np.array([np.ptp(group, axis=0) for group in groups]).T
        metrics["train/group_std"] = np.mean([np.std(group, axis=0)[0] for group in groups])
        metrics["train/zero_std_groups"] = np.mean(spread < filters.ZERO_STD)
        metrics["train/shaping_only_groups"] = np.mean((spread >= filters.ZERO_STD) & (outcomes < filters.ZERO_STD))
    for name in ("f1", "support_recall", "calls", "rows", "edits"):
        if all(name in t.info for t in valid):
            metrics[f"train/{name}"] = np.mean([float(t.info[name]) for t in valid])
    for name in dict.fromkeys(name for t in valid for name in t.reward_terms):
        metrics[f"reward/{name}"] = np.mean([t.reward_terms.get(name, 0.0) for t in valid])
    return {name: float(value) for name, value in metrics.items()}


def rollout_statistics(envs: ToolVectorEnv, episodes: list[Trajectory]) -> dict[str, float]:
    """Compute the statistics of a batch of episodes for the monitor, under ``monitor/``; unknown ones are left out. ``envs`` have
    just rolled out the episodes, one each, and have not been reset."""
    returns = torch.tensor([t.episode_return for t in episodes], dtype=torch.float32)
    groups, valid = torch.tensor([t.group for t in episodes]), torch.tensor([not t.failed for t in episodes])
    written = [step.tokens for t in episodes for step in t.steps]
    turns = [(turn.error is None, bool(turn.calls)) for env in envs.envs for turn in env.history.turns]
    turns = distributed.all_gather(turns)
    numbers = {
        "response_length": sum(map(len, written)) / max(1, len(written)),
        "repetition": sum(map(repeated_ngrams, written)) / max(1, len(written)),
    }
    if turns:  # turns of the environment; a program may take none
        numbers["valid_turns"] = sum(valid for valid, _ in turns) / len(turns)
    if len(groups.unique()) < len(groups):  # a group of one has no deviation
        numbers["reward_deviation"] = compare_groups(returns, groups, valid)[1].mean().item()
    if turns and any(env.tools for env in envs.envs):
        numbers["search_rate"] = sum(calls for _, calls in turns) / len(turns)
    return {MONITOR + name: value for name, value in numbers.items()}


def repeated_ngrams(ids: Sequence[int], n: int = 4) -> float:
    """Return the share of a text's n-grams that repeat an earlier one, 0 to 1; 0 for a text shorter than ``n``."""
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
