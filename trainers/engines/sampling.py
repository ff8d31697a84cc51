"""Tokens from logits."""

import torch
from torch.nn.functional import pad

PART = 512  # neighbouring tokens that are first drawn as one


def sample(logits: torch.Tensor, which: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw tokens, several from one distribution where asked for.

    Args:
        logits: float [N, V].
        which: int64 [M], the row that each token is drawn from.

    Returns:
        The tokens, int64 [M], and their log-probabilities. At temperature 0 these are of the untempered distribution.
    """
    logp = (logits / (temperature or 1.0)).log_softmax(-1)
    tokens = logp.argmax(-1)[which] if temperature == 0 else _drawn(logp, which)
    return tokens, logp[which, tokens]


def _drawn(logp: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    """By the inverse of the distribution function: in double precision, as a vocabulary is long, which is cheap over parts
    of it and then inside of the one that was drawn."""
    parts = pad(logp.exp(), (0, -logp.shape[-1] % PART)).unflatten(-1, (-1, PART))
    mass = parts.sum(-1, dtype=torch.float64)
    upto = mass.cumsum(-1)
    below_one = torch.rand(len(which), dtype=torch.float64, device=logp.device) * (1 - 2**-32)
    points = below_one * upto[which, -1]
    part = _place(upto[which], points)
    inside = parts[which, part].cumsum(-1, dtype=torch.float64)
    rest = points - (upto - mass)[which, part]
    # By rounding the rest may be all of the part, and no token of it would be beyond.
    token = _place(inside, torch.minimum(rest, inside[:, -1] * (1 - 2**-32)))
    return (part * PART + token).clamp(max=logp.shape[-1] - 1)


def _place(upto: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """In each row [M, K] of growing sums, the first that is over the point [M]."""
    return torch.searchsorted(upto, points[:, None], right=True)[:, 0].clamp(max=upto.shape[-1] - 1)
