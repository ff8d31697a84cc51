"""GRPO: group relative policy optimisation over multi-turn episodes, top to bottom.

For each of questions_per_update questions the policy plays group_size episodes. An episode's advantage is its return
minus the mean return of its group (Shao et al. 2024, arXiv 2402.03300), and the clipped policy-gradient loss raises the
log-probability of every token of the better episodes. Where this departs from the paper:

- no division by the group's standard deviation, and no per-sequence length normalisation, both of which bias the
  gradient (Dr. GRPO, arXiv 2503.20783); --scale-by-std and --normalize sequences bring them back;
- one loss over all tokens of the batch, and a wider upper clip, "clip-higher" (DAPO, arXiv 2503.14476);
- no KL penalty to a reference model unless --kl-coef is set.

--filter mixed --refill 10 and --overlong-buffer are DAPO's, --loss gspo and --loss cispo other surrogates, and
--turn-credit compares the returns from each turn on, so that process rewards count at once (GTPO); --process-weight adds
each turn's own rewards to the advantage of the episode (after MT-GRPO, Zeng et al. 2025, arXiv 2505.11821).

The invariant of everything below: only tokens that the policy sampled carry gradient. What a tool returned is context.

    python -m trainers.grpo                                              # the tiny policy learns to search, on a laptop
    python -m trainers.grpo --env AgentR1/HotpotQA-v0 --model PATH_OR_ID --lr 1e-6
"""

import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__" and not __package__:  # run as a file: the packages lie beside its folder
    sys.path[:1] = [str(Path(__file__).resolve().parents[1]), str(Path.cwd())]

from trainers.runs.arguments import TrainArgs
from trainers.runs.command_line import parse


@dataclass(kw_only=True)
class Args(TrainArgs):
    """Train a policy with GRPO in a tool-using environment, and compare it with baselines on held-out questions."""

    scale_by_std: bool = False
    """Divide advantages by the standard deviation of their group, as GRPO's paper does."""
    turn_credit: bool = False
    """Compare the return from each turn on with those of the same turn in the group, in place of whole episodes."""
    turn_gamma: float = 1.0
    """Discount of a turn, with --turn-credit."""
    process_weight: float = 0.0
    """How much a turn's own rewards count, compared with those of the same turn in the group, on top of the advantage of
    the whole episode. What a turn brings counts at once, and whatever came of it later. After MT-GRPO, but a last
    turn's own reward has the outcome in it, so that a right answer is compared with searches of the same turn."""

    def __post_init__(self):
        super().__post_init__()
        self.check_share("turn_gamma")
        self.check_least(process_weight=0)
        if self.turn_credit and self.process_weight:
            raise ValueError("turn_credit compares the returns from each turn on already: leave out process_weight")


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "grpo")  # before torch is imported: --help and mistakes answer at once

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch

from trainers.algorithms.advantages import group_advantage, to_tokens
from trainers.algorithms.kl_penalty import KLPenalty
from trainers.algorithms.losses import is_clipped, kl_k3, surrogate, total_loss
from trainers.algorithms.turn_advantages import turn_advantage
from trainers.models.fsdp import clip_gradients
from trainers.models.lora import trainable_parameters
from trainers.models.micro_batches import micro_batches
from trainers.models.policy import Policy
from trainers.preparation import UpdateMetrics, prepare_batch, select_episodes, shuffle_minibatches, surrogate_metrics
from trainers.runs.run import Run
from trainers.trajectory import Batch, PackedEpisodes, Trajectory, unpack

Metrics = dict[str, float]
AnyArgs = TypeVar("AnyArgs", bound=TrainArgs)
AdvantageFunction = Callable[[AnyArgs, PackedEpisodes], torch.Tensor]


def compute_advantages(args: Args, episodes: PackedEpisodes) -> torch.Tensor:
    """How much better an attempt did than the others at its question, at each of its tokens: float32 [N, A]."""
    e = episodes
    if args.turn_credit:
        return turn_advantage(e.rewards, e.turns, e.mask, e.groups, args.turn_gamma, args.scale_by_std, e.valid)
    whole = to_tokens(group_advantage(e.returns, e.groups, args.scale_by_std, e.valid), e.mask)
    if not args.process_weight:
        return whole
    own = turn_advantage(e.rewards, e.turns, e.mask, e.groups, 0.0, args.scale_by_std, e.valid)
    return whole + args.process_weight * own


