"""Scores of the scripted agents on every task: what chance, a simple rule and full knowledge reach."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from agent_envs.integrations.hosting import make as make_tool_env
from agent_envs.scoring import bootstrap_interval
from agent_envs.utils.scripts import is_drawn, roll_out, sample_instances


def run_baselines(
    id: str,
    episodes: int = 200,
    seed: int = 0,
    kwargs: dict[str, Any] | None = None,
    track: Callable[[Iterable], Iterable] = iter,
) -> list[dict[str, Any]]:
    """Evaluate the scripts of a task, one row each.

    Args:
        episodes: number for each script, from ``seed`` on; questions of a file once each (`sample_instances`), 0 for all.
        track: wraps the episodes to show progress, such as ``tqdm``.

    Returns:
        Rows with ``agent``, ``score`` (mean of the task's own measure) and its 95% bootstrap ``interval``, ``reward``
        (mean return), ``turns``, ``calls``, ``episodes`` and the ``source`` of the instances.

    Raises:
        ValueError: there is nothing to run.
        RuntimeError: a tool failed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the source in every row names stand-in data
        env = make_tool_env(id, **(kwargs or {}))
    numbers: list[dict[str, Any] | None] = [None] * episodes
    if env.questions is not None and not is_drawn(env):
        numbers = [{"question": number} for number in sample_instances(env, episodes)]
    if not numbers:
        raise ValueError("episodes must be at least 1 where instances are made from seeds")
    rows = []
    for name, script in env.SCRIPTS.items():
        episodes_run = [roll_out(env, script, seed + i, options) for i, options in enumerate(track(numbers))]
        if broken := sum(any(turn["tool_faults"] for turn in episode) for episode in episodes_run):
            share = f"{broken} of the {len(episodes_run)} episodes of the agent {name!r}"
            raise RuntimeError(f"{id}: a tool broke in {share}: run them again when it works")
        scores = [float(episode[-1].get(env.PRIMARY_METRIC, 0.0)) for episode in episodes_run]
        row = {"id": id, "agent": name, "score": float(np.mean(scores)), "interval": bootstrap_interval(scores)}
        row["reward"] = float(np.mean([sum(turn["reward"] for turn in episode) for episode in episodes_run]))
        row["turns"] = float(np.mean([len(episode) for episode in episodes_run]))
        row["calls"] = float(np.mean([episode[-1]["calls"] for episode in episodes_run]))
        row |= {"episodes": len(episodes_run), "source": str(env.reset(seed=seed)[1].get("source", id))}
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    lines = ["| environment | agent | score | 95% CI | return | turns | calls |", "|---|---" + "|---:" * 5 + "|"]
    for row in rows:
        low, high = row["interval"]
        name = row["id"].removeprefix("AgentR1/")
        lines.append(
            f"| {name} | {row['agent']} | {row['score']:.3f} | {low:.3f}–{high:.3f} | {row['reward']:.2f} "
            f"| {row['turns']:.1f} | {row['calls']:.1f} |"
        )
    return "\n".join(lines)
