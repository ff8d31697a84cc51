"""Trees in one row for FlexAttention (Dong et al. 2024, arXiv 2412.05496), which skips blocks that no token sees."""

from functools import cache

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from trainers.models.prefix_trees import Trees

NAME = "packed_trees"  # of the attention, as models know it
STEP = 128  # rows have a multiple of so many tokens: the size of a block, which is skipped or not


def packed(trees: Trees) -> tuple[dict[str, torch.Tensor | BlockMask], torch.Tensor]:
    """The inputs of a model whose attention is `NAME`, with all trees in one row; and where each of the batch's tokens is
    in it, int64 [B, T], 0 for padding."""
    real = torch.zeros_like(trees.ids, dtype=torch.bool).flatten()
    real[trees.where.flatten()] = True
    real[0] = True  # stands for padding, and is the first token of the first tree
    place = real.cumsum(0) - 1
    count, width = int(real.sum()), trees.ids.shape[1]
    size = -(-count // STEP) * STEP
    device = real.device
    row, positions = torch.zeros(2, 1, size, dtype=torch.long, device=device)
    ends = torch.arange(1, size + 1, device=device)  # padding sees itself
    row[0, :count] = trees.ids.flatten()[real]
    positions[0, :count] = trees.positions.flatten()[real]
    first = torch.arange(len(trees.ids), device=device)[:, None] * width
    ends[:count] = place[(trees.ends + first - 1).flatten()[real]] + 1

    def sees(batch, head, query, key):
        return (key <= query) & (query < ends[key])

    mask = _masks(device.type)(sees, None, None, size, size, device)
    return {"input_ids": row, "position_ids": positions, "attention_mask": mask}, place[trees.where]


@cache
def _flex(device: str):
    return flex_attention if device == "cpu" else torch.compile(flex_attention, dynamic=True)


@cache
def _masks(device: str):
    """Compiled, or a mask of all pairs of tokens would be made on the way."""
    return create_block_mask if device == "cpu" else torch.compile(create_block_mask, dynamic=True)


def attention(module, query, key, value, attention_mask, scaling=None, **rest):
    """FlexAttention where the mask is one of `packed`; the usual one elsewhere."""
    if not isinstance(attention_mask, BlockMask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **rest)
    query, key = (
        query.to(value.dtype),
        key.to(value.dtype),
    )  # under autocast the rotation of positions makes them float32
    shared = query.shape[1] // key.shape[1]
    if query.shape[1] & (query.shape[1] - 1):  # kernels share keys among a power of two of heads
        key, value, shared = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1), 1
    flex = _flex(query.device.type)
    found = flex(query, key, value, block_mask=attention_mask, scale=scaling, enable_gqa=shared > 1)
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attention)
