"""Splitting a batch into parts that fit into memory, one forward pass each, and computing values part by part."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from trainers.models.policy import Policy
from trainers.models.prefix_trees import TOKEN_COST, group_by_prefix, strip_padding
from trainers.runtime import distributed
from trainers.trajectory import Batch


def split_rows(batch: Batch, max_tokens: int, token_cost: int | None = TOKEN_COST) -> list[torch.Tensor]:
    """Split the rows of a batch into parts of at most ``max_tokens`` tokens, padding included; row numbers, int64 [b] each.

    Rows that share a prefix are neighbours; the longest groups come first. A single row may exceed the limit. ``token_cost``:
    see `group_by_prefix`; None for a model that runs each row by itself.
    """
    ids = strip_padding(batch)
    alone = (([(row, 0)], len(own)) for row, own in enumerate(ids))
    grouped = alone if token_cost is None else group_by_prefix(ids, max_tokens, token_cost)
    trees = sorted(grouped, key=lambda tree: -tree[1])
    parts: list[list[int]] = []
    widest = count = 0
    for tree, size in trees:
        if not parts or (count + 1) * widest > max_tokens:
            parts.append([])
            widest, count = size, 0
        parts[-1] += [row for row, _ in tree]
        count += 1
    return [torch.tensor(rows, device=batch.ids.device) for rows in parts]


def split_rows_of_rank(
    batch: Batch, max_tokens: int, token_cost: int | None = TOKEN_COST
) -> list[tuple[torch.Tensor, bool]]:
    """Return this process's parts of a batch that all processes hold, and whether each counts.

    All processes pass through a sharded model at once, so those with fewer parts add rows that do not count. Each process gets
    about the same number of tokens, in neighbouring rows, which share prefixes.
    """
    rank, world_size = distributed.rank(), distributed.world_size()
    if world_size == 1:
        return [(rows, True) for rows in split_rows(batch, max_tokens, token_cost)]
    order = batch.trajectory.argsort(stable=True)
    tokens = batch.lengths[order]
    middle = 2 * tokens.cumsum(0) - tokens
    own = order[middle * world_size // (2 * tokens.sum()) == rank]
    parts = [(own[rows], True) for rows in split_rows(batch[own], max_tokens, token_cost)] if len(own) else []
    most = max(distributed.all_gather([len(parts)]))
    return parts + [(batch.lengths.argmin()[None], False)] * (most - len(parts))


def micro_batches(
    batch: Batch, rows: torch.Tensor, max_tokens: int, token_cost: int | None = TOKEN_COST
) -> Iterator[tuple[Batch, float]]:
    """Split rows of a batch into parts for gradient accumulation.

    Yields:
        Each part and the factor of its loss. FSDP averages gradients but the loss is a sum, so the factor is the number of
        processes. It is 0 for a part that only keeps processes in step.
    """
    if not len(rows):
        return
    batch = batch[rows]
    for part, counts in split_rows_of_rank(batch, max_tokens, token_cost):
        yield batch[part], float(distributed.world_size() * counts)


@torch.no_grad()
def map_parts(
    function: Callable[[Batch], torch.Tensor], batch: Batch, max_tokens: int, token_cost: int | None = TOKEN_COST
) -> torch.Tensor:
    """Compute ``function`` of each row, float [B, T], without a gradient; all processes must pass the same batch."""
    found = torch.zeros_like(batch.old_logprobs)
    for rows, counts in split_rows_of_rank(batch, max_tokens, token_cost):
        part = batch[rows]
        values = function(part)
        if counts:
            found[rows, : part.ids.shape[1]] = values
    return distributed.all_reduce_sum(found)


def compute_logprobs(policy: Policy, batch: Batch, temperature: float, max_tokens: int) -> torch.Tensor:
    """The policy's log-probabilities of the action tokens, float32 [B, T], without a gradient."""
    return map_parts(lambda part: policy.logprobs(part, temperature)[0], batch, max_tokens, policy.token_cost)


def remove_mask(batch: Batch) -> Batch:
    """Return the batch without an action mask, for the paper's ablations (Agent-R1, table 3): from the first sampled token on,
    observations count as sampled by the turn before."""
    columns = torch.arange(batch.mask.shape[1], device=batch.mask.device)
    first = torch.where(batch.mask, columns, batch.mask.shape[1]).min(1).values
    mask = (columns >= first[:, None]) & (columns < batch.lengths[:, None])
    turns = torch.where(mask, batch.turns.cummax(1).values, -1)
    return replace(batch, mask=mask, turns=turns)
