"""What rewards and losses are weighted or shaped with: corrections for another sampler, length, the KL coefficient."""

import torch


@torch.no_grad()
def truncated_importance(trainer: torch.Tensor, sampler: torch.Tensor, cap: float = 2.0) -> torch.Tensor:
    """min(w, C) with w = π_trainer / π_sampler: truncated importance sampling, TIS (Yao et al. 2025).

    An inference engine and a trainer give the same weights slightly different probabilities. Multiply each token's loss
    by this; clipping goes on by the ratio to the *trainer's* old policy.

    Args:
        trainer: [B, T], log-probabilities that the trainer's own forward pass gave before the update.
        sampler: [B, T], those that the engine reported when it sampled.
        cap: C.
    """
    return torch.exp(trainer - sampler).clamp(max=cap)


@torch.no_grad()
def masked_importance(
    trainer: torch.Tensor, sampler: torch.Tensor, low: float = 0.5, high: float = 5.0
) -> torch.Tensor:
    """w where α ≤ w ≤ β, else 0: IcePop (Ling team 2025, arXiv 2510.18855). Tokens on which trainer and
    sampler disagree too much, either way, are left out. Arguments as `truncated_importance`."""
    weight = torch.exp(trainer - sampler)
    return torch.where((weight >= low) & (weight <= high), weight, 0.0)


@torch.no_grad()
def sequence_masked_importance(
    trainer: torch.Tensor, sampler: torch.Tensor, mask: torch.Tensor, cap: float = 2.0
) -> torch.Tensor:
    """W where W ≤ C, else 0, with W = Π_t w_t over a sequence's tokens: masked sequence weights (Liu et al. 2025,
    "When speed kills stability"). Unbiased where nothing is masked, which a product of token weights cut one by one is
    not; its variance grows with length. The same number at all tokens of a row, [B, T]; 1 in a row without tokens."""
    weight = torch.exp(torch.where(mask, trainer - sampler, 0.0).sum(1, keepdim=True))
    return torch.where(weight <= cap, weight, 0.0).expand_as(trainer)


def overlong_penalty(lengths: torch.Tensor, longest: int, buffer: int) -> torch.Tensor:
    """0 up to ``longest − buffer`` tokens, from there down to −1 at ``longest`` in a straight line, −1 beyond.

    The soft overlong punishment of DAPO (Yu et al. 2025, eq. 13), to be added to the reward of the turn.

    Args:
        lengths: int [N], tokens that the policy sampled.
        longest: L_max, the longest that is allowed.
        buffer: L_cache, over how many tokens the penalty grows.
    """
    if not 0 < buffer <= longest:
        raise ValueError(f"buffer must lie between 1 and longest ({longest}), got {buffer}")
    return ((longest - buffer - lengths) / buffer).clamp(-1.0, 0.0)


def adaptive_kl_coef(coef: float, kl: float, target: float, rate: float = 0.1) -> float:
    """β ← β (1 + K clip(KL / target − 1, −.2, .2)): the controller of Ziegler et al. (2019, section 2.2).

    Args:
        kl: mean KL to the reference, measured on this update's batch, in the unit of ``target``.
        rate: K, at most 2 % a step with the paper's .1.
    """
    if not target > 0:
        raise ValueError(f"the KL target must be above 0, got {target}")
    return coef * (1 + rate * min(max(kl / target - 1, -0.2), 0.2))
