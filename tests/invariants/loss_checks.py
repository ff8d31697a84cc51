"""Checks that any trainer can run on its losses; see docs/invariants.md. Needs torch only.

A loss under test is called as ``loss(logprobs, old_logprobs, advantages, mask, tokens, sequences)``, all [B, T] but the
last two: the sampled tokens and the sequences of the *whole* batch, of which the tensors may be a part. It returns the
part's share of the loss, so that shares add up.
"""

from collections.abc import Callable

import torch

Loss = Callable[..., torch.Tensor]
TOLERANCE = 1e-6


class Data:
    """Random log-probabilities and advantages of the sampled tokens of ``lengths`` sequences, in fp32."""

    def __init__(self, lengths: tuple[int, ...] = (3, 1, 7, 4, 2), seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.lengths = lengths
        count = sum(lengths)
        self.logprobs = -torch.rand(count, generator=generator) * 3
        self.old = self.logprobs + 0.3 * torch.randn(count, generator=generator)
        of_rows = torch.randn(len(lengths), generator=generator)
        self.advantages = of_rows.repeat_interleave(torch.tensor(lengths))

    def layout(self, *, gaps: bool = True, left: int = 0, right: int = 0) -> torch.Tensor:
        """A mask [B, T] that has a row's tokens with gaps of its own between them, or none."""
        width = left + right + max(self.lengths) * (3 if gaps else 1)
        mask = torch.zeros(len(self.lengths), width, dtype=torch.bool)
        for row, length in enumerate(self.lengths):
            places = torch.arange(length) * (1 + gaps * (row % 3))
            mask[row, left + places] = True
        return mask

    def run(self, loss: Loss, mask: torch.Tensor, parts: list[torch.Tensor] | None = None):
        """The loss, and its gradient by the sampled tokens' log-probabilities: what must not depend on the layout."""
        leaf = self.logprobs.clone().requires_grad_()
        given = leaf, self.old, self.advantages
        logprobs, old, advantages = (torch.zeros(mask.shape).masked_scatter(mask, x) for x in given)
        advantages = advantages.masked_fill(~mask, 777.0)
        rows = [torch.arange(len(mask))] if parts is None else parts
        counts = sum(self.lengths), len(self.lengths)
        total = sum(loss(logprobs[r], old[r], advantages[r], mask[r], *counts) for r in rows)
        (gradient,) = torch.autograd.grad(total, leaf)
        return total.detach(), gradient


def check_layout_changes_nothing(loss: Loss, data: Data) -> None:
    """Invariant 3: left-padded, right-padded, with observations between tokens, or packed: one loss, one gradient."""
    expected = data.run(loss, data.layout(gaps=False))
    for layout in ({}, {"left": 5}, {"right": 5}, {"left": 2, "right": 1, "gaps": False}):
        got = data.run(loss, data.layout(**layout))
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE, msg=f"the layout {layout} moved the loss")


def check_micro_batches_change_nothing(loss: Loss, data: Data) -> None:
    """Invariant 3: any split into micro-batches, in any order, gives one loss and one gradient."""
    mask = data.layout()
    expected = data.run(loss, mask)
    order = torch.randperm(len(mask), generator=torch.Generator().manual_seed(1))
    for size in range(1, len(mask) + 1):
        got = data.run(loss, mask, list(order.split(size)))
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE, msg=f"micro-batches of {size} moved the loss")


def check_empty_rows_change_nothing(loss: Loss) -> None:
    """Invariant 5: a sequence in which nothing was sampled adds nothing, and alone it is worth exactly zero."""
    full = Data((3, 2))
    padded = torch.cat([full.layout(gaps=False), torch.zeros(2, 3, dtype=torch.bool)])
    for a, b in zip(full.run(loss, padded), full.run(loss, full.layout(gaps=False)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE, msg="empty rows moved the loss")
    nothing = torch.zeros(2, 3)
    alone = loss(nothing, nothing, nothing, nothing.bool(), 1, 2)
    assert alone == 0, "a batch without sampled tokens has a loss"


def token_weights(mask: torch.Tensor) -> torch.Tensor:
    """How much a token weighs in a mean over the tokens of the batch."""
    return mask / mask.sum()


def sequence_weights(mask: torch.Tensor) -> torch.Tensor:
    """How much a token weighs in a mean over sequences of means over tokens."""
    return mask / mask.sum(1, keepdim=True).clamp(min=1) / len(mask)


def check_on_policy_is_reinforce(loss: Loss, data: Data, weights: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Invariant 4: at ratio 1 the gradient by a token's log-probability is −A, times the token's weight in the mean."""
    mask = data.layout()
    data.old = data.logprobs
    _, gradient = data.run(loss, mask)
    expected = -data.advantages * weights(mask)[mask]
    torch.testing.assert_close(gradient, expected, rtol=0, atol=TOLERANCE, msg="on-policy it is not REINFORCE")
