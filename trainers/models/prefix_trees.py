"""Sequences with common prefixes, run through a model as prefix trees.

A causal model gives a token the same hidden state wherever the same tokens precede it. So a shared prefix is computed
once, and each token of its continuations attends to its own ancestors only. Gradients are those of single sequences.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from trainers.trajectory import Batch

# The cost of a token apart from attention, in units of one query-key pair: about 6 times the width of a transformer with
# the usual layers, here 170. In a wider model more sequences would be worth grouping.
TOKEN_COST = 1000
# If masked pairs cost nothing, sharing any prefix saves time.
TOKEN_COST_WITHOUT_MASK = 10**9


@dataclass(slots=True, kw_only=True)
class PrefixTrees:
    """The rows of a batch as prefix trees: each tree is one row here, and each of its tokens is a node."""

    ids: torch.Tensor  # int64 [R, L], the tokens of each tree in depth-first order; 0 after the last
    positions: torch.Tensor  # int64 [R, L], how many ancestors a node has
    subtree_ends: torch.Tensor  # int64 [R, L], the column after a node's last descendant
    node_index: torch.Tensor  # int64 [B, T], the node of each of the batch's tokens, in the flattened trees; 0: padding

    @property
    def attention_mask(self) -> torch.Tensor:
        """The nodes that each node attends to, its ancestors and itself: bool [R, 1, L, L]."""
        column = torch.arange(self.ids.shape[1], device=self.ids.device)
        return ((column <= column[:, None]) & (column[:, None] < self.subtree_ends[:, None]))[:, None]


def group_by_prefix(
    ids: list[list[int]], max_tokens: float = float("inf"), token_cost: int = TOKEN_COST
) -> Iterator[tuple[list[tuple[int, int]], int]]:
    """Group sequences into trees if they cost less together than apart.

    Args:
        max_tokens: limit for the tokens of a tree; a single sequence may exceed it.
        token_cost: the cost of a token apart from attention, in units of one query-key pair.

    Yields:
        A tree's sequences, each with the length of the prefix that it shares with the one before; and the tree's token count.
    """

    def cost(num_tokens: int) -> int:
        return num_tokens * (token_cost + num_tokens)

    order = sorted(range(len(ids)), key=ids.__getitem__)
    tree, size = [(order[0], 0)], len(ids[order[0]])
    for previous, row in itertools.pairwise(order):
        shared, alone = common_prefix_length(ids[previous], ids[row]), len(ids[row])
        together = size + alone - shared
        if shared and together <= max_tokens and cost(together) < cost(size) + cost(alone):
            tree.append((row, shared))
            size = together
        else:
            yield tree, size
            tree, size = [(row, 0)], alone
    yield tree, size


def common_prefix_length(a: list[int], b: list[int]) -> int:
    """Count the ids that two rows share at the start."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def strip_padding(batch: Batch) -> list[list[int]]:
    """The ids of each row of a batch, without padding."""
    return [row[:n] for row, n in zip(batch.ids.tolist(), batch.lengths.tolist(), strict=True)]


def build_trees(batch: Batch, token_cost: int = TOKEN_COST) -> PrefixTrees:
    """Build the prefix trees of a batch: one tree per row if no two rows are worth grouping."""
    ids = strip_padding(batch)
    groups = list(group_by_prefix(ids, token_cost=token_cost))
    width = max(size for _, size in groups)
    node_index = torch.zeros(batch.ids.shape, dtype=torch.long)
    tokens, positions = torch.zeros(2, len(groups), width, dtype=torch.long)
    subtree_ends = torch.arange(1, width + 1).repeat(len(groups), 1)  # padding must attend to something: itself
    for number, (tree, total) in enumerate(groups):
        path, size = torch.zeros(0, dtype=torch.long), 0
        for row, shared in tree:
            length = len(ids[row])
            subtree_ends[number, path[shared:]] = size
            new = torch.arange(size, size + length - shared)
            path, size = torch.cat([path[:shared], new]), size + len(new)
            tokens[number, new] = torch.tensor(ids[row][shared:], dtype=torch.long)
            positions[number, new] = torch.arange(shared, length)
            node_index[row, :length] = path + number * width
        subtree_ends[number, path] = total
    device = batch.ids.device
    return PrefixTrees(
        ids=tokens.to(device),
        positions=positions.to(device),
        subtree_ends=subtree_ends.to(device),
        node_index=node_index.to(device),
    )
