"""PPO: a critic, generalised advantage estimation over the policy's own tokens, and the clipped surrogate.

Schulman et al. 2017 with whitened advantages and a clipped value loss (Huang et al. 2022). The critic's layers start as a copy of
the policy's. --gae bi-level is RAGEN's turn-level estimator: GAE over turns with their own discount, then over the tokens of
each turn.

Differences from the papers: the upper clip is wider (DAPO), and the critic has its own learning rate. γ = λ = 1 by default, since
rewards come late and episodes are short. The loop is that of trainers/grpo.py, written again with the critic; the surrogate is
GRPO's `policy_loss`.

    python -m trainers.ppo
    python -m trainers.ppo --gae bi-level
"""

from dataclasses import dataclass, replace
from typing import Literal

from trainers.cli import parse
from trainers.config import NotNegative, Positive, Share, TrainArgs, option
from trainers.runtime.errors import UserError


@dataclass(kw_only=True)
class Args(TrainArgs):
    """Train with PPO in a tool-using environment, beside baselines."""

    gamma: Share = 1.0
    """Discount from token to token."""
    lam: Share = 1.0
    """λ of GAE; at 1 the advantage is the return minus the critic's estimate."""
    gae: Literal["tokens", "bi-level", "turns"] = "tokens"
    """Steps of GAE: tokens; bi-level: turns, then the tokens inside them (RAGEN); turns: one value and one advantage for each
    turn (Agent-R1)."""
    turn_gamma: Share = option(0.95, config_only=True)
    """Discount from turn to turn, with gae bi-level or turns."""
    turn_lam: Share = option(1.0, config_only=True)
    """λ from turn to turn, with gae bi-level or turns."""
    critic_lr: Positive | None = None
    """Learning rate of the critic. Default: 1e-3 for the tiny policy, 1e-5 for a pretrained model (1e-4 at 135 M)."""
    value_clip: Positive = option(0.2, config_only=True)
    """ε of the clipped value loss: the largest move of a value from its old estimate that has a gradient."""
    value_coef: NotNegative = option(0.5, config_only=True)
    """Weight of the value loss. It matters for shared layers and for the clipping of the critic's gradient."""
    share_layers: bool = option(False, advanced=True)
    """Let the critic use the policy's layers, which run once for both: an update takes 0.6 of the time."""
    whiten_advantages: bool = option(True, config_only=True)
    """Scale the advantages of a batch to mean 0 and standard deviation 1."""
    advantage_mask: bool = option(True, config_only=True)
    """Run GAE over sampled tokens only. False runs it over tool output too: the ablation of Agent-R1's paper."""

    def compares_attempts(self) -> bool:
        return self.filter != "none"

    def __post_init__(self):
        super().__post_init__()
        self.check_unused(self.gae != "tokens", "with gae 'tokens'", "turn_gamma", "turn_lam")
        instead = "with gae 'turns', whose discounts are turn_gamma and turn_lam"
        self.check_unused(self.gae != "turns", instead, "gamma", "lam")
        if self.advantage_mask and not self.loss_mask:
            raise UserError("without the loss mask there is no advantage mask either: set advantage_mask = false too")
        if self.gae != "tokens" and not self.advantage_mask:
            raise UserError(f"gae {self.gae!r} finds turns by the advantage mask: leave advantage_mask on")


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "ppo")  # before torch is imported, so that --help and errors appear at once

import numpy as np
import torch

from trainers.algorithms.advantages import whiten
from trainers.algorithms.gae import bi_level_gae, gae, turn_level_gae
from trainers.algorithms.losses import aggregate, total_loss, value_loss
from trainers.grpo import default_rates, make_optimizer, policy_loss
from trainers.lifecycle.rl_run import RLRun
from trainers.lifecycle.setup import open_setup
from trainers.models.critic import Critic
from trainers.models.fsdp import clip_gradients
from trainers.models.kl_reference import KLPenalty
from trainers.models.lora import trainable_parameters
from trainers.models.micro_batches import micro_batches, remove_mask
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
from trainers.trajectory import Batch, Trajectory, pack, unpack


def add_advantages(args: Args, critic: Critic, batch: Batch, valid: torch.Tensor) -> Batch:
    """Add advantages, the critic's values and their targets to the batch, each float32 [B, T]. Trajectories that are not
    ``valid``, bool [N], ended in an error and have no advantage."""
    if args.advantage_mask or not args.loss_mask:  # without a loss mask, `prepare_batch` has removed the mask already
        return estimate_advantages(args, critic, batch, valid)
    # The paper's ablation: GAE also steps over tool output, the loss does not.
    found = estimate_advantages(args, critic, remove_mask(batch), valid)
    names = ("advantages", "values", "value_targets")
    return replace(batch, **{name: torch.where(batch.mask, getattr(found, name), 0.0) for name in names})


