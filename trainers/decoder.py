"""The layers of a Llama-like model one after another, without what a library has to ask around them.

In a small model most of the time of a step goes into finding out what is to be done. `transformers` stays the judge: a
model is only run this way where both agree (`agrees`).
"""

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from trainers.keyvalues import KeyValues

MODELS = ("llama", "mistral", "qwen2", "qwen3")


def forward(
    backbone: torch.nn.Module, ids: torch.Tensor, positions: torch.Tensor, sees: torch.Tensor, cache: KeyValues
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
    for number, layer in enumerate(backbone.layers):
        attention, mlp = layer.self_attn, layer.mlp
        h = _norm(layer.input_layernorm, x)
        shape = (*ids.shape, -1, attention.head_dim)
        q, k, v = (_linear(p, h).view(shape) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        if hasattr(attention, "q_norm"):
            q, k = _norm(attention.q_norm, q), _norm(attention.k_norm, k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        q = q * cos + q.roll(half, -1) * sin
        k = k * cos + k.roll(half, -1) * sin
        k, v = cache.update(k, v, number)
        h = scaled_dot_product_attention(
            q.to(v.dtype), k, v, attn_mask=sees, scale=attention.scaling, enable_gqa=q.shape[1] != k.shape[1]
        )
        x = x + _linear(attention.o_proj, h.transpose(1, 2).flatten(2))
        h = _norm(layer.post_attention_layernorm, x)
        x = x + _linear(mlp.down_proj, silu(_linear(mlp.gate_proj, h)) * _linear(mlp.up_proj, h))
    return _norm(backbone.norm, x)


def _norm(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)


def _linear(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return linear(x, module.weight, module.bias) if type(module) is torch.nn.Linear else module(x)


@torch.no_grad()
def agrees(backbone: torch.nn.Module, ids: list[int], tolerance: float = 1e-4) -> bool:
    """Whether `forward` is for this model, and gives what the model itself gives, on some ids.

    Args:
        tolerance: the largest difference, in units of the largest number.
    """
    if getattr(getattr(backbone, "config", None), "model_type", None) not in MODELS:
        return False  # in bfloat16 a small difference, as in what is rotated, can't be told from rounding
    inputs = torch.tensor([ids], device=backbone.embed_tokens.weight.device)
    positions = torch.arange(len(ids), device=inputs.device)[None]
    cache = KeyValues()
    cache.reserve(1, len(ids))
    cache.aim(positions[0, :1], positions, len(ids))
    expected = backbone(inputs, use_cache=False).last_hidden_state.float()
    try:
        found = forward(backbone, inputs, positions, positions[:, None, None, :] <= positions[:, None, :, None], cache)
    except Exception:  # whatever it is that this version of the library does otherwise
        return False
    return float((found.float() - expected).abs().max()) <= tolerance * float(expected.abs().max())
