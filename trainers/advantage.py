"""Advantages as pure functions of returns."""

import torch


def group_advantage(returns: torch.Tensor, groups: torch.Tensor, scale_by_std: bool = False) -> torch.Tensor:
    """How much better an attempt did than the other attempts at the same question.

    A_i = R_i − mean(R of its group), over their standard deviation if ``scale_by_std``: GRPO (Shao et al. 2024,
    section 4.1.2). Without the division it is Dr. GRPO's (Liu et al. 2025), which does not overweight questions that are almost
    always or almost never solved.

    Args:
        returns: float [N].
        groups: int [N], any labels.

    Returns:
        float [N]; zero for a group whose returns are all equal, and for a group of one.
    """
    _, index = groups.unique(return_inverse=True)
    size = torch.bincount(index).to(returns.dtype)
    # Counted from the lowest of the group, equal returns give exact zeros; rounding, divided by itself, would not.
    returns = returns - torch.full_like(size, torch.inf).scatter_reduce(0, index, returns, "amin")[index]
    mean = torch.zeros_like(size).index_add_(0, index, returns) / size
    centred = returns - mean[index]
    if not scale_by_std:
        return centred
    variance = torch.zeros_like(size).index_add_(0, index, centred**2) / (size - 1).clamp(min=1)
    return centred / (variance.sqrt() + 1e-6)[index]