def estimate_advantages(args: Args, critic: Critic, batch: Batch, valid: torch.Tensor) -> Batch:
    """Run the GAE that ``args.gae`` names, over the tokens of the mask or over their turns."""
    values, size = critic.values(batch, args.max_tokens_per_micro_batch), len(valid)
    rewards, mask = pack(batch.rewards, batch, size), pack(batch.mask, batch, size)
    turns, packed = pack(batch.turns, batch, size, fill=-1), pack(values, batch, size)
    if args.gae == "bi-level":
        advantages, targets = bi_level_gae(
            rewards, packed, turns, mask, args.gamma, args.lam, args.turn_gamma, args.turn_lam, valid
        )
    elif args.gae == "turns":
        advantages, targets = turn_level_gae(rewards, packed, turns, mask, args.turn_gamma, args.turn_lam, valid)
    else:
        advantages, targets = gae(rewards, packed, mask, args.gamma, args.lam, valid)
    if args.whiten_advantages:
        advantages = whiten(advantages, mask & valid[:, None])
    return replace(batch, advantages=unpack(advantages, batch), values=values, value_targets=unpack(targets, batch))


def actor_critic_loss(
    args: Args, policy: Policy, critic: Critic, kl_penalty: KLPenalty | None, batch: Batch, normalizer: int
) -> tuple[torch.Tensor, Metrics]:
    """Compute GRPO's surrogate plus the value loss on the tokens of a micro-batch, and metrics, which are means over them."""
    states = policy.hidden_states(batch) if critic.shared else None  # shared layers need one pass only
    loss, metrics = policy_loss(args, policy, kl_penalty, batch, normalizer, states)
    assert batch.values is not None and batch.value_targets is not None
    values = critic(batch, states)
    value_losses = value_loss(values, batch.values, batch.value_targets, args.value_clip)
    with torch.no_grad():
        tokens = batch.mask.sum().clamp(min=1)
        metrics["value_loss"] = aggregate(value_losses, batch.mask, tokens).item()
        metrics["value"] = aggregate(values, batch.mask, tokens).item()
    of_values = total_loss(args.mean_over, value_losses, batch.mask, normalizer, batch.episode_tokens)
    return loss + args.value_coef * of_values, metrics


def update(
    args: Args,
    policy: Policy,
    critic: Critic,
    optimizer: torch.optim.Optimizer,
    kl_penalty: KLPenalty | None,
    trajectories: list[Trajectory],
    rng: np.random.Generator,
) -> Metrics:
    """Take epochs x minibatches gradient steps of policy and critic on a batch of episodes.

    If a filter leaves no group, no step is taken, and the metrics of steps are missing.
    """
    trajectories, metrics = select_episodes(trajectories, args)  # filters of groups, a penalty for long turns
    if not trajectories:
        return metrics
    batch, packed, prepared = prepare_batch(trajectories, policy, args, kl_penalty)
    batch = add_advantages(args, critic, batch, packed.valid)
    store_advantages(trajectories, batch)  # for episodes.jsonl
    has_gradient = packed.valid[batch.trajectory]  # the critic learns from rows without an advantage too
    means = UpdateMetrics()
    for rows in shuffle_minibatches(batch, args, rng):
        rows = rows.to(policy.device)
        normalizer = count_normalizer(batch, rows, packed.valid, args)
        rows = rows[has_gradient[rows]]  # rows without a gradient need no pass, but count in the normalizer
        batch = add_sequence_ratios(batch, rows, policy, args)  # for GSPO, where a context was rewritten
        for micro_batch, scale in micro_batches(batch, rows, args.max_tokens_per_micro_batch, policy.token_cost):
            loss, values = actor_critic_loss(args, policy, critic, kl_penalty, micro_batch, normalizer)
            (loss * scale).backward()  # the scale is 1 except with several processes
            means.add(micro_batch, scale, loss, values)
        norms = [clip_gradients(trainable_parameters(m), args.max_grad_norm) for m in (policy.model, critic)]
        means.add_step(norms[0])
        if all(norm.isfinite() for norm in norms):  # a gradient that is not finite would destroy the weights
            optimizer.step()
        optimizer.zero_grad()  # here, so that rollouts can use the memory of the gradients
    if kl_penalty is not None:
        kl_penalty.adapt()
    return metrics | prepared | means.compute()


def train(args: Args, algorithm: str = "ppo", title: str = "PPO") -> dict:
    """Train a policy and a critic. Returns the summary of the run, which its folder holds as summary.json."""
    with open_setup(args, algorithm, f"Trained with {title}") as setup:  # folder, environments, policy; baselines
        policy = setup.policy
        critic = Critic(policy, args.share_layers)
        actor_rate, critic_rate = default_rates(policy.model)
        actor_group = {"params": trainable_parameters(policy.model), "lr": args.lr or actor_rate}
        critic_group = {"params": trainable_parameters(critic), "lr": args.critic_lr or critic_rate}
        optimizer = make_optimizer(policy, [actor_group, critic_group])
        kl_penalty = KLPenalty(policy, args) if args.kl_coef else None
        saved = {"kl": kl_penalty} if kl_penalty and args.kl_target else {}  # β, if it is adapted
        with RLRun(setup, optimizer, critic=critic, **saved) as run:  # resumes
            for step in run.steps():  # evaluates, logs and saves between updates
                trajectories = run.collect(step)  # rollouts; with dynamic sampling more of them, already filtered
                step.log(update(args, policy, critic, optimizer, kl_penalty, trajectories, step.rng))
            return run.close()  # the closing table and the report


def main(args: Args, name: str = "ppo") -> dict:
    """Run the command. ``name``: "ppo", or that of a preset of StarPO."""
    return train(args, name, "PPO" if name == "ppo" else name)


if __name__ == "__main__":
    main(ARGS)
