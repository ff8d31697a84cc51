"""Matrix products on a CPU, with weights in the layout that oneDNN multiplies from.

A decoding step multiplies a few rows with each weight. From the usual layout that takes two to eight times as long as
from packed weights, most of it for packing them again at each step.
"""

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, cast

import torch

from trainers.engines.kv_cache import KVCache
from trainers.engines.llama import PROJECTIONS, normalize, weight_and_bias
from trainers.models.hidden_states import has_bfloat16_products

if TYPE_CHECKING:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

# Float32 layers that are smaller than this in all lie in the caches of a processor, and gain nothing.
MIN_BYTES = 2**24


def can_pack(model: torch.nn.Module, dtype: torch.dtype) -> bool:
    """Whether a model's products are run from packed weights."""
    tensors = list(model.parameters())
    if any(tensor.device.type != "cpu" for tensor in tensors) or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return has_bfloat16_products("cpu")
    return dtype == torch.float32 and sum(tensor.nbytes for tensor in tensors) >= MIN_BYTES


class PackedLinear:
    """Linear layers with the same input as one product: their weights one below the other.

    Attributes:
        dtype: of the product.
        in_features: the width of the input.

    Args:
        modules: plain linear layers, or such ones with a LoRA adapter, which is merged into the weight.

    Raises:
        TypeError: a layer of another kind.
    """

    @torch.no_grad()
    def __init__(self, modules: Iterable[torch.nn.Module], dtype: torch.dtype):
        weights, biases = zip(*(weight_and_bias(module) for module in modules), strict=True)
        self._sizes, self.dtype, self.in_features = [len(weight) for weight in weights], dtype, weights[0].shape[1]
        self._weight = torch.ops.mkldnn._reorder_linear_weight(torch.cat([weight.to(dtype) for weight in weights]))
        self._bias = None
        if any(bias is not None for bias in biases):
            filled = [
                weight.new_zeros(len(weight)) if bias is None else bias
                for weight, bias in zip(weights, biases, strict=True)
            ]
            self._bias = torch.cat(filled).to(dtype)

    @property
    def nbytes(self) -> int:
        """The size of the weights, in bytes."""
        return sum(self._sizes) * self.in_features * self.dtype.itemsize

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs of all layers, one after another, as one tensor."""
        return torch.ops.mkldnn._linear_pointwise(x.to(self.dtype), self._weight, self._bias, "none", [], "")

    def __call__(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """The output of each layer, parts of one tensor."""
        return self.split(self.product(x))

    def split(self, y: torch.Tensor) -> Sequence[torch.Tensor]:
        """The parts of `product`, one of each layer."""
        return y.split(self._sizes, -1) if len(self._sizes) > 1 else (y,)


class PackedWeights:
    """`llama.Weights`, packed, with adapters merged. Four products a layer are left.

    Attributes:
        decode_layers: the method of this name, or None where it cannot be used.

    Raises:
        TypeError: the model has linear layers of another kind, such as other adapters than LoRA.
    """

    def __init__(self, backbone: "LlamaModel", dtype: torch.dtype):
        self._backbone, self._dtype = backbone, dtype
        is_mixed = dtype == torch.bfloat16 and backbone.embed_tokens.weight.dtype == torch.float32
        self._kernels = _decode_kernels() if is_mixed else None
        self.decode_layers: Callable[..., torch.Tensor] | None = self._decode_layers if self._kernels else None
        self.refresh()

    def refresh(self) -> None:
        """Merge, round and pack the weights of now."""
        self._products = [
            {name: PackedLinear(map(layer.get_submodule, parts), self._dtype) for name, parts in PROJECTIONS.items()}
            for layer in self._backbone.layers
        ]

    @property
    def nbytes(self) -> int:
        """The size of the copies, in bytes."""
        return sum(product.nbytes for layer in self._products for product in layer.values())

    def __call__(self, number: int, name: str, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """`llama.Weights.__call__`."""
        return self._products[number][name](x)

    def _decode_layers(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, lengths: torch.Tensor, kv_cache: KVCache
    ) -> torch.Tensor:
        """All layers, on one token of each of the first rows of the KV cache, with nothing but kernels of our own between
        the products.

        Args:
            x: float32 [m, H], the embedded tokens.
            cos, sin: float32 [m, D], the rotary embedding.
            lengths: int64 [m], how many columns of the cache each token attends to; the last one is its own.

        Returns:
            float32 [m, H], not yet normalised.
        """
        kernels = cast(ModuleType, self._kernels)
        change: torch.Tensor | None = None
        for number, layer in enumerate(cast("Iterable[LlamaDecoderLayer]", self._backbone.layers)):
            attention, products = layer.self_attn, self._products[number]
            norm = layer.input_layernorm
            qkv = products["qkv"].product(kernels.add_and_normalize(x, change, norm.weight, norm.variance_epsilon))
            if hasattr(attention, "q_norm"):
                _normalize_heads(cast("Qwen3Attention", attention), *products["qkv"].split(qkv)[:2])
            h = kernels.attend(qkv, cos, sin, *kv_cache.buffers(number), lengths, attention.scaling)
            change, norm = products["o"].product(h), layer.post_attention_layernorm
            h = kernels.add_and_normalize(x, change, norm.weight, norm.variance_epsilon)
            change = products["down"].product(kernels.gate(products["gate_up"].product(h)))
        return x if change is None else x + change


def _decode_kernels() -> ModuleType | None:
    try:
        from trainers.engines import decode_kernels
    except (ImportError, OSError, AttributeError):  # no such threads here, as on macOS
        return None
    return decode_kernels


def _normalize_heads(attention: "Qwen3Attention", q: torch.Tensor, k: torch.Tensor) -> None:
    """The norms of queries and keys [m, heads D], in place."""
    for norm, x in ((attention.q_norm, q), (attention.k_norm, k)):
        heads = x.unflatten(-1, (-1, attention.head_dim))
        heads.copy_(normalize(norm, heads))
