"""The layers of a Llama-like model one after another, without the Python overhead of a library.

`ModelRunner` runs a model this way only if it agrees with `transformers`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from trainers.engines.kv_cache import KVCache
from trainers.models.lora import merged_weight

if TYPE_CHECKING:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel, LlamaRMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RMSNorm

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "seed_oss")
# The linear layers of one layer, by what they are multiplied with: those of a line have the same input.
PROJECTIONS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


class CastWeights:
    """Linear layers in the precision of the matrix products, with LoRA adapters merged into them, at fixed addresses.

    Autocast would round float32 weights in each pass, which triples the memory traffic. Call `refresh` after an update.

    Args:
        dtype: of the products. Plain weights that have it already are used themselves.
        merges: whether adapters are merged; otherwise they are called as they are, which takes no memory.
    """

    @torch.no_grad()
    def __init__(self, backbone: "LlamaModel", dtype: torch.dtype, merges: bool):
        self._modules = [
            {name: [layer.get_submodule(part) for part in parts] for name, parts in PROJECTIONS.items()}
            for layer in backbone.layers
        ]
        self._weights: dict[torch.nn.Module, list[torch.Tensor]] = {}  # and the biases that there are
        self._copied: list[torch.nn.Module] = []
        for module in (module for layer in self._modules for part in layer.values() for module in part):
            is_plain = type(module) is torch.nn.Linear
            if known := merged_weight(module) if is_plain or merges else []:
                copies = not is_plain or known[0].dtype != dtype
                self._weights[module] = [x.detach().to(dtype, copy=copies) for x in known]
                if copies:
                    self._copied.append(module)

    @torch.no_grad()
    def refresh(self) -> None:
        """Merge and round the weights of now."""
        for module in self._copied:
            for copy, new in zip(self._weights[module], merged_weight(module), strict=True):
                copy.copy_(new)

    @property
    def nbytes(self) -> int:
        """The size of the copies, in bytes."""
        return sum(self._weights[module][0].nbytes for module in self._copied)

    def __call__(self, number: int, name: str, x: torch.Tensor) -> list[torch.Tensor]:
        """The outputs of some linear layers, which have the same input: ``PROJECTIONS[name]`` of this layer."""
        return [
            linear(x, *self._weights[module]) if module in self._weights else module(x)
            for module in self._modules[number][name]
        ]


def forward(
    backbone: "LlamaModel",
    weights: CastWeights,
    ids: torch.Tensor,
    positions: torch.Tensor,
    attention_mask: torch.Tensor,
    kv_cache: KVCache,
) -> torch.Tensor:
    """The last hidden states [m, w, H] of a model of `MODEL_TYPES`, with or without LoRA.

    Args:
        ids, positions: int64 [m, w].
        attention_mask: bool [m, 1, w, width], the columns of the cache that each token attends to: the first ones.
    """
    x = backbone.embed_tokens(ids)
    cos, sin = backbone.rotary_emb(x, positions)
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
    return rms_norm(x.to(module.weight.dtype), x.shape[-1:], module.weight, module.variance_epsilon)
