"""Prefix trees on a CPU: every node goes through the layers once, and attention runs row by row.

In attention, those tokens of a row that no earlier row has are its queries; all its tokens are keys (docs/speed.md).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from trainers.models.prefix_trees import PrefixTrees

ATTENTION_NAME = "tree_rows"  # its name in a model's configuration
MIN_WIDTH = 256  # of a model: in a narrower one attention is as much work as the rest, and rows are short
CHUNK = 128  # queries that attend at once, to the keys up to their own


@dataclass(slots=True, kw_only=True)
class Rows:
    """The nodes of those rows of a batch that have tokens that no earlier row has."""

    queries: torch.Tensor  # int64 [N], row by row the nodes that no earlier row has: each node once
    keys: torch.Tensor  # int64 [K], row by row all its nodes; the last ones are its queries
    sizes: list[tuple[int, int]]  # how many queries and keys each row has


def pack_rows(trees: PrefixTrees, lengths: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
    """Put the nodes of all trees side by side without padding; ``lengths`` are those of the batch's rows, int64 [B].

    Returns the inputs of a model whose attention is `ATTENTION_NAME`, and the node of each token, int64 [B, T], 0 for padding.
    """
    nodes, node_index = trees.node_index.unique(return_inverse=True)  # padding has the first node's index
    ids, positions = trees.ids.flatten()[nodes][None], trees.positions.flatten()[nodes][None]
    seen = torch.zeros(len(nodes), dtype=torch.bool)
    queries, keys, sizes = [], [], []
    for index, length in zip(node_index, lengths.tolist(), strict=True):
        path = index[:length]
        own = path[~seen[path]]  # the seen nodes are a prefix
        seen[path] = True
        if len(own):
            queries.append(own)
            keys.append(path)
            sizes.append((len(own), length))
    rows = Rows(queries=torch.cat(queries), keys=torch.cat(keys), sizes=sizes)
    # Without a mask, the library makes one of all pairs of nodes.
    no_mask = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    return {"input_ids": ids, "position_ids": positions, "attention_mask": no_mask, "tree_rows": rows}, node_index


def attend_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: Rows, scale: float | None) -> torch.Tensor:
    """Compute causal attention along each row: q [H, N, D], k, v [K, N, D] to [H, N, D]; H / K heads share a key."""
    heads, shared = len(k), len(q) // len(k)
    of_queries, of_keys = zip(*rows.sizes, strict=True)
    queries = q.index_select(1, rows.queries).split(of_queries, 1)
    # In float32, so that the gradients of a key in many rows are summed in float32.
    keys, values = (x.float().index_select(1, rows.keys).to(x.dtype).split(of_keys, 1) for x in (k, v))
    outs = []
    for query, key, value in zip(queries, keys, values, strict=True):
        end = key.shape[1] - query.shape[1]
        for chunk in query.split(CHUNK, 1):
            count, end = chunk.shape[1], end + chunk.shape[1]
            mask = torch.ones(count, end, dtype=torch.bool).tril(end - count).repeat(shared, 1)
            # Heads that share a key are run as further queries of it.
            grouped = chunk.reshape(1, heads, shared * count, -1)
            out = scaled_dot_product_attention(grouped, key[None, :, :end], value[None, :, :end], mask, scale=scale)
            outs.append(out.reshape(chunk.shape))
    return torch.cat(outs, 1).index_select(1, rows.queries.argsort())


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    tree_rows: Rows | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for `transformers`: `attend_rows` on inputs of `pack_rows`, PyTorch's attention on other inputs."""
    if tree_rows is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    # Under autocast the rotary embedding makes them float32.
    q, k, v = (x[0].to(value.dtype) for x in (query, key, value))
    return attend_rows(q, k, v, tree_rows, scaling).transpose(0, 1)[None], None


AttentionInterface.register(ATTENTION_NAME, row_attention)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)  # for callers that pass padding
