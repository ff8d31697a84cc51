"""Linear layers for a few tokens, as in a decoding step."""

import torch
from torch.nn import functional

FEW_TOKENS = range(2, 49)
MIN_WIDTH = 512  # of x; a narrower weight stays in a core's cache


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """PyTorch's `linear` of x [..., K] and a weight [N, K].

    On a CPU that is up to three times as slow for a few tokens as the product with the weight on the left (docs/speed.md).
    """
    tokens = x.numel() // x.shape[-1]
    is_slow = x.device.type == "cpu" and tokens in FEW_TOKENS and x.shape[-1] >= MIN_WIDTH
    if not is_slow or weight.dtype != torch.float32:
        return functional.linear(x, weight, bias)
    y = (weight @ x.reshape(tokens, -1).T).T.contiguous().view(*x.shape[:-1], -1)
    return y if bias is None else y + bias.to(y.dtype)
