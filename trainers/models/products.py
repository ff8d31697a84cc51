"""Linear layers for a few tokens, as in a decoding step."""

import platform

import torch
from torch.nn import functional

FEW_TOKENS = range(2, 49)
MIN_WIDTH = 512  # of x; a narrower weight stays in a core's cache
TOKENS = 16  # that the layout of a packed weight is chosen for; it is as fast for any other number


def can_pack(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether `pack` speeds up products of inputs of this width."""
    if device.type != "cpu" or width < MIN_WIDTH or platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    return torch.backends.mkldnn.is_available() and (
        dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Copy a weight into the layout of oneDNN's products, which would otherwise reorder it in each one. For `linear`
    without gradients."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), TOKENS)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Apply a linear layer with a weight [N, K], packed or not, to x [..., K].

    For a few float32 tokens on a CPU an unpacked weight becomes the left factor, which is up to three times as fast.
    """
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    tokens = x.numel() // x.shape[-1]
    is_slow = x.device.type == "cpu" and tokens in FEW_TOKENS and x.shape[-1] >= MIN_WIDTH
    if not is_slow or weight.dtype != torch.float32:
        return functional.linear(x, weight, bias)
    y = (weight @ x.reshape(tokens, -1).T).T.contiguous().view(*x.shape[:-1], -1)
    return y if bias is None else y + bias.to(y.dtype)
