"""The layers of a Llama-like model for updates on a CPU, in few passes over memory.

The library's layers, and more so peft's adapters in them, copy their activations several times between products, and under
autocast cast them as well. Here activations are bfloat16 under autocast, from the norm to the end of each half of a layer, and
else float32; what is added up along the layers stays float32, as the library has it; and gradients are written by hand where
this saves passes: a frozen weight has none, adapters of linear layers with one input are multiplied at once, and `silu` is made
again in place of being kept.

`replace` puts them into a model. They run on the inputs of `row_attention.pack_rows`; any other call goes to the library's own
layers.
"""

from collections.abc import Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn.functional import linear, silu

from trainers.models.row_attention import Blocks, RowAttention

if TYPE_CHECKING:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel, LlamaRMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RMSNorm

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


def can_replace(backbone: torch.nn.Module) -> bool:
    """Whether a model without its head is of a kind whose layers these could be; compare before relying on it."""
    config = getattr(backbone, "config", None)
    return getattr(config, "model_type", None) in MODEL_TYPES and getattr(config, "hidden_act", None) == "silu"


def replace(backbone: torch.nn.Module) -> None:
    """Let the layers of a model, and of its later copies, run as described above."""
    for layer in cast("LlamaModel", backbone).layers:
        layer.forward = MethodType(_forward, layer)


def restore(backbone: torch.nn.Module) -> None:
    """Let them run as the library has them."""
    for layer in cast("LlamaModel", backbone).layers:
        vars(layer).pop("forward", None)


def _forward(layer: "LlamaDecoderLayer", hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    rows = kwargs.get("tree_rows")
    if rows is None:
        return type(layer).forward(layer, hidden_states, *args, **kwargs)
    cos, sin = (angle[0, :, None].float() for angle in kwargs["position_embeddings"])
    half = sin.shape[-1] // 2
    sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)  # the first half of a head has the second one subtracted
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    with torch.autocast("cpu", enabled=False):
        return _run(layer, hidden_states[0].float(), cos, sin, rows, dtype)[None]


