"""The layers of a Llama-like model one after another, without the overhead of a library.

In a small model most of the time of a decoding step is spent in Python. `transformers` stays the reference: a model is
run this way only where `matches_reference` finds both to agree.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from trainers.engines.kv_cache import KVCache

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel, LlamaRMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RMSNorm

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
# The linear layers of one layer, by what they are multiplied with: those of a line have the same input.
PROJECTIONS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


class Weights(Protocol):
    """The linear layers of a model, as `forward` calls them.

    Attributes:
        decode_layers: `PackedWeights.decode_layers`, for passes of one token a row, where it can be used.
    """

    decode_layers: Callable[..., torch.Tensor] | None

    def refresh(self) -> None:
        """Take the weights of now."""
        ...

    @property
    def nbytes(self) -> int:
        """The size of what is held beside the model, in bytes."""
        ...

    def __call__(self, number: int, name: str, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """The outputs of some linear layers, which have the same input: ``PROJECTIONS[name]`` of this layer."""
        ...


class CastWeights:
    """Linear layers with their weights in the precision of the matrix products.

    Autocast rounds float32 weights again in each pass, which triples the memory traffic. Here there is one rounded copy
    of each weight, at a fixed address as CUDA graphs need it; call `refresh` when the weights have changed. Layers of
    another kind are called as they are.

    Args:
        dtype: of the products. Weights that have it already are used themselves.
        merges: LoRA adapters are merged into copies of their layers' weights, where an adapter by itself takes three products
            more; otherwise they too are called as they are, which takes no memory.
    """

    decode_layers: Callable[..., torch.Tensor] | None = None

    @torch.no_grad()
    def __init__(self, backbone: "LlamaModel", dtype: torch.dtype, merges: bool = False):
        self._modules = [
            {name: [layer.get_submodule(part) for part in parts] for name, parts in PROJECTIONS.items()}
            for layer in backbone.layers
        ]
        self._cast: dict[torch.nn.Module, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._merged: list[torch.nn.Module] = []
        for module in (module for layer in self._modules for part in layer.values() for module in part):
            if type(module) is torch.nn.Linear:
                weight, bias = module.weight, module.bias
                cast_weight = weight.detach().to(dtype)
                cast_bias = None if bias is None else bias.detach().to(dtype)
                self._cast[module] = cast_weight, cast_bias
                if weight.dtype != dtype:
                    self._copies.append((cast_weight, weight))
                if bias is not None and cast_bias is not None and bias.dtype != dtype:
                    self._copies.append((cast_bias, bias))
            elif merges and _is_known(module):
                merged, added = weight_and_bias(module)
                self._cast[module] = merged.to(dtype, copy=True), None if added is None else added.to(dtype, copy=True)
                self._merged.append(module)

    @torch.no_grad()
    def refresh(self) -> None:
        """Merge and round the weights of now."""
        for copy, original in self._copies:
            copy.copy_(original)
        for module in self._merged:
            for rounded, new in zip(self._cast[module], weight_and_bias(module), strict=True):
                if rounded is not None and new is not None:
                    rounded.copy_(new)

    @property
    def nbytes(self) -> int:
        """The size of the copies, in bytes."""
        return sum(copy.nbytes for copy, _ in self._copies) + sum(self._cast[m][0].nbytes for m in self._merged)

    def __call__(self, number: int, name: str, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """`Weights.__call__`."""
        return [
            linear(x, *self._cast[module]) if module in self._cast else module(x)
            for module in self._modules[number][name]
        ]


def weight_and_bias(module: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weight of a linear layer, with its adapters merged in float32, and the bias.

    Raises:
        TypeError: a layer of another kind, or another adapter than plain LoRA.
    """
    if type(module) is torch.nn.Linear:
        return module.weight, module.bias
    adapted = cast(Any, module)
    base = getattr(module, "base_layer", None)
    if type(base) is not torch.nn.Linear or not hasattr(module, "get_delta_weight"):
        raise TypeError(f"{type(module).__name__} is not a linear layer whose weight is known")
    active = [] if adapted.merged or adapted.disable_adapters else adapted.active_adapters
    if any(adapted.use_dora.get(name) or adapted.lora_bias.get(name) for name in active):
        raise TypeError("the adapter is not plain LoRA")
    weight = base.weight.float()
    with torch.autocast(weight.device.type, enabled=False):
        for name in set(active) & set(adapted.lora_A):
            weight = weight + adapted.get_delta_weight(name)
    return weight, base.bias


def _is_known(module: torch.nn.Module) -> bool:
    """Whether `weight_and_bias` knows such layers."""
    try:
        weight_and_bias(module)
    except TypeError:
        return False
    return True


