"""The KL penalty to the policy that training started from, in the reward or the loss, and its adaptive coefficient."""

import torch

from trainers.algorithms.losses import aggregate, kl_k1, kl_k2, kl_k3
from trainers.config import TrainArgs
from trainers.models.lora import make_reference
from trainers.models.micro_batches import compute_logprobs
from trainers.models.policy import Policy
from trainers.trajectory import Batch


def adaptive_kl_coef(coef: float, kl: float, target: float) -> float:
    """Adapt β to a target KL (Ziegler et al. 2019, section 2.2).

        β ← β (1 + 0.1 clip(KL / target − 1, −0.2, 0.2))

    ``kl`` is the mean KL of this batch to the reference, in the unit of ``target``.
    """
    return coef * (1 + 0.1 * min(max(kl / target - 1, -0.2), 0.2))


class KLPenalty(torch.nn.Module):
    """KL penalty to the starting policy, token by token.

    π_ref is the policy at construction. k1 goes into the reward, k2 and k3 into the loss; k1's gradient in a loss would be
    zero in expectation. As a module, it keeps an adapted β in checkpoints, but not the reference's weights.
    """

    coef: torch.Tensor

    def __init__(self, policy: Policy, args: TrainArgs):
        super().__init__()
        self._reference, self._args, self._kl = make_reference(policy), args, args.kl_target
        self.register_buffer("coef", torch.tensor(args.kl_coef, dtype=torch.float64))

    def add_reference(self, batch: Batch, valid: torch.Tensor) -> dict[str, float]:
        """Set ``batch.reference_logprobs`` before the gradient steps; with k1, put the penalty into ``batch.rewards``.

        Args:
            valid: bool [N]; the KL is not measured on the other trajectories, which ended in error.

        Returns:
            The KL in nats a token and this batch's β.
        """
        args = self._args
        reference = compute_logprobs(self._reference, batch, args.temperature, args.max_tokens_per_micro_batch)
        batch.reference_logprobs = reference
        counted = batch.mask & valid[batch.trajectory][:, None]
        kl = aggregate(kl_k3(batch.old_logprobs, reference), counted, counted.sum().clamp(min=1)).item()
        self._kl = kl if counted.any() else args.kl_target  # which leaves β as it is
        if not self.in_loss:
            penalty = self.coef.item() * kl_k1(batch.old_logprobs, reference)
            batch.rewards = batch.rewards - torch.where(batch.mask, penalty, 0.0)
        return {"policy/kl": kl, "policy/kl_coef": self.coef.item()}

    @property
    def in_loss(self) -> bool:
        """Whether the penalty is in the loss, or in the reward (k1)."""
        return self._args.kl != "k1"

    def loss(self, logprobs: torch.Tensor, part: Batch) -> torch.Tensor:
        """Return the penalty in each token's loss, [B, T]; zeros if the penalty is in the reward."""
        if not self.in_loss:
            return torch.zeros_like(logprobs)
        assert part.reference_logprobs is not None
        return self.coef.item() * {"k2": kl_k2, "k3": kl_k3}[self._args.kl](logprobs, part.reference_logprobs)

    def adapt(self) -> None:
        """Adapt β after the gradient steps by the KL of this batch, if there is a target (Ziegler et al. 2019)."""
        if self._args.kl_target:
            self.coef.fill_(adaptive_kl_coef(self.coef.item(), self._kl, self._args.kl_target))
