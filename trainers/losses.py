"""Losses as pure functions of log-probabilities. All are per token, shape [B, T]; `aggregate` makes them a number."""

import torch


def clipped_policy_loss(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> torch.Tensor:
    """−min(r A, clip(r, 1 − ε_low, 1 + ε_high) A), r = exp(logprobs − old_logprobs).

    PPO (Schulman et al. 2017, eq. 7); with ε_high > ε_low the "clip-higher" of DAPO (Yu et al. 2025, eq. 10).
    """
    ratio = torch.exp(logprobs - old_logprobs)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def kl_k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """exp(d) − d − 1 with d = reference − logprobs: Schulman's k3 estimate of KL(policy ‖ reference), never negative.

    The form of GRPO (Shao et al. 2024, eq. 4), to be added to the loss.
    """
    difference = reference - logprobs
    return torch.exp(difference) - difference - 1


def aggregate(loss: torch.Tensor, mask: torch.Tensor, normalizer: float | torch.Tensor) -> torch.Tensor:
    """Sum over the masked tokens, divided by ``normalizer``.

    With the number of action tokens of the *whole* batch as the normalizer this is the token-level loss of DAPO
    (eq. 12), the same for any split into micro-batches; with a constant it is Dr. GRPO's (Liu et al. 2025).
    Multiplying by zero would let an infinity outside the mask through, hence ``where``.
    """
    return torch.where(mask, loss, 0.0).sum() / normalizer
