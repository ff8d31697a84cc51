"""PPO: a critic, generalised advantage estimation over the policy's own tokens, and the clipped surrogate.

Schulman et al. 2017 with the details that matter (Huang et al. 2022): whitened advantages and a clipped value loss. The
critic reads with layers of its own that start as a copy of the policy's. ``--bi-level`` is RAGEN's turn-level estimator:
GAE over turns first, with a discount of its own, then over the tokens inside each turn. Where this departs from the
papers: the upper clip is wider (DAPO), γ = λ = 1 by default, as reward comes late and episodes are short, and the critic
has a learning rate of its own.

    python -m trainers.ppo
    python -m trainers.ppo --bi-level
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # run as a file, it finds the packages beside it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch
import tyro

from trainers.algorithms.advantages import whiten
from trainers.algorithms.gae import bi_level_gae, gae
from trainers.algorithms.kl import KLPenalty
from trainers.algorithms.losses import aggregate, value_loss
from trainers.algorithms.objective import policy_loss, total
from trainers.algorithms.optimize import PolicyArgs, adamw, episodes_of, gradient_steps
from trainers.algorithms.selection import selected
from trainers.models.critic import Critic
from trainers.models.lora import make_reference, trainable_parameters
from trainers.models.mask_ablation import unmasked
from trainers.models.policy import Policy
from trainers.runs.training import Learner, train
from trainers.trajectory import Batch, Trajectory, pack, unpack


@dataclass(kw_only=True)
class Args(PolicyArgs):
    """Train a policy with PPO in a tool-using environment, and compare it with baselines on held-out questions."""

    gamma: float = 1.0
    """Discount from token to token."""
    lam: float = 1.0
    """λ of GAE; at 1 the advantage is the return less the critic's estimate."""
    bi_level: bool = False
    """Estimate over turns first, then inside them (RAGEN)."""
    turn_gamma: float = 0.95
    """Discount from turn to turn, with ``bi_level``."""
    turn_lam: float = 1.0
    """λ from turn to turn, with ``bi_level``."""
    critic_lr: float = 1e-3
    """Learning rate of the critic. The default is for the tiny policy; start at 1e-5 for a pretrained model."""
    value_clip: float = 0.2
    """How far a value may move from what it was before the value loss ignores it."""
    value_coef: float = 0.5
    """Weight of the value loss where the layers are shared."""
    share_layers: bool = False
    """The critic reads with the policy's own layers."""
    whiten_advantages: bool = True
    """Advantages of a batch to mean 0 and deviation 1."""
    advantage_mask: bool = True
    """Turning it off runs GAE over what tools returned as well: the paper's ablation."""

    def __post_init__(self):
        super().__post_init__()
        self.check_positive("critic_lr", "value_clip")
        self.check_share("gamma", "lam", "turn_gamma", "turn_lam")
        self.check_least(value_coef=0)
        if self.advantage_mask and not self.loss_mask:
            raise ValueError("without the loss mask there is no advantage mask either: give --no-advantage-mask too")
        if self.bi_level and not self.advantage_mask:
            raise ValueError("bi_level finds turns by the advantage mask, which --no-advantage-mask turns off")


def estimate(args: Args, critic: Critic, batch: Batch, valid: torch.Tensor) -> Batch:
    """The batch with its advantages, the critic's values and their targets, each [B, T], beside it."""
    values = critic.values(batch, args.max_tokens_per_micro_batch)
    size = len(valid)
    rewards, mask, turns, packed = (
        pack(tensor, batch, size, fill)
        for tensor, fill in ((batch.rewards, 0), (batch.mask, 0), (batch.turns, -1), (values, 0))
    )
    if args.bi_level:
        advantages, targets = bi_level_gae(
            rewards, packed, turns, mask, args.gamma, args.lam, args.turn_gamma, args.turn_lam, valid
        )
    else:
        advantages, targets = gae(rewards, packed, mask, args.gamma, args.lam, valid)
    if args.whiten_advantages:
        advantages = whiten(advantages, mask & valid[:, None])
    batch.extra |= {"advantages": unpack(advantages, batch), "targets": unpack(targets, batch), "values": values}
    return batch


def actor_critic_loss(policy, critic: Critic, penalty, args: Args, part: Batch, normalizer: int):
    """The surrogate, and the value loss on the same tokens."""
    loss, metrics = policy_loss(policy, penalty, args, part, normalizer)
    values = critic(part)
    of_values = value_loss(values, part.extra["values"], part.extra["targets"], args.value_clip)
    tokens = part.mask.sum().clamp(min=1)
    with torch.no_grad():
        metrics["value_loss"] = aggregate(of_values, part.mask, tokens).item()
        metrics["value"] = aggregate(values, part.mask, tokens).item()
    return loss + args.value_coef * total(args, of_values, part.mask, normalizer), metrics


def update(
    policy: Policy, critic: Critic, penalty: KLPenalty | None, optimizer: torch.optim.Optimizer, args: Args,
    trajectories: list[Trajectory], rng: np.random.Generator,
) -> dict[str, float]:  # fmt: skip
    """One batch of episodes into gradient steps of both."""
    kept, metrics = selected(trajectories, args)
    if not kept:
        return metrics
    episodes, of_penalty = episodes_of(kept, policy, args, penalty)
    batch = seen = episodes.batch
    if args.loss_mask and not args.advantage_mask:
        seen = unmasked(batch, policy, args.temperature, args.max_tokens_per_micro_batch)
    estimate(args, critic, seen, episodes.valid)
    batch.extra |= {name: torch.where(batch.mask, values, 0.0) for name, values in seen.extra.items()}
    used = episodes.valid[batch.trajectory]
    loss = partial(actor_critic_loss, policy, critic, penalty, args)
    metrics |= of_penalty | gradient_steps(batch, used, optimizer, args, rng, loss)
    if penalty is not None:
        penalty.steer()
    return metrics


def start(args: Args, policy: Policy) -> Learner:
    critic = Critic(policy, args.share_layers)
    penalty = KLPenalty(make_reference(policy), args) if args.kl_coef else None
    groups = [
        {"params": trainable_parameters(policy.model), "lr": args.lr},
        {"params": trainable_parameters(critic), "lr": args.critic_lr},
    ]
    optimizer = adamw(groups, policy)
    step = partial(update, policy, critic, penalty, optimizer, args)
    return Learner(
        update=step, optimizers=[optimizer], modules={"critic": critic} | ({"kl": penalty} if args.kl_target else {})
    )


def main(args: Args, name: str = "ppo") -> dict:
    """``name``: of a preset, where it is one."""
    title = f"Trained with {'PPO' if name == 'ppo' else name}"
    return train(args, name, title, partial(start, args))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
