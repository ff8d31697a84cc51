"""GRPO: group relative policy optimisation over multi-turn episodes, top to bottom.

For each of questions_per_update questions the policy rolls out group_size episodes. An episode's advantage A is its return minus
the mean return of its group (Shao et al. 2024, arXiv 2402.03300). Each gradient step minimises, with r = π(token) / π_old(token),

    L = Σ [ −min(r A, clip(r, 1 − ε_low, 1 + ε_high) A) w + KL penalty − entropy bonus ] / (action tokens of the minibatch)

summed over the action tokens: those that the policy sampled. Tool output is context and carries no gradient; only the ablation
loss_mask = false breaks this invariant. π_old is the sampler's policy; with --importance it is the trainer's own policy before
the update, and w corrects for the sampler (else w = 1). Penalty and bonus are off by default.

Differences from the paper:

- no division by the group's standard deviation, and no per-sequence length normalisation, both of which bias the gradient
  (Dr. GRPO, arXiv 2503.20783); --scale-by-std and normalize = "sequences" restore them;
- one mean over all tokens, and a wider upper clip, "clip-higher" (DAPO, arXiv 2503.14476);
- no KL penalty to a reference model unless --kl-coef is set.

Variants by option: DAPO (--config dapo), GSPO (--loss gspo), CISPO (--loss cispo), turn returns instead of episode returns
(--turn-credit, GTPO). process_weight adds each turn's own rewards to the episode's advantage (after MT-GRPO, Zeng et al. 2025,
arXiv 2505.11821).

Shapes: [N, A] are N episodes with at most A action tokens; [B, T] are B rows of the model, padded to the longest. A row is an
episode, or a part of one if its context was rewritten.

    python -m trainers.grpo                       # the tiny policy learns to search, on a laptop
    python -m trainers.grpo --env AgentR1/HotpotQA-v0 --model PATH_OR_ID
"""

from dataclasses import dataclass

from trainers.cli import parse
from trainers.config import NotNegative, Share, TrainArgs, option
from trainers.runtime.errors import UserError


@dataclass(kw_only=True)
class Args(TrainArgs):
    """Train with GRPO in a tool-using environment, beside baselines."""

    scale_by_std: bool = option(False, advanced=True)
    """Divide advantages by the standard deviation of their group, as GRPO's paper does."""
    turn_credit: bool = option(False, advanced=True)
    """Compare the return from each turn on with the group's at the same turn, instead of whole episodes."""
    turn_gamma: Share = option(1.0, config_only=True)
    """Discount from turn to turn, with turn_credit."""
    process_weight: NotNegative = option(0.0, config_only=True)
    """Weight of A_turn (a turn's own reward minus the group's mean at that turn), added to A_episode. Unlike in MT-GRPO, it
    includes the outcome."""

    def __post_init__(self):
        super().__post_init__()
        self.check_unused(self.turn_credit, "without turn_credit", "turn_gamma")
        if self.turn_credit and self.process_weight:
            raise UserError("turn_credit compares the returns from each turn on already: leave out process_weight")


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "grpo")  # before torch is imported, so that --help and errors appear at once

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from trainers.algorithms.advantages import group_advantage, to_tokens
from trainers.algorithms.losses import cispo_loss, clipped_policy_loss, gspo_loss, is_clipped, total_loss
from trainers.algorithms.turn_advantages import turn_advantage
from trainers.lifecycle.rl_run import RLRun
from trainers.lifecycle.setup import open_setup
from trainers.models.fsdp import clip_gradients
from trainers.models.hidden_states import HiddenStates
from trainers.models.kl_reference import KLPenalty
from trainers.models.lora import has_lora, trainable_parameters
from trainers.models.micro_batches import micro_batches
from trainers.models.policy import Policy
from trainers.rollouts.batching import (
    Metrics,
    UpdateMetrics,
    add_sequence_ratios,
    count_normalizer,
    prepare_batch,
    select_episodes,
    shuffle_minibatches,
    store_advantages,
)
from trainers.trajectory import Batch, PackedTrajectories, Trajectory, unpack

AnyArgs = TypeVar("AnyArgs", bound=TrainArgs)
AdvantageFunction = Callable[[AnyArgs, PackedTrajectories], torch.Tensor]  # [N, A]


def compute_advantages(args: Args, packed: PackedTrajectories) -> torch.Tensor:
    """Compute GRPO's advantage of each action token, float32 [N, A]."""

    def compare_turns(gamma: float) -> torch.Tensor:
        turns = packed.rewards, packed.turns, packed.mask, packed.groups
        return turn_advantage(*turns, gamma, args.scale_by_std, packed.valid)

    if args.turn_credit:
        return compare_turns(args.turn_gamma)
    whole = to_tokens(group_advantage(packed.returns, packed.groups, args.scale_by_std, packed.valid), packed.mask)
    if not args.process_weight:
        return whole
    own = compare_turns(gamma=0.0)  # only the turn's own reward
    return whole + args.process_weight * own


