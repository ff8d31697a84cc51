"""The penalty for turns that are too long."""

import torch


def overlong_penalty(lengths: torch.Tensor, longest: int, buffer: int) -> torch.Tensor:
    """DAPO's soft overlong punishment (Yu et al. 2025, eq. 13).

    0 up to ``longest − buffer`` tokens (L_max − L_cache), then linearly down to −1 at ``longest`` and beyond.
    """
    if not 0 < buffer <= longest:
        raise ValueError(f"buffer must lie between 1 and longest ({longest}), got {buffer}")
    return ((longest - buffer - lengths) / buffer).clamp(-1.0, 0.0)
