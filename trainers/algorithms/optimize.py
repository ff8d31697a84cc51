"""From a batch of episodes to gradient steps: what the policy-gradient methods share, as functions.

An algorithm says what a token's advantage is; which episodes count, and the passes through the model, are here. The
loss itself is in `trainers.algorithms.objective`.
The invariant of everything below: only tokens that the policy sampled carry gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from trainers.algorithms.kl import KLPenalty
from trainers.algorithms.objective import corrected, policy_loss
from trainers.algorithms.selection import selected
from trainers.distributed import added, ranks
from trainers.models.lora import make_reference, trainable_parameters
from trainers.models.mask_ablation import unmasked
from trainers.models.micro_batches import own_parts
from trainers.models.policy import Policy
from trainers.runs.arguments import PolicyArgs
from trainers.runs.training import Learner
from trainers.trajectory import Batch, Trajectory, collate, pack, unpack

Metrics = dict[str, float]


@dataclass(slots=True, kw_only=True)
class Episodes:
    """A batch as estimators see it: the policy's own tokens, one trajectory a row.

    Attributes:
        returns: float [N], of whole episodes.
        rewards: float [N, A], each turn's at its last token.
        mask: bool [N, A].
        turns: int [N, A], -1 outside the mask.
        groups: int [N], attempts at the same question share a number.
        valid: bool [N]; the others ended in an error that was not the policy's.
        anchors: for each trajectory, the label of the state before each turn.
        batch: the sequences for the model.
    """

    returns: torch.Tensor
    rewards: torch.Tensor
    mask: torch.Tensor
    turns: torch.Tensor
    groups: torch.Tensor
    valid: torch.Tensor
    anchors: list[list]
    batch: Batch


Advantages = Callable[[Episodes], torch.Tensor]


def episodes_of(
    trajectories: list[Trajectory], policy: Policy, args: PolicyArgs, penalty: KLPenalty | None = None
) -> tuple[Episodes, Metrics]:
    """Collate, correct and penalise, and pack the policy's own tokens."""
    batch = collate(trajectories, policy.pad_id).to(policy.device)
    if not args.loss_mask:
        batch = unmasked(batch, policy, args.temperature, args.max_tokens_per_micro_batch)
    batch, metrics = corrected(batch, policy, args)
    size, returns = len(trajectories), [t.episode_return for t in trajectories]
    valid = torch.tensor([not t.failed for t in trajectories], device=policy.device)
    metrics |= penalty.prepare(batch, valid) if penalty is not None else {}
    rewards = pack(batch.rewards, batch, size)
    if penalty is not None and args.kl == "k1":
        returns = rewards.sum(1).tolist()
    episodes = Episodes(
        returns=torch.tensor(returns, dtype=torch.float32, device=policy.device),
        rewards=rewards,
        mask=pack(batch.mask, batch, size),
        turns=pack(batch.turns, batch, size, fill=-1),
        groups=torch.tensor([t.group for t in trajectories], device=policy.device),
        valid=valid,
        anchors=[t.anchors for t in trajectories],
        batch=batch,
    )
    return episodes, metrics


def gradient_steps(
    batch: Batch,
    used: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    args: PolicyArgs,
    rng: np.random.Generator,
    loss_of: Callable[[Batch, int], tuple[torch.Tensor, Metrics]],
) -> Metrics:
    """Passes over a batch in shuffled minibatches, each split into micro-batches of bounded size.

    Args:
        used: bool [B]; the other rows have no gradient and are left out of the passes, but count in the normalizer.
        optimizer: the policy's weights are its first group; each group's gradient is clipped by itself.
        loss_of: (micro-batch, normalizer) to its loss and metrics, which are means over its tokens.
    """
    loss_sum = norm_sum = 0.0
    means: Metrics = {}
    steps = tokens = 0
    for _ in range(args.epochs):
        order = torch.from_numpy(rng.permutation(len(batch.ids))).to(batch.ids.device)
        for rows in order.tensor_split(min(args.minibatches, len(order))):
            steps += 1
            normalizer = int(batch.mask[rows].sum()) if args.normalize == "tokens" else len(rows)
            optimizer.zero_grad()
            rows = rows[used[rows]]
            for part, counts in own_parts(batch[rows], args.max_tokens_per_micro_batch) if len(rows) else ():
                loss, metrics = loss_of(part, normalizer)
                (loss * ranks() * counts).backward()  # times ranks: sharded gradients are averaged, and ours are a sum
                loss_sum += loss.item() * counts
                count = int(part.mask.sum()) * counts
                tokens += count
                for name, value in metrics.items():
                    means[name] = means.get(name, 0.0) + value * count
            norms = [clip_norm(group["params"], args.max_grad_norm) for group in optimizer.param_groups]
            norm_sum += norms[0].item()
            if all(norm.isfinite() for norm in norms):  # or one such step would be the policy's last
                optimizer.step()
    sums = added(means | {"loss": loss_sum, "tokens": tokens})
    loss_sum, tokens = sums.pop("loss"), sums.pop("tokens")
    means = {name: value / max(tokens, 1) for name, value in sums.items()}
    means |= {"loss": loss_sum / steps, "grad_norm": norm_sum / steps, "lr": optimizer.param_groups[0]["lr"]}
    return {f"policy/{name}": value for name, value in means.items()}


def clip_norm(parameters: list[torch.nn.Parameter], most: float) -> torch.Tensor:
    """Clip their gradients, sharded or not, by the norm of all of them, which is returned."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, most)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def update(
    policy: Policy,
    penalty: KLPenalty | None,
    optimizer: torch.optim.Optimizer,
    args: PolicyArgs,
    advantages: Advantages,
    trajectories: list[Trajectory],
    rng: np.random.Generator,
) -> Metrics:
    """One batch of episodes into gradient steps.

    Rows without an advantage have no gradient either, so they are left out of the passes through the model, and of the
    metrics of those passes; they still count in the normalizer of the loss. A KL penalty in the loss, and an entropy
    bonus, are for every row whose episode did not end in error.
    """
    kept, metrics = selected(trajectories, args)
    if not kept:
        return metrics
    episodes, of_penalty = episodes_of(kept, policy, args, penalty)
    batch = episodes.batch
    batch.extra["advantages"] = unpack(advantages(episodes), batch)
    used = (batch.extra["advantages"].abs() > 1e-6).any(1)
    if (penalty is not None and args.kl != "k1") or args.entropy_coef:
        used = episodes.valid[batch.trajectory]
    loss = partial(policy_loss, policy, penalty, args)
    metrics |= of_penalty | gradient_steps(batch, used, optimizer, args, rng, loss)
    if penalty is not None:
        penalty.steer()
    return metrics


def adamw(groups: list[dict], policy: Policy) -> torch.optim.AdamW:
    """The optimizer of all methods; on a GPU in one kernel, as the usual form holds another copy of all weights for a moment."""
    fused = True if policy.device.type == "cuda" else None
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)


def policy_learner(args: PolicyArgs, advantages: Advantages, policy: Policy) -> Learner:
    """A method that has nothing but a policy: AdamW on the surrogate, with these advantages."""
    penalty = KLPenalty(make_reference(policy), args) if args.kl_coef else None
    optimizer = adamw([{"params": trainable_parameters(policy.model), "lr": args.lr}], policy)
    step = partial(update, policy, penalty, optimizer, args, advantages)
    return Learner(update=step, optimizers=[optimizer], modules={"kl": penalty} if args.kl_target else {})
