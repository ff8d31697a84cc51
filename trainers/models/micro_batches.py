"""A batch in parts that fit into memory, each for one pass through a model."""

from collections.abc import Callable
from dataclasses import replace

import torch

from trainers import distributed
from trainers.models.prefix_trees import group_by_prefix, strip_padding
from trainers.trajectory import Batch


def micro_batches(batch: Batch, max_tokens: int) -> list[Batch]:
    """Rows that begin alike side by side (`prefix_trees`), the longest first, cut so that no part, padding included, has
    more than ``max_tokens`` tokens (one row alone may exceed it). Every row is in exactly one part."""
    trees = sorted(group_by_prefix(strip_padding(batch), max_tokens), key=lambda tree: -tree[1])
    parts: list[list[int]] = []
    widest = count = 0
    for tree, size in trees:
        if not parts or (count + 1) * widest > max_tokens:
            parts.append([])
            widest, count = size, 0
        parts[-1] += [row for row, _ in tree]
        count += 1
    return [batch[torch.tensor(rows, device=batch.ids.device)] for rows in parts]


def own_parts(batch: Batch, max_tokens: int) -> list[tuple[Batch, bool]]:
    """The micro-batches of this process, of a batch that all processes hold; and whether each counts.

    A sharded model is passed through by all processes at once. So where another process has more parts, this one passes
    rows that count for nothing. Each process gets about as many tokens, and neighbours: attempts at a question begin alike.
    """
    rank, ranks = distributed.rank(), distributed.ranks()
    if ranks == 1:
        return [(part, True) for part in micro_batches(batch, max_tokens)]
    order = batch.trajectory.argsort(stable=True)
    tokens = batch.lengths[order]
    middle = 2 * tokens.cumsum(0) - tokens
    rows = order[middle * ranks // (2 * tokens.sum()) == rank]
    parts = [(part, True) for part in micro_batches(batch[rows], max_tokens)] if len(rows) else []
    most = max(distributed.joined([len(parts)]))
    idle = batch[batch.lengths.argmin()[None]]
    return parts + [(idle, False)] * (most - len(parts))


@torch.no_grad()
def by_parts(function: Callable[[Batch], torch.Tensor], batch: Batch, max_tokens: int) -> torch.Tensor:
    """What ``function`` gives for each row, float [B, T], without a gradient and in parts of at most ``max_tokens``.
    All processes must call it with the same batch."""
    rows = torch.arange(len(batch.ids), device=batch.ids.device)
    numbered = replace(batch, extra={"row": rows[:, None].expand_as(batch.ids)})
    found = torch.zeros_like(batch.logprobs)
    for part, counts in own_parts(numbered, max_tokens):
        values = function(part)
        if counts:
            found[part.extra["row"][:, 0], : part.ids.shape[1]] = values
    return distributed.added_up(found)