def forward(
    backbone: "LlamaModel",
    weights: Weights,
    ids: torch.Tensor,
    positions: torch.Tensor,
    attention_mask: torch.Tensor,
    kv_cache: KVCache,
) -> torch.Tensor:
    """The last hidden states [m, w, H] of a Llama, Mistral, Qwen2 or Qwen3, with or without LoRA.

    Args:
        ids, positions: int64 [m, w].
        attention_mask: bool [m, 1, w, width], the columns of the cache that each token attends to: the first ones.
    """
    x = backbone.embed_tokens(ids)
    cos, sin = backbone.rotary_emb(x, positions)
    if weights.decode_layers and kv_cache.is_decoding:
        lengths = attention_mask[:, 0, 0].sum(-1)
        return normalize(backbone.norm, weights.decode_layers(x[:, 0], cos[:, 0], sin[:, 0], lengths, kv_cache))[
            :, None
        ]
    cos, sin = cos[:, None], sin[:, None]
    half = cos.shape[-1] // 2
    sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)
    group_size = 1  # query heads of one key-value head (GQA): they are run as so many tokens of a single head
    for number, layer in enumerate(cast("Iterable[LlamaDecoderLayer]", backbone.layers)):
        attention = layer.self_attn
        h = normalize(layer.input_layernorm, x)
        shape = (*ids.shape, -1, attention.head_dim)
        q, k, v = (x.view(shape) for x in weights(number, "qkv", h))
        if hasattr(attention, "q_norm"):
            qwen3 = cast("Qwen3Attention", attention)
            q, k = normalize(qwen3.q_norm, q), normalize(qwen3.k_norm, k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        q = q * cos + q.roll(half, -1) * sin
        k = k * cos + k.roll(half, -1) * sin
        k, v = kv_cache.update(k, v, number)
        if q.shape[1] != k.shape[1] and group_size == 1:
            group_size = q.shape[1] // k.shape[1]
            attention_mask = attention_mask.repeat(1, 1, group_size, 1)
        h = scaled_dot_product_attention(
            q.to(v.dtype).reshape(len(ids), k.shape[1], -1, q.shape[-1]),
            k,
            v,
            attn_mask=attention_mask,
            scale=attention.scaling,
        ).reshape(q.shape)
        x = x + weights(number, "o", h.transpose(1, 2).flatten(2))[0]
        h = normalize(layer.post_attention_layernorm, x)
        gate, up = weights(number, "gate_up", h)
        x = x + weights(number, "down", silu(gate) * up)[0]
    return normalize(backbone.norm, x)


def normalize(module: "LlamaRMSNorm | Qwen3RMSNorm", x: torch.Tensor) -> torch.Tensor:
    """A module's RMSNorm of x [..., H]."""
    return rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)


@torch.no_grad()
def matches_reference(
    backbone: torch.nn.Module,
    ids: list[int],
    tolerance: float = 1e-4,
    dtype: torch.dtype = torch.float32,
    make_weights: Callable[["LlamaModel", torch.dtype], Weights] = CastWeights,
) -> bool:
    """Whether `forward` can run this model: its hidden states on some ids are compared with the model's own.

    Args:
        tolerance: the largest difference, relative to the largest number.
        dtype: of the products; where it is not float32, call this under autocast to it.
        make_weights: how the linear layers are run.
    """
    if getattr(getattr(backbone, "config", None), "model_type", None) not in MODEL_TYPES:
        return False  # in bfloat16 a small difference, as in the rotary embedding, looks like rounding
    model = cast("LlamaModel", backbone)
    inputs = torch.tensor([ids], device=model.embed_tokens.weight.device)
    positions = torch.arange(len(ids), device=inputs.device)[None]
    kv_cache = KVCache()
    kv_cache.reserve(1, len(ids))
    kv_cache.set_positions(positions[0, :1], positions, len(ids))
    attention_mask = positions[:, None, None, :] <= positions[:, None, :, None]
    expected = model(inputs, use_cache=False).last_hidden_state.float()
    try:
        weights = make_weights(model, dtype)
        found = forward(model, weights, inputs, positions, attention_mask, kv_cache)
        # The last token once more, as it is run in decoding.
        kv_cache.set_positions(slice(0, 1), positions[:, -1:], len(ids))
        last = forward(model, weights, inputs[:, -1:], positions[:, -1:], attention_mask[:, :, -1:], kv_cache)
    except Exception as error:  # whatever this version of the library does differently
        logger.info("the layers are run by the library: %s", error)
        return False
    difference = max((found.float() - expected).abs().max(), (last.float() - expected[:, -1:]).abs().max())
    return float(difference) <= tolerance * float(expected.abs().max())
