"""The parts of an update that all algorithms share, apart from the loss.

Before the gradient steps: group filters, a penalty for long turns, the tensors of a batch, importance weights for another
sampler, and reference log-probabilities for a KL penalty. During them: minibatches and metrics.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from numbers import Real

import numpy as np
import torch

from trainers.algorithms import group_filters, importance
from trainers.algorithms.losses import aggregate, kl_k3, sum_of_sequence
from trainers.algorithms.overlong import overlong_penalty
from trainers.config import TrainArgs
from trainers.engines.mismatch import measure_mismatch
from trainers.models.kl_reference import KLPenalty
from trainers.models.micro_batches import compute_logprobs, remove_mask
from trainers.models.policy import Policy
from trainers.runtime.distributed import all_reduce_sums
from trainers.runtime.errors import UserError
from trainers.trajectory import Batch, PackedTrajectories, Step, Trajectory, collate, pack

Metrics = dict[str, float]

GROUP_FILTERS: dict[str, Callable[..., torch.Tensor]] = {
    "mixed": group_filters.mixed_groups,
    "outcome": group_filters.mixed_groups,  # of scores instead of returns
    "uncertain": group_filters.most_uncertain,
    "signal": group_filters.most_signal,
}


def filter_groups(trajectories: list[Trajectory], args: TrainArgs) -> list[Trajectory]:
    """Return the episodes of the groups that ``args.filter`` keeps.

    Raises:
        ValueError: a reward is not a number, or an episode's return is not finite. A filter would drop its group silently.
    """
    if wrong := [step.reward for t in trajectories for step in t.steps if not isinstance(step.reward, Real)]:
        raise UserError(f"the reward of a step must be a number, got {wrong[0]!r}")
    if not all(math.isfinite(t.episode_return) for t in trajectories if not t.failed):
        raise UserError("an episode's return is not finite: the environment paid a reward that is NaN or infinite")
    if args.filter == "none":
        return trajectories
    returns = torch.tensor([t.score if args.filter == "outcome" else t.episode_return for t in trajectories])
    groups = torch.tensor([t.group for t in trajectories])
    valid = torch.tensor([not t.failed for t in trajectories])
    keep = GROUP_FILTERS[args.filter](returns, groups, valid=valid)
    return [t for t, kept in zip(trajectories, keep.tolist(), strict=True) if kept]


def refill_groups(
    sampled: list[Trajectory], sample: Callable[[], list[Trajectory]], args: TrainArgs
) -> tuple[list[Trajectory], list[Trajectory], Metrics]:
    """Sample until the filter keeps ``questions_per_update`` groups, with at most ``args.dynamic_sampling`` more batches.

    This is DAPO's dynamic sampling (Yu et al. 2025, arXiv 2503.14476). ``sampled`` is the first batch; ``sample`` samples another
    one of other questions. Returns all episodes, the episodes to learn from (all of them without dynamic sampling, or if no
    group is kept), and metrics.
    """
    if not args.dynamic_sampling:
        return sampled, sampled, {}
    batches, kept = [sampled], filter_groups(sampled, args)
    while len({t.group for t in kept}) < args.questions_per_update and len(batches) <= args.dynamic_sampling:
        offset = len(batches) * args.questions_per_update
        batches.append([replace(t, group=t.group + offset) for t in sample()])
        kept += filter_groups(batches[-1], args)
    sampled = [t for batch in batches for t in batch]
    full = sorted({t.group for t in kept})[: args.questions_per_update]
    kept = [t for t in kept if t.group in full]
    metrics = {"filter/kept": len(kept) / len(sampled), "filter/batches": float(len(batches))}
    return sampled, kept or sampled, metrics


def select_episodes(trajectories: list[Trajectory], args: TrainArgs) -> tuple[list[Trajectory], Metrics]:
    """Return the episodes to learn from, with penalties added to their rewards, and metrics. Skip the update if there are none.

    Raises:
        ValueError: a reward is not a number, or an episode's return is not finite.
    """
    kept = filter_groups(trajectories, args)
    counts = args.filter != "none" and not args.dynamic_sampling  # `refill_groups` has already filtered and counted
    metrics = {"filter/kept": len(kept) / len(trajectories)} if counts else {}
    if args.overlong_buffer:
        kept = [replace(t, steps=[add_overlong_penalty(step, args) for step in t.steps]) for t in kept]
    return kept if any(t.steps for t in kept) else [], metrics  # a program may have asked the policy for no turn


def add_overlong_penalty(step: Step, args: TrainArgs) -> Step:
    """Add DAPO's soft penalty for a long turn to its reward."""
    penalty = overlong_penalty(torch.tensor(len(step.tokens)), args.max_new_tokens, args.overlong_buffer)
    return replace(step, reward=step.reward + penalty.item())


