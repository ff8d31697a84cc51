"""Prefix trees on a CPU: every node goes through the layers once, and attention runs over blocks of each row.

In a model that is wide enough nearly all of the work is in the matrix products, which see the nodes of the trees side by
side, without padding. For attention the tokens of a row that no earlier row has are cut into blocks of queries, whose keys
are all that precede them in the row. So nothing masked is computed but half of a diagonal block, and nothing shared twice.

Blocks with about as many queries and keys are multiplied at once, padded on the left, so that the diagonal blocks lie in the last
columns. All is made of matrix products in the precision of the layers, which add up in float32 but round what they return.
So that rounding costs nothing, what is subtracted from the scores is subtracted within the product, by columns behind the
factors: first nothing, to find the highest score of each query, then that score, in the backward pass the logarithm of the
normaliser. One more column keeps the padding out.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from trainers.models.prefix_trees import PrefixTrees

ATTENTION_NAME = "tree_rows"  # as models know it
MIN_WIDTH = 256  # of a model: in a narrower one attention is as much work as the rest, and rows are short
TOKEN_COST = 10**9  # for `group_by_prefix`: whatever is shared is saved
BLOCK_SIZE = 128  # queries of a block, about
MAX_PAIRS = 2**16  # of queries and keys that are multiplied at once, for each head
MAX_PADDING = 1.3  # of these, with padding, over those without
_PADDING_SCORE = -1e4  # of padding: its exponential is 0, and it is no infinity that could become NaN


@dataclass(slots=True, kw_only=True)
class Blocks:
    """Blocks of queries that are multiplied by their keys at once. Both are padded on the left, by the number of all nodes.

    Attributes:
        queries: int64 [B, S], nodes.
        keys: int64 [B, L], nodes; the last S are those of the queries.
    """

    queries: torch.Tensor
    keys: torch.Tensor


def pack_rows(trees: PrefixTrees, lengths: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
    """Put the nodes of all trees side by side, without padding.

    Args:
        lengths: int64 [B], of the rows.

    Returns:
        The inputs of a model whose attention is `ATTENTION_NAME`; and the node of each of the batch's tokens, int64 [B, T],
        0 for padding.
    """
    nodes, node_index = trees.node_index.unique(return_inverse=True)  # padding stands for the first node, which is real
    paths = [index[:length] for index, length in zip(node_index, lengths.tolist(), strict=True)]
    ids, positions = trees.ids.flatten()[nodes][None], trees.positions.flatten()[nodes][None]
    # Without one, the library makes a mask of all pairs of nodes.
    no_mask = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    blocks = list(make_blocks(paths, len(nodes)))
    return {"input_ids": ids, "position_ids": positions, "attention_mask": no_mask, "tree_rows": blocks}, node_index


def make_blocks(paths: list[torch.Tensor], num_nodes: int) -> Iterator[Blocks]:
    """Cut rows, each the nodes of its tokens, into blocks; those with about as many keys together."""
    seen = torch.zeros(num_nodes, dtype=torch.bool)
    blocks: list[tuple[torch.Tensor, int]] = []  # the nodes up to a block's end, and where it begins
    for path in paths:
        start, length = int(seen[path].sum()), len(path)  # what was seen is a prefix
        seen[path] = True
        if start == length:
            continue
        count = max(1, round((length - start) / BLOCK_SIZE))
        ends = [start + (length - start) * i // count for i in range(count + 1)]
        blocks += [(path[:end], begin) for begin, end in itertools.pairwise(ends)]
    for chosen in _group_blocks(blocks):
        num_queries = max(len(path) - begin for path, begin in chosen)
        num_keys = max(len(path) for path, _ in chosen)
        yield Blocks(
            queries=_pad_left([path[begin:] for path, begin in chosen], num_queries, num_nodes),
            keys=_pad_left([path for path, _ in chosen], num_keys, num_nodes),
        )


def _group_blocks(blocks: list[tuple[torch.Tensor, int]]) -> Iterator[list[tuple[torch.Tensor, int]]]:
    """Blocks to be multiplied at once: those with about as many queries and keys, as both are padded to the most."""

    def sizes(block: tuple[torch.Tensor, int]) -> tuple[int, int]:
        path, begin = block
        return len(path) - begin, len(path)

    chosen: list[tuple[torch.Tensor, int]] = []
    for block in sorted(blocks, key=lambda block: (-(sizes(block)[0] // 16), -sizes(block)[1])):
        queries, keys = zip(*map(sizes, [*chosen, block]), strict=True)
        pairs = len(queries) * max(queries) * max(keys)
        needed = sum(q * k for q, k in zip(queries, keys, strict=True))
        if chosen and (pairs > MAX_PAIRS or pairs > MAX_PADDING * needed):
            yield chosen
            chosen = []
        chosen.append(block)
    if chosen:
        yield chosen


def _pad_left(rows: list[torch.Tensor], width: int, value: int) -> torch.Tensor:
    return torch.stack([pad(row, (width - len(row), 0), value=value) for row in rows])


class RowAttention(torch.autograd.Function):
    """Causal attention along each row, from and to nodes: q [N, K, G, D], k and v [N, K, D] to [N, K, G, D], where G heads
    share each of K keys and values."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: list[Blocks], scale: float
    ) -> torch.Tensor:
        size = q.shape[-1]
        queries, keys, values = _query_factors(q * scale), _key_factors(k), _value_factors(v)
        outs, logsumexp = (
            torch.empty_like(queries[..., :size]),
            queries.new_empty(queries.shape[:-1], dtype=torch.float32),
        )
        for block in blocks:
            query, key, value = queries[:, block.queries], keys[:, block.keys], values[:, block.keys]
            highest = _scores(query, key).amax(-1, keepdim=True)
            query[..., size : size + 1] = -highest
            total = _multiply(_scores(query, key).exp_(), value).float()
            normaliser = total[..., size]  # where the values' column is 1
            outs[:, block.queries] = (total[..., :size] / normaliser[..., None]).to(q.dtype)
            logsumexp[:, block.queries] = normaliser.log() + highest[..., 0].float()
        out, logsumexp = (x[:, :-1].movedim(0, 1).contiguous() for x in (outs, logsumexp))
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.blocks, ctx.scale = blocks, scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, logsumexp = ctx.saved_tensors
        size, by_out = q.shape[-1], gradients[0]
        # The gradient of a probability is g·v − g·out.
        along = (by_out.float() * out.float()).sum(-1)
        queries, keys = _query_factors(q * ctx.scale, logsumexp), _key_factors(k)
        by_outs, values = _query_factors(by_out, along), _value_factors(v)
        by_q = torch.empty_like(queries)
        by_k, by_v = torch.zeros_like(keys, dtype=torch.float32), torch.zeros_like(values, dtype=torch.float32)
        for block in ctx.blocks:
            query, key, value = queries[:, block.queries], keys[:, block.keys], values[:, block.keys]
            by, nodes = by_outs[:, block.queries], block.keys.flatten()
            p = _scores(query, key).exp_()
            by_scores = _scores(by, value, causal=False).mul_(p)
            by_q[:, block.queries] = _multiply(by_scores, key)
            by_k.index_add_(1, nodes, _multiply_transposed(by_scores, query).float().flatten(1, 2))
            by_v.index_add_(1, nodes, _multiply_transposed(p, by).float().flatten(1, 2))
        return (
            by_q[:, :-1, :, :size].movedim(0, 1) * ctx.scale,
            *(x[:, :-1, :size].movedim(0, 1).to(k.dtype) for x in (by_k, by_v)), None, None,
        )  # fmt: skip


