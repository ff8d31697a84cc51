"""Prefix trees packed into one row for FlexAttention (Dong et al. 2024, arXiv 2412.05496), which skips masked blocks."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from trainers.models.prefix_trees import PrefixTrees

ATTENTION_NAME = "packed_trees"  # its name in a model's configuration
LONG = 2**14  # tokens of a row whose mask of all pairs takes 256 MiB
BLOCK_SIZE = 128  # rows have a multiple of this many tokens; whole blocks are skipped


def pack_trees(trees: PrefixTrees) -> tuple[dict[str, Any], torch.Tensor]:
    """Put all trees into one row without padding between them.

    Returns the inputs of a model whose attention is `ATTENTION_NAME`; and each batch token's place in the row, int64 [B, T],
    0 for padding.
    """
    is_node = torch.zeros_like(trees.ids, dtype=torch.bool).flatten()
    is_node[trees.node_index.flatten()] = True
    is_node[0] = True  # the index of padding, and the first token of the first tree
    packed_index = is_node.cumsum(0) - 1
    count, width = int(is_node.sum()), trees.ids.shape[1]
    size = -(-count // BLOCK_SIZE) * BLOCK_SIZE
    device = is_node.device
    ids, positions = torch.zeros(2, 1, size, dtype=torch.long, device=device)
    subtree_ends = torch.arange(1, size + 1, device=device)  # padding attends to itself
    ids[0, :count] = trees.ids.flatten()[is_node]
    positions[0, :count] = trees.positions.flatten()[is_node]
    first = torch.arange(len(trees.ids), device=device)[:, None] * width
    subtree_ends[:count] = packed_index[(trees.subtree_ends + first - 1).flatten()[is_node]] + 1

    def is_ancestor(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (query < subtree_ends[key])

    mask = _block_mask_function(device.type, size > LONG)(is_ancestor, None, None, size, size, device)
    inputs = {"input_ids": ids, "position_ids": positions, "attention_mask": mask}
    return inputs, packed_index[trees.node_index]


@cache
def _attention_function(device: str) -> Callable[..., Any]:
    if device == "cpu":
        return flex_attention
    return torch.compile(flex_attention, dynamic=True)


@cache
def _block_mask_function(device: str, is_long: bool) -> Callable[..., BlockMask]:
    """Choose `create_block_mask`, compiled if long (most of a minute): uncompiled, it makes a mask of all pairs of tokens."""
    return torch.compile(create_block_mask, dynamic=True) if is_long and device != "cpu" else create_block_mask


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | BlockMask | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for `transformers`: FlexAttention under a mask of `pack_trees`, PyTorch's attention under other masks."""
    if not isinstance(attention_mask, BlockMask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    # Under autocast the rotary embedding makes them float32.
    query, key = query.to(value.dtype), key.to(value.dtype)
    group_size = query.shape[1] // key.shape[1]
    if query.shape[1] & (query.shape[1] - 1):  # kernels share keys among a power of two of heads
        key, value, group_size = key.repeat_interleave(group_size, 1), value.repeat_interleave(group_size, 1), 1
    attend = _attention_function(query.device.type)
    output = attend(query, key, value, block_mask=attention_mask, scale=scaling, enable_gqa=group_size > 1)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION_NAME, packed_attention)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)  # for callers that pass padding
