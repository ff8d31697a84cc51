"""The layers of a Llama-like model one after another, without the Python overhead of a library.

`ModelRunner` runs a model this way only if it agrees with `transformers`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from trainers.engines.kv_cache import KVCache
from trainers.models.llama_parts import Parts, add_and_normalize, head_norms, signed_sine
from trainers.models.lora import base_weight, joined_adapters, merged_weight
from trainers.models.products import linear, pack

if TYPE_CHECKING:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

# The linear layers of a decoder layer; those of one line have the same input.
PROJECTIONS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


class CastWeights:
    """Linear layers in the precision of the matrix products, with LoRA adapters joined to them, at fixed addresses.

    Autocast would round float32 weights in each pass, which triples the memory traffic. Call `refresh` after an update.
    In float32 adapters are merged into the weights. In bfloat16 that would round away a part of an adapter that has just begun to
    learn, which training keeps: there B A x is added, with the A and B of layers with the same input joined.

    Args:
        dtype: precision of the products. Plain weights that already have it are not copied.
        merges: whether adapters are joined; otherwise they are called as they are, which takes no memory.
        stacks: whether layers with the same input are stacked into one product, if their weights are copied.
        packs: whether all of them are joined and stacked, and their weights copied by `products.pack`.
    """

    @torch.no_grad()
    def __init__(
        self, backbone: "LlamaModel", dtype: torch.dtype, merges: bool, stacks: bool = False, packs: bool = False
    ):
        self._modules = [
            {name: [layer.get_submodule(part) for part in parts] for name, parts in PROJECTIONS.items()}
            for layer in backbone.layers
        ]
        self.dtype = dtype
        self._weights: dict[torch.nn.Module, list[torch.Tensor]] = {}  # weight, and bias if there is one
        self._copied: list[torch.nn.Module] = []
        self._stacked: dict[torch.nn.Module, list[torch.Tensor]] = {}  # by the first layer of a stack
        self._packed: list[list[torch.nn.Module]] = []
        # A and B, by the first of layers with the same input; and all of these layers.
        self._added: dict[torch.nn.Module, list[torch.Tensor]] = {}
        self._frozen = set[torch.nn.Module]()
        for modules in (modules for layer in self._modules for modules in layer.values()):
            if merges and dtype != torch.float32 and (joined := joined_adapters(modules)):
                self._added[modules[0]] = [factor.detach().to(dtype, copy=True) for factor in joined]
                self._frozen |= set(modules)
            if packs and self._pack(modules):
                self._packed.append(modules)
                continue
            for module in modules:
                is_plain = type(module) is torch.nn.Linear
                if known := self._read(module) if is_plain or merges else []:
                    is_stacked = stacks and len(modules) > 1
                    is_kept = is_plain or (module in self._frozen and not is_stacked)
                    copies = any(x.dtype != dtype for x in known) or not is_kept
                    self._weights[module] = [x.detach().to(dtype, copy=copies) for x in known]
                    if copies:
                        self._copied.append(module)
            if stacks and len(modules) > 1 and set(modules) <= set(self._copied):
                self._stack(modules)

    def _read(self, module: torch.nn.Module) -> list[torch.Tensor]:
        """Return the weight, and the bias if there is one, that the layer has here."""
        return base_weight(module) if module in self._frozen else merged_weight(module)

    def _stack(self, modules: list[torch.nn.Module]) -> None:
        """Put the weights of layers into one tensor, and their biases into another; those of each layer become views."""
        known = [self._weights[module] for module in modules]
        if len({len(each) for each in known}) > 1:  # not all of them have a bias
            return
        self._stacked[modules[0]] = [torch.cat(parts) for parts in zip(*known, strict=True)]
        sizes = [len(each[0]) for each in known]
        split = [stacked.split(sizes) for stacked in self._stacked[modules[0]]]
        self._weights |= zip(modules, map(list, zip(*split, strict=True)), strict=True)

    def _pack(self, modules: list[torch.nn.Module]) -> bool:
        """Stack and pack the current weights; return whether that was possible."""
        known = list(map(self._read, modules))
        if not all(known) or len({len(each) for each in known}) > 1:  # not all of them have a bias
            return False
        weight, *bias = (torch.cat(parts).detach().to(self.dtype) for parts in zip(*known, strict=True))
        self._stacked[modules[0]] = [pack(weight), *bias]
        return True

    @torch.no_grad()
    def refresh(self) -> None:
        """Merge and round the current weights."""
        for modules in self._packed:
            if modules[0] not in self._added:
                self._pack(modules)
        for module in self._copied:
            if module not in self._frozen:
                for copy, new in zip(self._weights[module], merged_weight(module), strict=True):
                    copy.copy_(new)
        for modules in (modules for layer in self._modules for modules in layer.values()):
            if copies := self._added.get(modules[0]):
                for copy, new in zip(copies, joined_adapters(modules), strict=True):
                    copy.copy_(new)

    @property
    def nbytes(self) -> int:
        """The size of the copies, in bytes."""
        packed = sum(self._stacked[modules[0]][0].nbytes for modules in self._packed)
        packed += sum(factor.nbytes for factors in self._added.values() for factor in factors)
        return packed + sum(self._weights[module][0].nbytes for module in self._copied)

    def __call__(self, number: int, name: str, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the outputs of the linear layers ``PROJECTIONS[name]`` in decoder layer ``number`` for their common input."""
        modules, added = self._modules[number][name], None
        sizes = [cast(int, module.out_features) for module in modules]
        if modules[0] in self._added:
            down, up = self._added[modules[0]]
            added = linear(linear(x, down), up)
        if modules[0] in self._stacked:
            joined = linear(x, *self._stacked[modules[0]])
            return list((joined if added is None else joined + added).split(sizes, -1))
        found = [linear(x, *self._weights[module]) if module in self._weights else module(x) for module in modules]
        return found if added is None else [own + more for own, more in zip(found, added.split(sizes, -1), strict=True)]


