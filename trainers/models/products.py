"""Linear layers for a few tokens, as in a decoding step."""

import torch
from torch.nn import functional

FEW_TOKENS = range(2, 49)
MIN_WIDTH = 512  # of x; a narrower weight stays in a core's cache


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Apply a linear layer with a weight [N, K] to x [..., K].

    For a few float32 tokens on a CPU the weight is the left factor, which is up to three times as fast (docs/speed.md).
    """
    tokens = x.numel() // x.shape[-1]
    is_slow = x.device.type == "cpu" and tokens in FEW_TOKENS and x.shape[-1] >= MIN_WIDTH
    if not is_slow or weight.dtype != torch.float32:
        return functional.linear(x, weight, bias)
    y = (weight @ x.reshape(tokens, -1).T).T.contiguous().view(*x.shape[:-1], -1)
    return y if bias is None else y + bias.to(y.dtype)
