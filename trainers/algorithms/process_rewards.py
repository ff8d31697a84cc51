"""The size of process rewards beside that of an outcome."""

import torch


def prime_norm(rewards: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """r / (max |Σ_{s≥t} r_s| + 1e-6), the maximum over all episodes and times of the batch, for rewards float [N, K].

    The normalisation of PRIME (Cui et al. 2025, arXiv 2502.01456) in its code, and of tool rewards in Agent-R1's first
    version. ``rewards`` are without the outcome; ``valid``, bool [N], leaves out episodes that ended in error.
    """
    to_go = (rewards if valid is None else rewards[valid]).flip(1).cumsum(1)
    largest = to_go.abs().max() if to_go.numel() else to_go.sum()
    return rewards / (largest + 1e-6)
