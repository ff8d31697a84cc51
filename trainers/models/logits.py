"""From hidden states to log-probabilities, without ever holding all logits of a large vocabulary."""

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

from trainers.algorithms.losses import entropy

MAX_LOGITS = 2**24  # that are held at once, and again in the backward pass: 64 MiB


def token_logprobs(
    head: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor,
    entropy_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Log-probability of each token, and entropy where it was drawn.

    Where there are more than `MAX_LOGITS`, they are computed in parts, and again in the backward pass.

    Args:
        head: hidden states [n, H] to logits [n, V].
        hidden: [N, H], each of which may have been drawn from several times.
        rows: int64 [M], the hidden state that each token was drawn from.
        targets: int64 [M], the tokens.

    Returns:
        float32 [M] and [N]; the second one has a gradient only with ``entropy_gradient``.
    """

    def part(hidden: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = head(hidden)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            uncertainty = entropy(logits)
        return logits[rows, targets] - logits.logsumexp(-1)[rows], uncertainty

    if not len(hidden):
        return part(hidden, rows, targets)
    size = max(1, MAX_LOGITS // head(hidden[:1].detach()).shape[-1])
    if len(hidden) <= size:
        return part(hidden, rows, targets)
    order = rows.argsort(stable=True)
    counts = torch.bincount(rows // size, minlength=-(-len(hidden) // size)).tolist()
    chosen, uncertainty = [], []
    for number, tokens in enumerate(order.split(counts)):
        inputs = hidden[number * size : (number + 1) * size], rows[tokens] - number * size, targets[tokens]
        of_tokens, of_nodes = checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=False)
        chosen.append(of_tokens)
        uncertainty.append(of_nodes)
    return torch.cat(chosen)[order.argsort()], torch.cat(uncertainty)
