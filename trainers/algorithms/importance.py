"""What the loss of a token is multiplied by where another program sampled it: importance corrections."""

import torch

from trainers.algorithms.losses import sum_of_sequence


@torch.no_grad()
def truncated_importance(trainer: torch.Tensor, sampler: torch.Tensor, cap: float = 2.0) -> torch.Tensor:
    """min(w, C) with w = π_trainer / π_sampler: truncated importance sampling, TIS (Yao et al. 2025).

    Multiply each token's loss by this; clipping uses the ratio to the *trainer's* old policy.

    Args:
        trainer, sampler: log-probabilities [B, T] of the trainer before the update, and of the engine that sampled.
        cap: C.
    """
    return torch.exp(trainer - sampler).clamp(max=cap)


@torch.no_grad()
def masked_importance(
    trainer: torch.Tensor, sampler: torch.Tensor, low: float = 0.5, high: float = 5.0
) -> torch.Tensor:
    """w where α ≤ w ≤ β, else 0: IcePop (Ling team 2025, arXiv 2510.18855). Arguments as in `truncated_importance`."""
    weight = torch.exp(trainer - sampler)
    return torch.where((weight >= low) & (weight <= high), weight, 0.0)


@torch.no_grad()
def sequence_masked_importance(
    trainer: torch.Tensor,
    sampler: torch.Tensor,
    mask: torch.Tensor,
    owners: torch.Tensor | None = None,
    cap: float = 2.0,
) -> torch.Tensor:
    """W where W ≤ C, else 0, with W = Π_t w_t over a sequence's tokens: masked sequence weights (Liu et al. 2025).

    The same number at all tokens of a sequence, [B, T]; 1 in one without tokens. ``owners``: int [B], the sequence that each
    row is part of; by default each row is one.
    """
    log_weight = torch.where(mask, trainer - sampler, 0.0).sum(1)
    if owners is not None:
        log_weight = sum_of_sequence(log_weight, owners)
    weight = log_weight.exp()[:, None]
    return torch.where(weight <= cap, weight, 0.0).expand_as(trainer)
