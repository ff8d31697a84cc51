"""Sequences that begin alike, run through a model as one tree.

Attempts at one question share their prompt, and often whole turns with what came back. A causal model gives a token the
same hidden state wherever the same tokens stand before it. So those tokens are fed once, with every branch behind them,
each token seeing its own ancestors only; hidden states and gradients are those of the single sequences.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from trainers.trajectory import Batch

# What a token costs apart from attention, in the cost of one pair of tokens that attention compares: about 6 times the
# width of a transformer with the usual layers, here 170. In a wider model more sequences would be worth joining.
TOKEN_COST = 1000


@dataclass(slots=True, kw_only=True)
class Trees:
    """The rows of a batch as trees, each of which has a row here.

    Attributes:
        ids: int64 [R, L], the tokens of each tree, every one followed by its descendants; 0 behind the last.
        positions: int64 [R, L], how many ancestors a token has.
        ends: int64 [R, L], where in its row a token's descendants end.
        where: int64 [B, T], the place of each of the batch's tokens in the flattened trees; 0 for padding.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    ends: torch.Tensor
    where: torch.Tensor

    @property
    def sees(self) -> torch.Tensor:
        """Bool [R, 1, L, L], which tokens each one attends to: its ancestors and itself."""
        place = torch.arange(self.ids.shape[1], device=self.ids.device)
        return ((place <= place[:, None]) & (place[:, None] < self.ends[:, None]))[:, None]


def joined(ids: list[list[int]], max_tokens: float = float("inf")) -> Iterator[tuple[list[tuple[int, int]], int]]:
    """Which sequences go into one tree: those that cost less together than apart.

    Args:
        max_tokens: no tree has more, unless it is a single sequence.

    Yields:
        For each tree its sequences, each with how many of its first tokens it shares with the one before it; and the
        number of tokens of the tree.
    """
    order = sorted(range(len(ids)), key=ids.__getitem__)
    tree, size = [(order[0], 0)], len(ids[order[0]])
    for last, row in itertools.pairwise(order):
        shared, alone = _shared(ids[last], ids[row]), len(ids[row])
        grown = size + alone - shared
        if shared and grown <= max_tokens and _cost(grown) < _cost(size) + _cost(alone):
            tree.append((row, shared))
            size = grown
        else:
            yield tree, size
            tree, size = [(row, 0)], alone
    yield tree, size


def _shared(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _cost(tokens: int) -> int:
    return tokens * (TOKEN_COST + tokens)


def rows_of(batch: Batch) -> list[list[int]]:
    """The ids of each row, without padding."""
    return [row[:n] for row, n in zip(batch.ids.tolist(), batch.lengths.tolist(), strict=True)]


def trees_of(batch: Batch, alone: bool = False) -> Trees | None:
    """The rows of a batch as trees, or None where no two of them are worth joining, unless ``alone``."""
    ids = rows_of(batch)
    groups = list(joined(ids))
    if len(groups) == len(ids) and not alone:
        return None
    width = max(size for _, size in groups)
    where = torch.zeros(batch.ids.shape, dtype=torch.long)
    tokens, positions = torch.zeros(2, len(groups), width, dtype=torch.long)
    ends = torch.arange(1, width + 1).repeat(len(groups), 1)  # padding too must see something: itself
    for number, (tree, total) in enumerate(groups):
        path, size = torch.zeros(0, dtype=torch.long), 0
        for row, shared in tree:
            length = len(ids[row])
            ends[number, path[shared:]] = size
            new = torch.arange(size, size + length - shared)
            path, size = torch.cat([path[:shared], new]), size + len(new)
            tokens[number, new] = torch.tensor(ids[row][shared:], dtype=torch.long)
            positions[number, new] = torch.arange(shared, length)
            where[row, :length] = path + number * width
        ends[number, path] = total
    device = batch.ids.device
    return Trees(ids=tokens.to(device), positions=positions.to(device), ends=ends.to(device), where=where.to(device))
