"""Advantages from returns, compared with the rollouts of the same question or with the whole batch.

Baselines need whole groups, and statistics need the whole batch, so ranks gather returns and masks first. For ``mask``,
``rewards`` and ``valid`` see `trainers.algorithms.gae`.
"""

import torch

from trainers.algorithms.gae import own_tokens, returns_to_go


def compare_groups(
    returns: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compare each return with the ``valid`` ones of its group. ``returns``: float [N]; ``groups``: int [N], any labels.

    Returns:
        The return minus the mean of its group, float [N], 0 if not ``valid``; the standard deviation (n − 1) of each group, float
        [G] in the order of the labels, exactly 0 for equal returns and for fewer than two; each episode's place in [G], int [N].
    """
    labels, index = groups.unique(return_inverse=True)
    counted = torch.ones_like(groups, dtype=torch.bool) if valid is None else valid
    chosen, own = returns[counted], index[counted]
    size = torch.bincount(own, minlength=len(labels)).to(returns.dtype)
    # Relative to the lowest of the group, equal returns give exact zeros, not rounding errors divided by their own deviation.
    chosen = chosen - torch.full_like(size, torch.inf).scatter_reduce(0, own, chosen, "amin")[own]
    centred = chosen - (torch.zeros_like(size).index_add_(0, own, chosen) / size.clamp(min=1))[own]
    squares = torch.zeros_like(size).index_add_(0, own, centred**2)
    deviation = (squares / (size - 1).clamp(min=1)).sqrt()
    return torch.zeros_like(returns).masked_scatter(counted, centred), deviation, index


def group_advantage(
    returns: torch.Tensor, groups: torch.Tensor, scale_by_std: bool = False, valid: torch.Tensor | None = None
) -> torch.Tensor:
    """Return minus the mean of its group: Dr. GRPO, or GRPO with ``scale_by_std``.

        A_i = R_i − mean(R of its group)        / std(R of its group), with ``scale_by_std``

    Liu et al. 2025; Shao et al. 2024, section 4.1.2. ``returns``: float [N]; ``groups``: int [N], any labels; episodes that are
    not ``valid`` are left out of their group's mean and get zero.

    Returns:
        float [N]; zero for a group with equal returns, and for a group of one.
    """
    centred, deviation, index = compare_groups(returns, groups, valid)
    return centred / (deviation + 1e-6)[index] if scale_by_std else centred


def leave_one_out(returns: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Return minus the mean of the others in its group: RLOO.

        A_i = R_i − mean(R of the *others* in its group)

    Kool et al. 2019; Ahmadian et al. 2024. Unbiased, as the baseline does not depend on the episode itself. It is G/(G − 1) times
    `group_advantage`.
    """
    _, index = groups.unique(return_inverse=True)
    counted = torch.ones_like(returns) if valid is None else valid.to(returns.dtype)
    size = torch.bincount(index, counted).to(returns.dtype)
    return group_advantage(returns, groups, valid=valid) * (size / (size - 1).clamp(min=1))[index]


def episode_returns(rewards: torch.Tensor, mask: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Compute R_i = Σ_t r_t over the policy's own tokens, float [N]; 0 for an episode that is not ``valid``."""
    return torch.where(own_tokens(rewards, mask, valid), rewards, 0.0).sum(1)


def to_tokens(advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Copy each trajectory's advantage [N] to each of its tokens [N, A]; zero outside the mask."""
    return torch.where(mask, advantages[:, None], 0.0)


def whiten(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Scale masked tokens to mean 0 and standard deviation 1; zero outside the mask.

        (x − mean) / (standard deviation + 1e-6)

    PPO's normalisation (Huang et al. 2022, detail 7) over tokens. Equal values give exact zeros.
    """
    chosen = values[mask]
    if not len(chosen):
        return torch.zeros_like(values)
    centred = chosen - chosen.min()  # relative to the lowest, as in `compare_groups`
    centred = centred - centred.mean()
    deviation = (centred.square().sum() / max(len(chosen) - 1, 1)).sqrt()
    return torch.zeros_like(values).masked_scatter(mask, centred / (deviation + 1e-6))


@torch.no_grad()
def reinforce_plus_plus(rewards: torch.Tensor, mask: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Returns to go, whitened over the batch: REINFORCE++ (Hu 2025).

        A_t = Σ_{s≥t} r_s, whitened; float [N, A]

    arXiv 2501.03262. The paper subtracts β times each token's `trainers.algorithms.losses.kl_k1` from the rewards.
    """
    return whiten(returns_to_go(rewards, mask, valid=valid), own_tokens(rewards, mask, valid))


@torch.no_grad()
def reinforce_plus_plus_baseline(
    rewards: torch.Tensor, mask: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor | None = None,
    returns: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return minus the group's mean, whitened over tokens: REINFORCE++-baseline (Hu 2025).

    Float [N, A]. The paper adds `trainers.algorithms.losses.kl_k2` to the loss. A group of equal returns gets exact zeros only if
    every group has equal returns: tokens are centred on the mean of the batch.
    """
    returns = episode_returns(rewards, mask, valid) if returns is None else returns
    centred = group_advantage(returns, groups, valid=valid)
    return whiten(to_tokens(centred, mask), own_tokens(rewards, mask, valid))
