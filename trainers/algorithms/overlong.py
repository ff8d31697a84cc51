"""The penalty for turns that are too long."""

import torch


def overlong_penalty(lengths: torch.Tensor, longest: int, buffer: int) -> torch.Tensor:
    """0 up to ``longest − buffer`` tokens, then linearly down to −1 at ``longest``, −1 beyond; for the reward of a turn.

    The soft overlong punishment of DAPO (Yu et al. 2025, eq. 13); ``longest``, ``buffer``: L_max and L_cache.
    """
    if not 0 < buffer <= longest:
        raise ValueError(f"buffer must lie between 1 and longest ({longest}), got {buffer}")
    return ((longest - buffer - lengths) / buffer).clamp(-1.0, 0.0)