def prepare_batch(
    trajectories: list[Trajectory], policy: Policy, args: TrainArgs, kl: KLPenalty | None
) -> tuple[Batch, PackedTrajectories, Metrics]:
    """Make the sequences for the model, the same episodes packed for the advantage estimators, and metrics."""
    batch = collate(trajectories, policy.pad_id).to(policy.device)
    if not args.loss_mask:
        sampled, batch = batch, remove_mask(batch)
        logprobs = compute_logprobs(policy, batch, args.temperature, args.max_tokens_per_micro_batch)
        batch.old_logprobs = torch.where(sampled.mask, sampled.old_logprobs, logprobs)
    batch.episode_tokens = sum_of_sequence(batch.mask.sum(1), batch.trajectory)
    batch, metrics = correct_for_sampler(batch, policy, args)
    valid = torch.tensor([not t.failed for t in trajectories], device=policy.device)
    if kl is not None:
        metrics |= kl.add_reference(batch, valid)
    size = len(trajectories)
    rewards = pack(batch.rewards, batch, size)
    returns = torch.tensor([t.episode_return for t in trajectories], dtype=torch.float32, device=policy.device)
    mask = pack(batch.mask, batch, size)
    if kl is not None and not kl.in_loss:  # the rewards then hold the penalty, but an episode without a turn has none
        returns = torch.where(mask.any(1), rewards.sum(1), returns)
    packed = PackedTrajectories(
        returns=returns,
        rewards=rewards,
        mask=mask,
        turns=pack(batch.turns, batch, size, fill=-1),
        groups=torch.tensor([t.group for t in trajectories], device=policy.device),
        valid=valid,
        anchors=[t.anchors for t in trajectories],
    )
    return batch, packed, metrics


def store_advantages(trajectories: list[Trajectory], batch: Batch) -> None:
    """Store the batch's advantages in its episodes, for their records. A copy of an episode shares the list of its
    original."""
    assert batch.advantages is not None
    for trajectory in trajectories:
        trajectory.advantages.clear()
    rows = zip(batch.trajectory.tolist(), batch.lengths.tolist(), batch.advantages, strict=True)
    for owner, length, advantages in rows:
        trajectories[owner].advantages.append(advantages[:length])


def correct_for_sampler(batch: Batch, policy: Policy, args: TrainArgs) -> tuple[Batch, Metrics]:
    """Add importance weights if the sampler's probabilities differ slightly from the trainer's. The surrogate's ratio then uses
    the trainer's log-probabilities before the update, and each token's loss is weighted. The metrics measure how far sampler
    and trainer are apart."""
    if args.importance == "none" and args.engine == "transformers":
        return batch, {}
    trainer_logprobs = compute_logprobs(policy, batch, args.temperature, args.max_tokens_per_micro_batch)
    metrics = measure_mismatch(trainer_logprobs, batch.old_logprobs, batch.mask)
    if args.importance == "none":
        return batch, metrics
    compute_weights = importance.truncated_importance if args.importance == "tis" else importance.masked_importance
    weights = compute_weights(trainer_logprobs, batch.old_logprobs)
    return replace(
        batch, old_logprobs=trainer_logprobs, sampler_logprobs=batch.old_logprobs, importance_weights=weights
    ), metrics


def shuffle_minibatches(batch: Batch, args: TrainArgs, rng: np.random.Generator) -> Iterator[torch.Tensor]:
    """Yield all rows of a batch in random order, ``args.epochs`` times, in ``args.minibatches`` parts, int64 [b] each. For a
    mean over sequences, the rows of an episode stay together."""
    owners = batch.trajectory.tolist() if args.mean_over == "sequences" else range(len(batch.ids))
    units: dict[int, list[int]] = {}
    for row, owner in enumerate(owners):
        units.setdefault(owner, []).append(row)
    together = list(units.values())
    for _ in range(args.epochs):
        for part in np.array_split(rng.permutation(len(together)), min(args.minibatches, len(together))):
            yield torch.tensor([row for unit in part for row in together[unit]])