def _query_factors(x: torch.Tensor, minus: torch.Tensor | None = None) -> torch.Tensor:
    """[N, K, G, D] as factors [K, N + 1, G, D + 4], whose products with keys or values have ``minus`` [N, K, G] subtracted."""
    nodes, heads, shared, size = x.shape
    found = x.new_zeros(heads, nodes + 1, shared, size + 4)
    found[:, :-1, :, :size] = x.movedim(0, 1)
    if minus is not None:
        found[:, :-1, :, size:-1] = _split(-minus, x.dtype).movedim(0, 1)
    found[..., -1] = 1
    return found


def _key_factors(x: torch.Tensor) -> torch.Tensor:
    """[N, K, D] as factors [K, N + 1, D + 4], the last of which is padding."""
    found = _value_factors(x)
    found[:, -1, -1] = _PADDING_SCORE
    return found


def _value_factors(x: torch.Tensor) -> torch.Tensor:
    nodes, heads, size = x.shape
    found = x.new_zeros(heads, nodes + 1, size + 4)
    found[:, :-1, :size] = x.movedim(0, 1)
    found[..., size:-1] = 1
    return found


def _split(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 [...] as three numbers in ``dtype`` that add up to it, [..., 3]."""
    parts = []
    for _ in range(3):
        parts.append(x.to(dtype))
        x = x - parts[-1]
    return torch.stack(parts, -1)


def _scores(query: torch.Tensor, key: torch.Tensor, causal: bool = True) -> torch.Tensor:
    """[K, B, S, G, D] by [K, B, L, D] to [K, B, S, G, L]; −inf for what lies ahead."""
    scores = (query.flatten(2, 3) @ key.transpose(2, 3)).unflatten(2, query.shape[2:4])
    if causal:
        count = query.shape[2]
        ahead = torch.full((count, count), -torch.inf, dtype=scores.dtype).triu_(1)
        scores[..., -count:] += ahead[:, None]
    return scores


def _multiply(scores: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """[K, B, S, G, L] by [K, B, L, D] to [K, B, S, G, D]."""
    return (scores.flatten(2, 3) @ values).unflatten(2, scores.shape[2:4])


def _multiply_transposed(scores: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """[K, B, S, G, L] by [K, B, S, G, D] to [K, B, L, D]."""
    return scores.flatten(2, 3).transpose(2, 3) @ queries.flatten(2, 3)


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    tree_rows: list[Blocks] | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """`RowAttention` where the inputs are those of `pack_rows`; PyTorch's usual attention elsewhere. Its arguments and results
    are those of an attention function of `transformers`."""
    if tree_rows is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    # Under autocast the rotary embedding makes them float32.
    q, k, v = (x[0].transpose(0, 1).to(value.dtype).contiguous() for x in (query, key, value))
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    out = RowAttention.apply(q.unflatten(1, (k.shape[1], -1)), k, v, tree_rows, scale)
    return out.flatten(1, 2)[None], None


AttentionInterface.register(ATTENTION_NAME, row_attention)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)  # for whoever calls the model with padding
