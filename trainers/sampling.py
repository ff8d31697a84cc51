"""Tokens from logits."""

import torch


def sample(logits: torch.Tensor, which: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw tokens, several from one distribution where asked for.

    Args:
        logits: float [N, V].
        which: int64 [M], the row that each token is drawn from.

    Returns:
        The tokens, int64 [M], and their log-probabilities. At temperature 0 these are of the untempered distribution.
    """
    logp = (logits / (temperature or 1.0)).log_softmax(-1)
    if temperature == 0:
        tokens = logp.argmax(-1)[which]
    else:
        # The inverse of the distribution function, at once for all rows: row n's runs from n to n + 1.
        cumulative = logp.double().exp().cumsum(-1)
        ramps = cumulative / cumulative[:, -1:] + torch.arange(len(logits), device=logits.device)[:, None]
        points = which + torch.rand(len(which), dtype=torch.float64, device=logits.device) * (1 - 2**-32)
        places = torch.searchsorted(ramps.flatten(), points, right=True)
        tokens = (places - which * logits.shape[-1]).clamp(0, logits.shape[-1] - 1)
    return tokens, logp[which, tokens]
