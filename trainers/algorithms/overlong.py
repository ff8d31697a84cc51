"""The penalty for turns that are too long."""

import torch


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
