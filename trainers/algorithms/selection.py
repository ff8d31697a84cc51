"""Which of the episodes that were played are learned from, and what shapes their rewards first."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from trainers.algorithms import group_filters as filters
from trainers.algorithms.importance import overlong_penalty
from trainers.runs.arguments import PolicyArgs
from trainers.trajectory import Step, Trajectory


def filtered(trajectories: list[Trajectory], args: PolicyArgs) -> list[Trajectory]:
    """The episodes of the groups that ``args.filter`` keeps.

    Raises:
        ValueError: an episode's return is not finite; a filter would drop its group without a word.
    """
    if not all(math.isfinite(t.episode_return) for t in trajectories if not t.failed):
        raise ValueError("an episode's return is not finite: the environment paid a reward that is NaN or infinite")
    choose = {"mixed": filters.mixed_groups, "uncertain": filters.most_uncertain, "signal": filters.most_signal}
    if args.filter == "none":
        return trajectories
    returns = torch.tensor([t.episode_return for t in trajectories])
    groups = torch.tensor([t.group for t in trajectories])
    valid = torch.tensor([not t.failed for t in trajectories])
    keep = choose[args.filter](returns, groups, valid=valid)
    return [t for t, kept in zip(trajectories, keep.tolist(), strict=True) if kept]


def selected(trajectories: list[Trajectory], args: PolicyArgs) -> tuple[list[Trajectory], dict[str, float]]:
    """The episodes to learn from, with the penalties that shape them; none where the update is to be skipped.

    Raises:
        ValueError: an episode's return is not finite.
    """
    kept = filtered(trajectories, args)
    metrics = {"filter/kept": len(kept) / len(trajectories)} if args.filter != "none" else {}
    if args.overlong_buffer:
        kept = [replace(t, steps=[overlong_punished(step, args) for step in t.steps]) for t in kept]
    return kept, metrics


def overlong_punished(step: Step, args: PolicyArgs) -> Step:
    """DAPO's soft punishment of a long turn, in its reward."""
    penalty = overlong_penalty(torch.tensor(len(step.tokens)), args.max_new_tokens, args.overlong_buffer)
    return replace(step, reward=step.reward + penalty.item())


def refilled(
    played: list[Trajectory], play: Callable[[], list[Trajectory]], args: PolicyArgs
) -> tuple[list[Trajectory], list[Trajectory], dict[str, float]]:
    """DAPO's dynamic sampling (Yu et al. 2025, arXiv 2503.14476): play on until ``questions_per_update`` groups hold
    returns that differ, for ``args.refill`` more batches at most.

    Args:
        played: the first batch.
        play: plays another one, of other questions.

    Returns:
        All episodes that were played; those to learn from, which are all of them where nothing is refilled; metrics.
    """
    if not args.refill:
        return played, played, {}
    batches, kept = [played], filtered(played, args)
    while len({t.group for t in kept}) < args.questions_per_update and len(batches) <= args.refill:
        offset = len(batches) * args.questions_per_update
        batches.append([replace(t, group=t.group + offset) for t in play()])
        kept += filtered(batches[-1], args)
    played = [t for batch in batches for t in batch]
    full = sorted({t.group for t in kept})[: args.questions_per_update]
    metrics = {"filter/kept": len(kept) / len(played), "filter/batches": float(len(batches))}
    return played, [t for t in kept if t.group in full] or played, metrics
