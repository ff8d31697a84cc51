"""The layers of a Llama-like model one after another, without what a library has to ask around them.

In a small model most of the time of a step goes into finding out what is to be done. `transformers` stays the judge: a
model is only run this way where both agree (`agrees`).
"""

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from trainers.engines.kv_cache import KeyValues

MODELS = ("llama", "mistral", "qwen2", "qwen3")
LINEAR = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]


class Weights:
    """Linear layers with weights in the precision that they are multiplied in.

    Under autocast a library rounds float32 weights in each pass again, which reads and writes three times what there is
    to read. Here there is a rounded copy of each, at an address that does not change, as CUDA graphs want it; `refresh`
    it when the weights have changed. Layers that are something else than linear, such as adapters, are called as they are.

    Args:
        dtype: of the products. Where weights have it already, they are used themselves.
    """

    def __init__(self, backbone: torch.nn.Module, dtype: torch.dtype):
        modules = [layer.get_submodule(name) for layer in backbone.layers for name in LINEAR]
        self._of = {
            module: tuple(None if p is None else p.detach().to(dtype) for p in (module.weight, module.bias))
            for module in modules
            if type(module) is torch.nn.Linear
        }
        pairs = ((ours, p) for m, own in self._of.items() for ours, p in zip(own, (m.weight, m.bias), strict=True))
        self._copies = [(ours, p) for ours, p in pairs if p is not None and p.dtype != dtype]

    @torch.no_grad()
    def refresh(self) -> None:
        for ours, theirs in self._copies:
            ours.copy_(theirs)

    @property
    def nbytes(self) -> int:
        """What the copies take."""
        return sum(ours.nbytes for ours, _ in self._copies)

    def __call__(self, module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        own = self._of.get(module)
        return module(x) if own is None else linear(x, *own)


def forward(
    backbone: torch.nn.Module,
    weights: Weights,
    ids: torch.Tensor,
    positions: torch.Tensor,
    sees: torch.Tensor,
    cache: KeyValues,
) -> torch.Tensor:
    """The last hidden states [m, w, H] of a Llama, Qwen2 or Qwen3, with or without LoRA.

    Args:
        ids, positions: int64 [m, w].
        sees: bool [m, 1, w, width], which columns of the cache each token sees.
    """
    x = backbone.embed_tokens(ids)
    cos, sin = (angle[:, None] for angle in backbone.rotary_emb(x, positions))
    half = cos.shape[-1] // 2
    sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)
    shared = 1  # query heads that look at the same keys and values: they are as many tokens of one head
    for number, layer in enumerate(backbone.layers):
        attention, mlp = layer.self_attn, layer.mlp
        h = _norm(layer.input_layernorm, x)
        shape = (*ids.shape, -1, attention.head_dim)
        q, k, v = (weights(p, h).view(shape) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        if hasattr(attention, "q_norm"):
            q, k = _norm(attention.q_norm, q), _norm(attention.k_norm, k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        q = q * cos + q.roll(half, -1) * sin
        k = k * cos + k.roll(half, -1) * sin
        k, v = cache.update(k, v, number)
        if q.shape[1] != k.shape[1] and shared == 1:
            shared = q.shape[1] // k.shape[1]
            sees = sees.repeat(1, 1, shared, 1)
        h = scaled_dot_product_attention(
            q.to(v.dtype).reshape(len(ids), k.shape[1], -1, q.shape[-1]), k, v, attn_mask=sees, scale=attention.scaling
        ).reshape(q.shape)
        x = x + weights(attention.o_proj, h.transpose(1, 2).flatten(2))
        h = _norm(layer.post_attention_layernorm, x)
        x = x + weights(mlp.down_proj, silu(weights(mlp.gate_proj, h)) * weights(mlp.up_proj, h))
    return _norm(backbone.norm, x)


def _norm(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)


@torch.no_grad()
def agrees(
    backbone: torch.nn.Module, ids: list[int], tolerance: float = 1e-4, dtype: torch.dtype = torch.float32
) -> bool:
    """Whether `forward` is for this model, and gives what the model itself gives, on some ids.

    Args:
        tolerance: the largest difference, in units of the largest number.
        dtype: of the products; where it is not float32, call this under autocast to it.
    """
    if getattr(getattr(backbone, "config", None), "model_type", None) not in MODELS:
        return False  # in bfloat16 a small difference, as in what is rotated, can't be told from rounding
    inputs = torch.tensor([ids], device=backbone.embed_tokens.weight.device)
    positions = torch.arange(len(ids), device=inputs.device)[None]
    cache = KeyValues()
    cache.reserve(1, len(ids))
    cache.aim(positions[0, :1], positions, len(ids))
    sees = positions[:, None, None, :] <= positions[:, None, :, None]
    expected = backbone(inputs, use_cache=False).last_hidden_state.float()
    try:
        found = forward(backbone, Weights(backbone, dtype), inputs, positions, sees, cache)
    except Exception:  # whatever it is that this version of the library does otherwise
        return False
    return float((found.float() - expected).abs().max()) <= tolerance * float(expected.abs().max())
