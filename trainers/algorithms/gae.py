"""Returns and generalised advantage estimation over the tokens that the policy sampled.

All tensors are [N, A], one trajectory a row, as `trainers.trajectory.pack` makes them. A position outside the mask does
not exist: the next token is the next one *in the mask*, and what lies between (even NaN) is never read.

``mask`` is bool, the action mask. ``rewards`` holds each turn's reward at its last sampled token; a reward outside the
mask raises a ValueError. ``valid``, bool [N], leaves out episodes that ended in error: they get zeros. An episode ends
with its last token, even if it was truncated: the limit on turns is part of the task.
"""

import torch


def own_tokens(rewards: torch.Tensor, mask: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Select the tokens that an estimator runs over, bool [N, A]. Raises a ValueError if shapes or types do not fit, a reward
    lies outside the mask, or one that counts is not finite."""
    if not rewards.is_floating_point():
        raise ValueError(f"rewards must be floats, or discounts would be rounded; got {rewards.dtype}")
    if mask.dtype != torch.bool or mask.shape != rewards.shape or mask.ndim != 2:
        raise ValueError(
            f"the mask must be bool and of the rewards' shape [N, A]; got {mask.dtype} {list(mask.shape)} for rewards "
            f"{list(rewards.shape)}"
        )
    if ((rewards != 0) & ~mask).any():
        raise ValueError("a reward outside the action mask would be lost: put it on its turn's last sampled token")
    if valid is not None and (valid.dtype != torch.bool or valid.shape != mask.shape[:1]):
        raise ValueError(f"valid must be bool [{len(mask)}], got {valid.dtype} {list(valid.shape)}")
    own = mask if valid is None else mask & valid[:, None]
    if not rewards[own].isfinite().all():
        raise ValueError("a reward is not finite; leave an episode that ended in error out with `valid`")
    return own


def following(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return, at each position, the value of the next position in the mask; 0 after the last one."""
    later = values.new_zeros(len(values))
    out = torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        out[:, t] = later
        later = torch.where(mask[:, t], values[:, t], later)
    return out


def discount(values: torch.Tensor, mask: torch.Tensor, decay: float | torch.Tensor) -> torch.Tensor:
    """Compute x_t = v_t + decay_t · x_t', where t' is the next position in the mask; 0 outside. ``decay``: a number or [N, A]."""
    decay = torch.as_tensor(decay, dtype=values.dtype, device=values.device).expand_as(values)
    later = values.new_zeros(len(values))
    out = torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        later = torch.where(mask[:, t], values[:, t] + decay[:, t] * later, later)
        out[:, t] = later
    return torch.where(mask, out, 0.0)


@torch.no_grad()
def returns_to_go(
    rewards: torch.Tensor, mask: torch.Tensor, gamma: float = 1.0, valid: torch.Tensor | None = None
) -> torch.Tensor:
    """Discounted returns to go over the action tokens (Sutton & Barto 2018, eq. 3.9).

    G_t = r_t + γ G_{t+1}
    """
    return discount(rewards, own_tokens(rewards, mask, valid), gamma)


@torch.no_grad()
def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    gamma: float = 1.0,
    lam: float = 1.0,
    valid: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token-level GAE (Schulman et al. 2016, eq. 16).

        A_t = δ_t + γλ A_{t+1},  δ_t = r_t + γ V_{t+1} − V_t

    ``values`` [N, A]: the critic's V_t before token t is sampled. Returns the advantages, and A_t + V_t, the targets of the
    critic; zero outside the mask.
    """
    own, values = own_tokens(rewards, mask, valid), values.to(rewards.dtype)
    advantages = discount(rewards + gamma * following(values, own) - values, own, gamma * lam)
    return advantages, torch.where(own, advantages + values, 0.0)


def check_turns(turns: torch.Tensor, mask: torch.Tensor) -> None:
    """Raise a ValueError if a token in the mask has no turn, or if turns do not come in order."""
    if turns.shape != mask.shape:
        raise ValueError(f"turns must be of the mask's shape {list(mask.shape)}, got {list(turns.shape)}")
    if (mask & (turns < 0)).any():
        raise ValueError("a token of the action mask belongs to no turn: its number is negative")
    if (mask & (turns < torch.where(mask, turns, -1).cummax(1).values)).any():
        raise ValueError("the turns' numbers fall along a trajectory; they must be in the order they were taken")


def turn_ends(turns: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mark the last token of each turn inside the mask."""
    return mask & (following(turns + 1, mask) != turns + 1)  # 0 follows the last turn, and is no turn's number + 1


@torch.no_grad()
def bi_level_gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    turns: torch.Tensor,
    mask: torch.Tensor,
    gamma: float = 1.0,
    lam: float = 1.0,
    turn_gamma: float = 0.95,
    turn_lam: float = 1.0,
    valid: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Bi-level GAE: over turns, then over the tokens of each turn (RAGEN).

    Returns as `gae`. With e_k the last token of turn k, r_k the reward there and V_k = V(e_k):

        turns:   A_k = r_k + γ_H V_{k+1} − V_k + γ_H λ_H A_{k+1}          (V and A are 0 after the last turn)
        tokens:  A_t = A_k                                   at t = e_k
                 A_t = r_t + γ V_{t+1} − V_t + γλ A_{t+1}    at the turn's other tokens

    A reward at a token that ends no turn (a KL penalty) counts inside its own turn only. RAGEN's own code ends a turn at a
    non-zero reward, which merges a turn without reward into the next one.

    ``turns``: int, each token's turn, read inside the mask only. ``turn_gamma``, ``turn_lam``: γ_H and λ_H; RAGEN uses γ_H = 0.95
    and the same λ at both levels.
    """
    own, values = own_tokens(rewards, mask, valid), values.to(rewards.dtype)
    check_turns(turns, own)
    ends = turn_ends(turns, own)
    of_turns = discount(rewards + turn_gamma * following(values, ends) - values, ends, turn_gamma * turn_lam)
    inside = rewards + gamma * following(values, own) - values
    decay = torch.full_like(values, gamma * lam).masked_fill(ends, 0.0)
    advantages = discount(torch.where(ends, of_turns, inside), own, decay)
    return advantages, torch.where(own, advantages + values, 0.0)


@torch.no_grad()
def turn_level_gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    turns: torch.Tensor,
    mask: torch.Tensor,
    turn_gamma: float = 1.0,
    turn_lam: float = 1.0,
    valid: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Step-level GAE of Agent-R1: a turn is one action.

    Cheng et al. 2025, arXiv 2511.14460. With V_k the value before the first token of turn k, and r_k the sum of its rewards:

        A_k = r_k + γ_H V_{k+1} − V_k + γ_H λ_H A_{k+1}          (V and A are 0 after the last turn)

    Each token of the turn has the advantage A_k and the target A_k + V_k; arguments as in `bi_level_gae`.
    """
    own, values = own_tokens(rewards, mask, valid), values.to(rewards.dtype)
    check_turns(turns, own)
    ends = turn_ends(turns, own)
    within = (~ends).to(rewards.dtype)  # sums carry over to the token before only inside a turn
    of_turn = discount(torch.where(own, rewards, 0.0), own, within)  # r_k at the turn's first token
    before = following(turns.flip(1) + 1, own.flip(1)).flip(1)  # the turn of the token before, + 1; 0 for none
    starts = own & (before != turns + 1)
    advantages = discount(of_turn + turn_gamma * following(values, starts) - values, starts, turn_gamma * turn_lam)
    spread = _carry_forward(torch.stack((advantages, values)), starts)
    return torch.where(own, spread[0], 0.0), torch.where(own, spread.sum(0), 0.0)


def _carry_forward(values: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Return, at each position of [..., N, A], the value of the latest position up to it where ``starts`` [N, A] is true."""
    index = torch.arange(starts.shape[1], device=starts.device).expand_as(starts)
    last = torch.where(starts, index, 0).cummax(1).values
    return values.gather(-1, last.expand_as(values))