def policy_loss(
    args: TrainArgs, policy: Policy, kl: KLPenalty | None, part: Batch, normalizer: int
) -> tuple[torch.Tensor, Metrics]:
    """The loss of a micro-batch, and means over its tokens.

    Args:
        part: with its advantages.
        normalizer: action tokens (or sequences) of the whole gradient step, so that any split into micro-batches gives
            one gradient.
    """
    assert part.advantages is not None
    clip = args.clip_low, args.clip_high
    logprobs, entropy = policy.logprobs(part, args.temperature, entropy_gradient=args.entropy_coef > 0)
    loss = surrogate(args.loss, logprobs, part.logprobs, part.advantages, part.mask, *clip)  # of each token, [B, T]
    if part.importance_weights is not None:
        loss = loss * part.importance_weights
    if kl is not None:
        loss = loss + kl.loss(logprobs, part)
    if args.entropy_coef:
        loss = loss - args.entropy_coef * entropy
    clipped = is_clipped(args.loss, logprobs, part.logprobs, part.mask, *clip)
    sampler = part.logprobs if part.sampler_logprobs is None else part.sampler_logprobs
    metrics = surrogate_metrics(part, logprobs, entropy, clipped, kl_k3(sampler, logprobs))
    return total_loss(args.normalize, loss, part.mask, normalizer), metrics  # nothing outside of the mask


def update(
    args: AnyArgs,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    kl: KLPenalty | None,
    compute_advantages: AdvantageFunction[AnyArgs],
    trajectories: list[Trajectory],
    rng: np.random.Generator,
) -> Metrics:
    """One batch of episodes into ``args.epochs`` times ``args.minibatches`` gradient steps."""
    trajectories, metrics = select_episodes(trajectories, args)  # filters of groups, a penalty for long turns
    if not trajectories:
        return metrics  # the filter left no group: there is nothing to learn from
    batch, episodes, prepared = prepare_batch(trajectories, policy, args, kl)
    batch.advantages = unpack(compute_advantages(args, episodes), batch)
    # A row without an advantage has no gradient, and is left out of the passes. It counts in the normalizer all the same.
    # A KL penalty in the loss, and an entropy bonus, are for every row whose episode did not end in an error.
    used = (batch.advantages.abs() > 1e-6).any(1)
    if (kl is not None and args.kl != "k1") or args.entropy_coef:
        used = episodes.valid[batch.trajectory]
    means = UpdateMetrics()
    for rows in shuffle_minibatches(len(batch.ids), args, rng):
        rows = rows.to(policy.device)
        normalizer = int(batch.mask[rows].sum()) if args.normalize == "tokens" else len(rows)
        optimizer.zero_grad()
        for part, weight in micro_batches(batch, rows[used[rows]], args.max_tokens_per_micro_batch):
            loss, values = policy_loss(args, policy, kl, part, normalizer)
            (loss * weight).backward()
            means.add_part(part, weight, loss, values)
        norm = clip_gradients(trainable_parameters(policy.model), args.max_grad_norm)
        means.add_step(norm)
        if norm.isfinite():  # or one such step would be the policy's last
            optimizer.step()
    if kl is not None:
        kl.adapt()
    return metrics | prepared | means.compute(optimizer.param_groups[0]["lr"])


def train(
    args: AnyArgs, compute_advantages: AdvantageFunction[AnyArgs], algorithm: str = "grpo", title: str = "GRPO"
) -> dict:
    """A whole run: rollouts and updates in turn. Returns its summary, which its folder holds as summary.json.

    Args:
        compute_advantages: of the packed episodes of a batch, float32 [N, A]: what makes GRPO another algorithm.
        algorithm: its short name, for the folder of the run.
        title: what it is called in the table.
    """
    with Run(args, algorithm, f"Trained with {title}") as run:  # folder, environments, policy, engine, baselines
        policy = run.policy
        kl = KLPenalty(policy, args) if args.kl_coef else None
        optimizer = make_optimizer(policy, [{"params": trainable_parameters(policy.model), "lr": args.lr}])
        for step in run.steps(
            optimizer, kl=kl if args.kl_target else None
        ):  # resumes; evaluates, logs and saves between
            trajectories = run.collect(step)  # rollouts; with DAPO's refill, more of them
            step.log(update(args, policy, optimizer, kl, compute_advantages, trajectories, step.rng))
    return run.summary


def make_optimizer(policy: Policy, groups: list[dict]) -> torch.optim.AdamW:
    """AdamW; on a GPU in one kernel, as the usual form holds another copy of all weights for a moment."""
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=policy.device.type == "cuda" or None)


def main(args: Args, name: str = "grpo") -> dict:
    """``name``: of a preset, where it is one."""
    return train(args, compute_advantages, name, "GRPO" if name == "grpo" else name)


if __name__ == "__main__":
    main(ARGS)