def _run(
    layer: "LlamaDecoderLayer",
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    rows: list[Blocks],
    dtype: torch.dtype,
) -> torch.Tensor:
    """One layer: float32 [N, H] to float32 [N, H]; cosines and signed sines are [N, 1, D]."""
    attention, mlp = layer.self_attn, layer.mlp
    h = _norm(layer.input_layernorm, x, dtype)
    q, k, v = (
        y.view(len(x), -1, attention.head_dim)
        for y in _project(h, attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if hasattr(attention, "q_norm"):
        qwen3 = cast("Qwen3Attention", attention)
        q, k = _norm(qwen3.q_norm, q, dtype), _norm(qwen3.k_norm, k, dtype)
    q, k = Rotation.apply(q, cos, sin), Rotation.apply(k, cos, sin)
    h = RowAttention.apply(q.unflatten(1, (k.shape[1], -1)), k, v, rows, attention.scaling)
    x = x + _project(h.flatten(1), attention.o_proj)[0].float()
    h = _norm(layer.post_attention_layernorm, x, dtype)
    h = SwiGLU.apply(*_project(h, mlp.gate_proj, mlp.up_proj))
    return x + _project(h, mlp.down_proj)[0].float()


def _norm(module: "LlamaRMSNorm | Qwen3RMSNorm", x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return RMSNorm.apply(x, module.weight, module.variance_epsilon, dtype)


def _project(x: torch.Tensor, *modules: torch.nn.Module) -> Sequence[torch.Tensor]:
    """The outputs of linear layers, with or without a LoRA adapter, that have the same input [N, I].

    Raises:
        TypeError: a layer is of another kind, or its adapter is.
    """
    adapters = [adapter for module in modules if (adapter := _adapter(module))]
    if adapters and len(adapters) < len(modules):
        return [_project(x, module)[0] for module in modules]
    bases = [cast("torch.nn.Linear", getattr(module, "base_layer", module)) for module in modules]
    weights = [base.weight.to(x.dtype) for base in bases]
    biases = [None if base.bias is None else base.bias.to(x.dtype) for base in bases]
    if not adapters:
        return [linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
    first = torch.cat([first for first, _ in adapters]).to(x.dtype)
    outs = AdaptedLinear.apply(x, first, *weights, *(second.to(x.dtype) for _, second in adapters))
    return [y if bias is None else y + bias for y, bias in zip(outs, biases, strict=True)]


def _adapter(module: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The matrices of a linear layer's adapter, [R, I] and [O, R], the second with the scale; None where there is none."""
    if type(module) is torch.nn.Linear:
        return None
    adapted = cast(Any, module)
    if type(getattr(module, "base_layer", None)) is not torch.nn.Linear or not hasattr(module, "lora_A"):
        raise TypeError(f"{type(module).__name__} is not a linear layer with a LoRA adapter")
    name, *others = adapted.active_adapters
    if others or adapted.merged or adapted.disable_adapters or name in adapted.lora_variant:
        raise TypeError("not one plain LoRA adapter")
    first, second, dropout = (matrices[name] for matrices in (adapted.lora_A, adapted.lora_B, adapted.lora_dropout))
    if second.bias is not None or adapted.base_layer.weight.requires_grad:
        raise TypeError("more is trained than an adapter's two matrices")
    if dropout.training and type(dropout) is not torch.nn.Identity:
        raise TypeError("the adapter has dropout")
    return first.weight, second.weight * adapted.scaling[name]


class AdaptedLinear(torch.autograd.Function):
    """x Wᵀ + (x Aᵀ) Bᵀ for several frozen W [O, I] and their B [O, R], with one input x [N, I] and one A of all their rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, first: torch.Tensor, *matrices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights, seconds = matrices[: len(matrices) // 2], matrices[len(matrices) // 2 :]
        inner = x @ first.T
        ctx.save_for_backward(x, first, inner, *matrices)
        parts = inner.split([second.shape[1] for second in seconds], -1)
        return tuple(
            (x @ weight.T).addmm_(part, second.T) for weight, part, second in zip(weights, parts, seconds, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *by_outs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, first, inner, *matrices = ctx.saved_tensors
        weights, seconds = matrices[: len(by_outs)], matrices[len(by_outs) :]
        parts = inner.split([second.shape[1] for second in seconds], -1)
        by_inner = torch.cat([by_out @ second for by_out, second in zip(by_outs, seconds, strict=True)], -1)
        by_seconds = [by_out.T @ part for by_out, part in zip(by_outs, parts, strict=True)]
        by_x = None
        if ctx.needs_input_grad[0]:
            by_x = by_inner @ first
            for by_out, weight in zip(by_outs, weights, strict=True):
                by_x.addmm_(by_out, weight)
        return by_x, by_inner.T @ x, *(None for _ in weights), *by_seconds


class RMSNorm(torch.autograd.Function):
    """The root-mean-square norm (Zhang and Sennrich 2019) of x [..., D] with its weight [D], to ``dtype``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
        wide = x.float()
        scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).mul_(weight).to(dtype)

    @staticmethod
    def backward(ctx: Any, *by_outs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        by_out, wide = by_outs[0].float(), x.float()
        by_weight = (by_out * wide).mul_(scale).flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        by_normal = by_out * weight if by_out is by_outs[0] else by_out.mul_(weight)  # never what is not ours
        along = torch.linalg.vecdot(by_normal, wide)[..., None] * scale.square() / x.shape[-1]
        return by_normal.addcmul_(wide, along, value=-1).mul_(scale).to(x.dtype), by_weight, None, None


class Rotation(torch.autograd.Function):
    """The rotary embedding (Su et al. 2021) of x [N, K, D], whose dimensions are paired over half of D. The first half of
    the sines is negated."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *by_outs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotate(by_outs[0], cos, -sin), None, None


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return (x.float() * cos).addcmul_(x.roll(half, -1).float(), sin).to(x.dtype)


class SwiGLU(torch.autograd.Function):
    """silu(gate) · up (Shazeer 2020)."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *by_outs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(by_outs[0] * up, gate), silu(gate).mul_(by_outs[0])
