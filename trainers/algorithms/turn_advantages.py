"""Credit for single turns, without a critic: returns from process rewards, compared within a group.

Tables of turns are [N, K], where K is the largest number of turns; each comes with a mask of the turns that were taken.
For ``mask``, ``rewards`` and ``valid`` see `trainers.algorithms.gae`. ``turns`` is read inside the mask only.
"""

from collections.abc import Hashable, Sequence

import torch

from trainers.algorithms.advantages import episode_returns, group_advantage, to_tokens
from trainers.algorithms.gae import check_turns, discount, own_tokens


def turn_returns(
    rewards: torch.Tensor,
    turns: torch.Tensor,
    mask: torch.Tensor,
    gamma: float = 1.0,
    valid: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Discounted returns from each turn on.

        G_k = r_k + γ G_{k+1}, with r_k the sum of turn k's rewards

    Returns float [N, K], and bool [N, K]: which turns were taken.
    """
    own = own_tokens(rewards, mask, valid)
    check_turns(turns, own)
    number = torch.where(own, turns, 0)
    shape = len(mask), int(number.max()) + 1 if own.any() else 0
    if not shape[1]:
        return rewards.new_zeros(shape), mask.new_zeros(shape)
    paid = rewards.new_zeros(shape).scatter_add(1, number, torch.where(own, rewards, 0.0))
    taken = rewards.new_zeros(shape).scatter_add(1, number, own.to(rewards.dtype)) > 0
    return discount(paid, taken, gamma), taken


def turns_to_tokens(table: torch.Tensor, turns: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Copy each turn's value in ``table`` [N, K] to each of its tokens [N, A]; zero outside the mask."""
    if not table.shape[1]:
        return table.new_zeros(mask.shape)
    return torch.where(mask, table.gather(1, torch.where(mask, turns, 0)), 0.0)


def turn_advantage(
    rewards: torch.Tensor,
    turns: torch.Tensor,
    mask: torch.Tensor,
    groups: torch.Tensor,
    gamma: float = 1.0,
    scale_by_std: bool = True,
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """Normalised turn returns within the group: GTPO (Ding et al. 2025).

        A_{i,k} = (G_{i,k} − mean_j G_{j,k}) / std_j G_{j,k}

    arXiv 2511.14846. Float [N, A]; a turn number that only one episode of the group reached gets zero.
    """
    own = own_tokens(rewards, mask, valid)
    # Summed in double precision, so that equal returns do not differ by the order of their rewards.
    returns, taken = turn_returns(rewards.double(), turns, mask, gamma, valid)
    returns = returns.to(rewards.dtype)
    labels = (groups[:, None] * returns.shape[1] + torch.arange(returns.shape[1], device=groups.device))[taken]
    compared = group_advantage(returns[taken], labels, scale_by_std)
    return turns_to_tokens(torch.zeros_like(returns).masked_scatter(taken, compared), turns, own)


def gigpo(
    rewards: torch.Tensor,
    turns: torch.Tensor,
    mask: torch.Tensor,
    groups: torch.Tensor,
    anchors: Sequence[Sequence[Hashable]],
    gamma: float = 0.95,
    step_weight: float = 1.0,
    scale_by_std: bool = False,
    valid: torch.Tensor | None = None,
    whole: torch.Tensor | None = None,
) -> torch.Tensor:
    """Advantages of episodes and of turns in the same state: GiGPO (Feng et al. 2025).

        A = A_episode + ω A_step

    arXiv 2505.10978. A_episode compares the episode's return with its group's, A_step the discounted return from a turn on with
    those of all turns of the group in the same state. The mean is over trajectories; the authors' code weighs an episode by its
    length.

    Args:
        anchors: for each trajectory, a label for the state before each of its turns, in order. Equal labels in one
            group are one state; ``None`` is a state of its own, and has only A_episode.
        step_weight: ω.
        scale_by_std: divide both by their group's standard deviation; the paper has both forms (F_norm = σ or 1).
        whole: the returns of whole episodes, float [N], if they hold more than ``rewards``.
    """
    own = own_tokens(rewards, mask, valid)
    exact = rewards.double()  # so that equal returns do not differ by the order of their rewards
    whole = episode_returns(exact, mask, valid).to(rewards.dtype) if whole is None else whole
    of_episodes = group_advantage(whole, groups, scale_by_std, valid)
    returns, taken = turn_returns(exact, turns, mask, gamma, valid)
    returns = returns.to(rewards.dtype)
    states = _states(taken, groups.tolist(), anchors).to(groups.device)
    compared = group_advantage(returns[taken], states, scale_by_std)
    of_steps = turns_to_tokens(torch.zeros_like(returns).masked_scatter(taken, compared), turns, own)
    return to_tokens(of_episodes, own) + step_weight * of_steps


def _states(taken: torch.Tensor, groups: list[int], anchors: Sequence[Sequence[Hashable]]) -> torch.Tensor:
    """Number the states of the taken turns: equal numbers for equal anchors in the same group."""
    if len(anchors) != len(groups):
        raise ValueError(f"{len(anchors)} lists of anchors for {len(groups)} trajectories")
    numbers: dict[Hashable, int] = {}
    found = []
    for i, k in taken.nonzero().tolist():
        if k >= len(anchors[i]):
            raise ValueError(f"trajectory {i} has {len(anchors[i])} anchors but a turn {k}: give one for each turn")
        anchor = anchors[i][k]
        key = (i, k, None) if anchor is None else (groups[i], anchor)
        found.append(numbers.setdefault(key, len(numbers)))
    return torch.tensor(found, dtype=torch.long)
