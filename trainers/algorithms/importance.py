"""Importance corrections: factors of a token's loss if another program sampled it."""

import torch


@torch.no_grad()
def truncated_importance(trainer: torch.Tensor, sampler: torch.Tensor, cap: float = 2.0) -> torch.Tensor:
    """Truncated importance weights, TIS (Yao et al. 2025).

        min(w, C),  w = π_trainer / π_sampler

    Multiply each token's loss by this; clipping uses the ratio to the *trainer's* old policy. ``trainer``, ``sampler``: [B, T]
    log-probabilities of the trainer before the update, and of the engine that sampled. ``cap``: C.
    """
    return torch.exp(trainer - sampler).clamp(max=cap)


@torch.no_grad()
def masked_importance(
    trainer: torch.Tensor, sampler: torch.Tensor, low: float = 0.5, high: float = 5.0
) -> torch.Tensor:
    """Masked importance weights, IcePop (Ling team 2025).

        w if α ≤ w ≤ β, else 0

    arXiv 2510.18855; arguments as in `truncated_importance`.
    """
    weight = torch.exp(trainer - sampler)
    return torch.where((weight >= low) & (weight <= high), weight, 0.0)
