"""Filters of groups. Each returns bool [N]; if it keeps nothing, skip the update.

``returns`` must be the *raw* task returns: a penalty or a normalisation would give every group a deviation. A group whose
deviation is at most `ZERO_STD` is a *zero-std group*: all its advantages are 0.
"""

import torch

from trainers.algorithms.advantages import compare_groups

ZERO_STD = 1e-6


def mixed_groups(returns: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Groups with unequal returns: DAPO's dynamic sampling.

    Yu et al. 2025, eq. 11. DAPO refills the batch with more questions until it is full.
    """
    _, deviation, index = compare_groups(returns, groups, valid)
    return _select_episodes(deviation > ZERO_STD, index, valid)


def most_uncertain(
    returns: torch.Tensor, groups: torch.Tensor, share: float = 0.25, valid: torch.Tensor | None = None
) -> torch.Tensor:
    """The ``share`` of groups with the largest deviation: StarPO-S.

    RAGEN, Wang et al. 2025. Keeps at least one group; of equal groups, the one with the lower label. Unlike RAGEN's code, never
    keeps a group of zero deviation.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}")
    _, deviation, index = compare_groups(returns, groups, valid)
    order = deviation.argsort(descending=True, stable=True)
    chosen = torch.zeros_like(deviation, dtype=torch.bool)
    chosen[order[: max(1, int(share * len(deviation) + 1e-9))]] = True
    return _select_episodes(chosen & (deviation > ZERO_STD), index, valid)


def most_signal(
    returns: torch.Tensor,
    groups: torch.Tensor,
    p: float = 0.9,
    valid: torch.Tensor | None = None,
    selection_eps: float = 0.01,
) -> torch.Tensor:
    """Groups with most of the deviation: RAGEN-2.

    Keeps groups by descending deviation, until they hold p Σσ − ε (arXiv 2604.06268). Groups of zero deviation are never kept. If
    p Σσ ≤ ε, no group is kept. ε is ``selection_eps``, in the unit of the returns; RAGEN's code has 0.01.
    """
    if not 0 < p <= 1:
        raise ValueError(f"p must be above 0 and at most 1, got {p}")
    _, deviation, index = compare_groups(returns, groups, valid)
    deviation = deviation.where(deviation > ZERO_STD, 0.0).double()
    ordered, order = deviation.sort(descending=True, stable=True)
    before = ordered.cumsum(0) - ordered  # sum of the groups before each group
    chosen = torch.zeros_like(deviation, dtype=torch.bool)
    wanted = p * ordered.sum() * (1 - 1e-9) - selection_eps  # rounding must not ask for one group more
    chosen[order] = before < wanted
    return _select_episodes(chosen & (deviation > 0), index, valid)


def _select_episodes(chosen: torch.Tensor, index: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    kept = chosen[index]
    return kept if valid is None else kept & valid