def count_normalizer(batch: Batch, rows: torch.Tensor, valid: torch.Tensor, args: TrainArgs) -> int:
    """Return the divisor of the losses of these rows: the number of their action tokens, or of their episodes. Failed
    episodes do not count; the divisor is at least 1.

    Args:
        rows: int64 [b].
        valid: bool [N], of the episodes.
    """
    rows = rows[valid[batch.trajectory[rows]]]
    counted = int(batch.mask[rows].sum()) if args.mean_over == "tokens" else len(batch.trajectory[rows].unique())
    return max(1, counted)


def add_sequence_ratios(batch: Batch, rows: torch.Tensor, policy: Policy, args: TrainArgs) -> Batch:
    """Add ``other_log_ratios`` to the batch for a gradient step of GSPO on some rows, computed with the current policy.

    The rows of an episode may be in different micro-batches, so each row needs the log ratios of the others. This costs one
    more forward pass of the episodes that have several rows, and nothing if there are none.
    """
    if args.loss != "gspo":
        return batch
    learns = torch.zeros(int(batch.trajectory.max()) + 1, dtype=torch.bool, device=batch.ids.device)
    learns[batch.trajectory[rows]] = True
    has_others = torch.bincount(batch.trajectory)[batch.trajectory] > 1
    others = torch.zeros_like(batch.old_logprobs[:, 0])
    if len(split := (has_others & learns[batch.trajectory]).nonzero()[:, 0]):
        part = batch[split]
        logprobs = compute_logprobs(policy, part, args.temperature, args.max_tokens_per_micro_batch)
        own = torch.where(part.mask, logprobs - part.old_logprobs, 0.0).sum(1)
        others[split] = sum_of_sequence(own, part.trajectory) - own
    return replace(batch, other_log_ratios=others)


class UpdateMetrics:
    """Means over an update: of loss and gradient norm over its gradient steps, of the rest over action tokens. Rows that need
    no pass through the model, such as those of groups whose returns are all equal, do not count among the tokens."""

    def __init__(self):
        self._sums: Metrics = {"loss": 0.0, "tokens": 0.0}
        self._norm, self._steps = 0.0, 0

    @staticmethod
    @torch.no_grad()
    def of_tokens(batch: Batch, logprobs: torch.Tensor, entropy: torch.Tensor, clipped: torch.Tensor) -> Metrics:
        """Compute means over the action tokens of a micro-batch; tensors are [B, T]. ``clipped``: the ratio is out of range."""
        sampler = batch.old_logprobs if batch.sampler_logprobs is None else batch.sampler_logprobs
        values = {"entropy": entropy, "clip_fraction": clipped.float(), "sampler_kl": kl_k3(sampler, logprobs)}
        if batch.importance_weights is not None:
            values["importance"] = batch.importance_weights
        tokens = batch.mask.sum().clamp(min=1)
        return {name: aggregate(value, batch.mask, tokens).item() for name, value in values.items()}

    def add(self, batch: Batch, scale: float, loss: torch.Tensor, means: Metrics) -> None:
        """Count a micro-batch: its loss, and means over its tokens. If ``scale`` is 0, it adds zeros, but names its metrics:
        processes add up their metrics, and one of them may have no other micro-batch."""
        counts = bool(scale)
        tokens = int(batch.mask.sum()) * counts
        sums = {name: value * tokens for name, value in means.items()}
        sums |= {"loss": loss.item() * counts, "tokens": tokens}
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def add_step(self, norm: torch.Tensor) -> None:
        """Count a gradient step, with the norm of its gradient before clipping."""
        self._steps += 1
        self._norm += norm.item()

    def compute(self) -> Metrics:
        """Compute all metrics under ``policy/``, over all processes."""
        sums = all_reduce_sums(self._sums)
        loss, tokens = sums.pop("loss"), sums.pop("tokens")
        means = {name: value / max(tokens, 1) for name, value in sums.items()}
        means |= {"loss": loss / self._steps, "grad_norm": self._norm / self._steps}
        return {f"policy/{name}": value for name, value in means.items()}
