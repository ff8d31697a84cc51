"""The KL penalty to the policy that training started from: where it goes, and how its coefficient is steered."""

import torch

from trainers.algorithms.importance import adaptive_kl_coef
from trainers.algorithms.losses import aggregate, kl_k1, kl_k2, kl_k3
from trainers.models.micro_batches import by_parts
from trainers.models.policy import Policy
from trainers.runs.arguments import PolicyArgs
from trainers.trajectory import Batch


class KLPenalty(torch.nn.Module):
    """β KL(π ‖ π_ref), estimated token by token (Schulman 2020).

    k1 goes into the reward, where it needs no gradient of its own; k2 and k3 into the loss, where k1's gradient would
    be zero in expectation. A module, so that a checkpoint keeps β where it is steered.

    Args:
        reference: the starting policy; its weights are no part of this module.
    """

    def __init__(self, reference: Policy, args: PolicyArgs):
        super().__init__()
        self._reference, self._args, self._kl = reference, args, None
        self.register_buffer("coef", torch.tensor(args.kl_coef, dtype=torch.float64))

    def prepare(self, batch: Batch, valid: torch.Tensor) -> dict[str, float]:
        """Before the gradient steps on a batch: the reference's log-probabilities into ``batch.extra``; with k1, the
        penalty into ``batch.rewards``.

        Args:
            valid: bool [N]; the other trajectories ended in error, and the KL is not measured on them.

        Returns:
            The KL, and the β of this batch.
        """
        args = self._args
        own = by_parts(
            lambda p: self._reference.logprobs(p, args.temperature)[0], batch, args.max_tokens_per_micro_batch
        )
        batch.extra["reference"] = own
        counted = batch.mask & valid[batch.trajectory][:, None]
        self._kl = aggregate(kl_k3(batch.logprobs, own), counted, counted.sum()).item() if counted.any() else None
        if args.kl == "k1":
            paid = self.coef.item() * kl_k1(batch.logprobs, own)
            batch.rewards = batch.rewards - torch.where(batch.mask, paid, 0.0)
        return {"policy/kl": self._kl or 0.0, "policy/kl_coef": self.coef.item()}

    def steer(self) -> None:
        """After the gradient steps: β towards its target, by the KL of this batch (Ziegler et al. 2019)."""
        if self._args.kl_target and self._kl is not None:
            self.coef.fill_(adaptive_kl_coef(self.coef.item(), self._kl, self._args.kl_target))

    def loss(self, logprobs: torch.Tensor, part: Batch) -> torch.Tensor:
        """What is added to the loss of each token, [B, T]; nothing where the penalty is in the reward."""
        if self._args.kl == "k1":
            return torch.zeros_like(logprobs)
        return self.coef.item() * {"k2": kl_k2, "k3": kl_k3}[self._args.kl](logprobs, part.extra["reference"])