def surrogate_loss(args: TrainArgs, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Compute the loss of each token before penalties, float32 [B, T].

    Its gradient is −A ∇ log π if nothing is clipped.
    """
    assert batch.advantages is not None
    old_logprobs, advantages = batch.old_logprobs, batch.advantages
    if args.loss == "gspo":
        sequence = batch.episode_tokens, batch.other_log_ratios
        return gspo_loss(logprobs, old_logprobs, advantages, batch.mask, *args.clip_range, *sequence)
    if args.loss == "cispo":
        return cispo_loss(logprobs, old_logprobs, advantages, *args.clip_range)
    return clipped_policy_loss(logprobs, old_logprobs, advantages, *args.clip_range, args.dual_clip)


def policy_loss(
    args: TrainArgs, policy: Policy, kl_penalty: KLPenalty | None, batch: Batch, normalizer: int,
    states: HiddenStates | None = None,
) -> tuple[torch.Tensor, Metrics]:  # fmt: skip
    """Compute the loss of a micro-batch, and metrics.

    The loss is a scalar; metrics are means over action tokens. ``normalizer``: action tokens (or sequences) of the whole gradient
    step, so any split gives the same gradient. ``states``: `Policy.hidden_states` of the batch, if they are known already.
    """
    logprobs, entropy = policy.logprobs(batch, args.temperature, args.entropy_coef > 0, states)
    loss = surrogate_loss(args, logprobs, batch)
    if batch.importance_weights is not None:
        loss = loss * batch.importance_weights
    if kl_penalty is not None:
        loss = loss + kl_penalty.loss(logprobs, batch)
    if args.entropy_coef:
        loss = loss - args.entropy_coef * entropy
    sequence = batch.episode_tokens, batch.other_log_ratios
    clipped = is_clipped(args.loss, logprobs, batch.old_logprobs, batch.mask, *args.clip_range, *sequence)
    metrics = UpdateMetrics.of_tokens(batch, logprobs, entropy, clipped)
    total = total_loss(args.mean_over, loss, batch.mask, normalizer, batch.episode_tokens)  # the mask is applied here
    return total, metrics


def update(
    args: AnyArgs,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    kl_penalty: KLPenalty | None,
    advantage_fn: AdvantageFunction[AnyArgs],
    trajectories: list[Trajectory],
    rng: np.random.Generator,
) -> Metrics:
    """Take epochs x minibatches gradient steps on a batch of episodes.

    An episode with a tool failure has no advantage and is left out of its group's mean. A truncated episode counts like any
    other. If a filter leaves no group, no step is taken, and the metrics of steps are missing.
    """
    trajectories, metrics = select_episodes(trajectories, args)  # filters of groups, a penalty for long turns
    if not trajectories:
        return metrics
    batch, packed, prepared = prepare_batch(trajectories, policy, args, kl_penalty)
    batch.advantages = unpack(advantage_fn(args, packed), batch)  # [N, A] to [B, T]
    store_advantages(trajectories, batch)  # for episodes.jsonl
    if args.entropy_coef or (kl_penalty is not None and kl_penalty.in_loss):
        has_gradient = packed.valid[batch.trajectory]
    else:
        has_gradient = (batch.advantages.abs() > 1e-6).any(1)
    means = UpdateMetrics()
    for rows in shuffle_minibatches(batch, args, rng):
        rows = rows.to(policy.device)
        normalizer = count_normalizer(batch, rows, packed.valid, args)
        rows = rows[has_gradient[rows]]  # rows without a gradient need no pass, but count in the normalizer
        batch = add_sequence_ratios(batch, rows, policy, args)  # for GSPO, where a context was rewritten
        for micro_batch, scale in micro_batches(batch, rows, args.max_tokens_per_micro_batch, policy.token_cost):
            loss, values = policy_loss(args, policy, kl_penalty, micro_batch, normalizer)
            (loss * scale).backward()  # the scale is 1 except with several processes
            means.add(micro_batch, scale, loss, values)
        norm = clip_gradients(trainable_parameters(policy.model), args.max_grad_norm)
        means.add_step(norm)
        if norm.isfinite():  # a gradient that is not finite would destroy the weights
            optimizer.step()
        optimizer.zero_grad()  # here, so that rollouts can use the memory of the gradients
    if kl_penalty is not None:
        kl_penalty.adapt()
    return metrics | prepared | means.compute()


def train(
    args: AnyArgs, advantage_fn: AdvantageFunction[AnyArgs], algorithm: str = "grpo", title: str = "GRPO"
) -> dict:
    """Train a policy, and return the run's summary.

    ``advantage_fn``: computes the advantages, which define the algorithm. ``title``: its name in the table of results.
    """
    with open_setup(args, algorithm, f"Trained with {title}") as setup:  # folder, environments, policy; baselines
        policy = setup.policy
        rate = args.lr or default_rates(policy.model)[0]
        optimizer = make_optimizer(policy, [{"params": trainable_parameters(policy.model), "lr": rate}])
        kl_penalty = KLPenalty(policy, args) if args.kl_coef else None
        saved = {"kl": kl_penalty} if kl_penalty and args.kl_target else {}  # β, if it is adapted
        with RLRun(setup, optimizer, **saved) as run:  # resumes
            for step in run.steps():  # sets the learning rate; evaluates, logs and saves between updates
                trajectories = run.collect(step)  # rollouts; with dynamic sampling more of them, already filtered
                step.log(update(args, policy, optimizer, kl_penalty, advantage_fn, trajectories, step.rng))
            return run.close()  # the closing table and the report


def default_rates(model: PreTrainedModel) -> tuple[float, float]:
    """Return the learning rates of a policy and its critic that docs/hyperparameters.md has for a model of this size."""
    size, has_adapter = model.num_parameters(), has_lora(model)
    if size < 50_000_000:
        return 5e-4, 1e-3
    if size < 300_000_000:
        return 2e-4 if has_adapter else 1e-6, 1e-4
    return 1e-5 if has_adapter else 1e-6, 1e-5


def make_optimizer(policy: Policy, groups: list[dict]) -> torch.optim.AdamW:
    """Make AdamW; on a GPU the fused version, as the default one allocates a temporary copy of all weights."""
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=policy.device.type == "cuda" or None)


def main(args: Args, name: str = "grpo") -> dict:
    """Run the command. ``name``: "grpo", or that of a preset of StarPO."""
    return train(args, compute_advantages, name, "GRPO" if name == "grpo" else name)


if __name__ == "__main__":
    main(ARGS)
