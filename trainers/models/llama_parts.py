"""The operations between the matrix products of a Llama-like layer, on a GPU as few kernels, in sampling and in updates."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import rms_norm, silu

from trainers.models import flex_attention

if TYPE_CHECKING:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "seed_oss")


def normalize(x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """Apply RMSNorm to x [..., H], for a product in ``dtype``."""
    return rms_norm(x.to(weight.dtype), x.shape[-1:], weight, eps).to(dtype)


def add_and_normalize(
    x: torch.Tensor, change: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the next hidden states, x + change, and these after `normalize`."""
    x = x + change
    return x, normalize(x, weight, eps, dtype)


def rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, norm: tuple[torch.Tensor, float] | None, dtype: torch.dtype
) -> torch.Tensor:
    """Apply the rotary embedding to queries or keys [m, w, heads, D], after Qwen3's norm if there is one."""
    if norm is not None:
        x = normalize(x, *norm, torch.float32)
    return (x * cos + x.roll(x.shape[-1] // 2, -1) * sin).to(dtype)


def head_norms(attention: "Qwen3Attention") -> tuple[tuple[torch.Tensor, float] | None, ...]:
    """Return weight and epsilon of Qwen3's norms of the queries and of the keys; None for each in other models."""
    if not hasattr(attention, "q_norm"):
        return None, None
    return tuple((norm.weight, norm.variance_epsilon) for norm in (attention.q_norm, attention.k_norm))


def rotate_and_store(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor],
    norms: tuple[tuple[torch.Tensor, float] | None, ...], keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Return the queries [m, w, heads, D] after `rotate`; store keys and values in slots [m, w, kv heads] of buffers [N, D]."""
    keys[slots] = rotate(k, *angles, norms[1], keys.dtype)
    values[slots] = v
    return rotate(q, *angles, norms[0], v.dtype)


def gate(x: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Combine the outputs of two linear layers by SwiGLU."""
    return silu(x) * up


@dataclass(frozen=True, slots=True)
class Parts:
    """The operations of a layer between its matrix products."""

    normalize: Callable[..., torch.Tensor] = normalize
    add_and_normalize: Callable[..., tuple[torch.Tensor, torch.Tensor]] = add_and_normalize
    rotate: Callable[..., torch.Tensor] = rotate
    rotate_and_store: Callable[..., torch.Tensor] = rotate_and_store
    gate: Callable[..., torch.Tensor] = gate


@cache
def compiled_parts() -> Parts:
    """Return `Parts` that are compiled to one kernel each, for any number of tokens."""
    # Sampling, updates and the comparisons at the start each compile their own, more often than PyTorch allows by default.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    # With mix_order_reduction, kernels that sum a norm's gradients differ between many tokens and the few compared with them.
    if hasattr(torch._inductor.config.triton, "mix_order_reduction"):
        torch._inductor.config.triton.mix_order_reduction = False
    plain = Parts()
    compiled = {part.name: torch.compile(getattr(plain, part.name), dynamic=True) for part in fields(Parts)}
    return Parts(**compiled)


def signed_sine(sin: torch.Tensor) -> torch.Tensor:
    """Negate the first half of the library's sine [..., D], as `rotate` needs it."""
    half = sin.shape[-1] // 2
    return torch.cat([-sin[..., :half], sin[..., half:]], -1)


def use_fused_layers(backbone: torch.nn.Module, fused: bool) -> None:
    """Let the layers of a model of `MODEL_TYPES` run by `compiled_parts` if ``fused``, or else as in the library.

    Replaces the forward methods inside a layer, not that of the layer, which the library recomputes and FSDP gathers.
    """
    for layer in cast("Iterable[LlamaDecoderLayer]", getattr(backbone, "layers", ())):
        inside: dict[torch.nn.Module, Callable[..., Any]] = {
            layer.input_layernorm: _fused_norm, layer.self_attn: _fused_attention,
            layer.post_attention_layernorm: _fused_norm, layer.mlp: _fused_mlp,
        }  # fmt: skip
        for module, function in inside.items():
            module.__dict__.pop("forward", None)
            if fused:
                module.forward = partial(function, module)


def _fused_norm(norm: "LlamaRMSNorm", x: torch.Tensor) -> torch.Tensor:
    """Normalize the input of the next products, rounded once for all of them."""
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    return compiled_parts().normalize(x, norm.weight, norm.variance_epsilon, dtype)


def _fused_mlp(mlp: "LlamaMLP", x: torch.Tensor) -> torch.Tensor:
    return mlp.down_proj(compiled_parts().gate(mlp.gate_proj(x), mlp.up_proj(x)))


def _fused_attention(
    attention: "Qwen3Attention", hidden_states: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor],
    attention_mask: Any = None, **kwargs: Any,
) -> tuple[torch.Tensor, Any]:  # fmt: skip
    """Attend over packed trees; with any other mask, as in the library's own sampling, run the library's attention."""
    if not isinstance(attention_mask, BlockMask):
        usual = {"position_embeddings": position_embeddings, "attention_mask": attention_mask, **kwargs}
        return type(attention).forward(attention, hidden_states, **usual)
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    q, k, v = (projection(hidden_states).unflatten(-1, (-1, attention.head_dim)) for projection in projections)
    q_norm, k_norm = head_norms(attention)
    cos, sin = position_embeddings[0][:, :, None], signed_sine(position_embeddings[1][:, :, None])
    rotate = compiled_parts().rotate
    q, k = rotate(q, cos, sin, q_norm, v.dtype), rotate(k, cos, sin, k_norm, v.dtype)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out, _ = flex_attention.packed_attention(attention, q, k, v, attention_mask, scaling=attention.scaling)
    return attention.o_proj(out.flatten(2)), None