@dataclass(frozen=True, slots=True)
class Places:
    """Where a pass writes and reads the KV cache, for FlashAttention: each key-value head of each row is one sequence.

    Attributes:
        slots: int64 [m, w, kv heads], which of all slots of a layer store the keys and values of the pass's tokens.
        queries, keys: int32 [n + 1], where the queries of each sequence begin, and its keys among the slots.
        lengths: int32 [n], how many keys its last query attends to.
    """

    slots: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of_pass(cls, kv_cache: KVCache, heads: int) -> "Places":
        """Compute the places of the tokens that the cache stores in this pass."""
        rows, columns = kv_cache.rows, kv_cache.columns
        numbers = torch.arange(len(rows) * heads + 1, dtype=torch.int32, device=rows.device)
        first = (rows[:, None] * heads + numbers[:heads]) * kv_cache.width
        return cls(
            slots=first[:, None] + columns[..., None], queries=numbers * columns.shape[1],
            keys=pad(first.flatten(), (0, 1)).int(), lengths=(columns[:, -1:] + 1).expand(-1, heads).flatten().int(),
        )  # fmt: skip


def attend_to_places(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, places: Places, scale: float
) -> torch.Tensor:
    """Compute causal attention by FlashAttention, which reads each row of the cache up to its own length.

    Args:
        q: [m, w, heads, D], queries of w consecutive tokens per row. Heads that share a key-value head are side by side.
        keys, values: the cache, contiguous [rows, kv heads, width, D].
    """
    (tokens, heads, size), width = q.shape[1:], keys.shape[2]
    grouped = q.unflatten(2, (keys.shape[1], -1)).transpose(1, 2)
    out = torch.ops.aten._flash_attention_forward(
        grouped.reshape(-1, heads // keys.shape[1], size), keys.view(-1, 1, size), values.view(-1, 1, size),
        places.queries, places.keys, tokens, width, 0.0, tokens > 1, False, scale=scale, seqused_k=places.lengths,
    )[0]  # fmt: skip
    return out.reshape(grouped.shape).transpose(1, 2).reshape(q.shape)


def forward(
    backbone: "LlamaModel",
    weights: CastWeights,
    ids: torch.Tensor,
    positions: torch.Tensor,
    attention_mask: torch.Tensor | None,
    kv_cache: KVCache,
    parts: Parts,
) -> torch.Tensor:
    """Compute the last hidden states [m, w, H] of a model of `llama_parts.MODEL_TYPES`, with or without LoRA.

    Args:
        ids, positions: int64 [m, w].
        attention_mask: bool [m, 1, w, width], the columns of the cache that each token attends to; None for all up to its own,
            by `attend_to_places`.
    """
    x = backbone.embed_tokens(ids)
    cos, sin = backbone.rotary_emb(x, positions)
    angles = cos[:, :, None], signed_sine(sin[:, :, None])
    heads = cast(int, backbone.config.num_key_value_heads)
    if attention_mask is None:
        seen: Places | torch.Tensor = Places.of_pass(kv_cache, heads)
    else:  # query heads that share a key-value head (GQA) are run as tokens of a single head
        mask = attention_mask.repeat(1, 1, backbone.config.num_attention_heads // heads, 1)
        # Converted once to numbers to add: PyTorch's attention would do so in every layer.
        seen = torch.zeros_like(mask, dtype=weights.dtype).masked_fill_(~mask, -torch.inf)
    layers, dtype = list(cast("Iterable[LlamaDecoderLayer]", backbone.layers)), weights.dtype
    norms = [norm for layer in layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
    after = [(norm.weight, norm.variance_epsilon, dtype) for norm in norms]
    h = parts.normalize(x, *after[0])
    after = [*after[1:], (backbone.norm.weight, backbone.norm.variance_epsilon, backbone.norm.weight.dtype)]
    for number, layer in enumerate(layers):
        attention = cast("Qwen3Attention", layer.self_attn)
        q, k, v = (x.view(*ids.shape, -1, attention.head_dim) for x in weights(number, "qkv", h))
        h = _attend(attention, number, q, k, v, angles, seen, kv_cache, parts)
        x, h = parts.add_and_normalize(x, weights(number, "o", h.flatten(2))[0], *after[2 * number])
        h = parts.gate(*weights(number, "gate_up", h))
        add = parts.add_and_normalize if number + 1 < len(layers) else add_and_normalize  # of another precision
        x, h = add(x, weights(number, "down", h)[0], *after[2 * number + 1])
    return h


def _attend(
    attention: "Qwen3Attention", number: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor], seen: Places | torch.Tensor, kv_cache: KVCache, parts: Parts,
) -> torch.Tensor:  # fmt: skip
    """Compute attention [m, w, heads, D] of a layer, and store its keys and values [m, w, kv heads, D] in the cache.

    ``seen``: the places that it reads, or the mask of `forward` as numbers to add.
    """
    norms = head_norms(attention)
    if isinstance(seen, Places):
        keys, values = kv_cache.buffers(number, v.transpose(1, 2), v.transpose(1, 2))
        both = keys.view(-1, attention.head_dim), values.view(-1, attention.head_dim)
        q = parts.rotate_and_store(q, k, v, angles, norms, *both, seen.slots)
        return attend_to_places(q, keys, values, seen, attention.scaling)
    rows, tokens, heads, size = q.shape
    q, k = parts.rotate(q, *angles, norms[0], v.dtype), parts.rotate(k, *angles, norms[1], v.dtype)
    k, v = kv_cache.update(k.transpose(1, 2), v.transpose(1, 2), number)
    grouped = q.transpose(1, 2).reshape(rows, k.shape[1], -1, size)
    out = scaled_dot_product_attention(grouped, k, v, attn_mask=seen, scale=attention.scaling)
    return out.reshape(rows, heads, tokens, size).transpose(1, 2)
