"""From hidden states to log-probabilities, without ever holding all logits of a large vocabulary."""

import torch
from torch.utils.checkpoint import checkpoint

from trainers.algorithms.losses import entropy

MAX_LOGITS = 2**24  # that are held at once, and again in the backward pass: 64 MiB


def compute_logits(head: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Compute float32 logits [..., V] of hidden states [..., H], whatever the layers ran in."""
    with torch.autocast(hidden.device.type, enabled=False):
        return head(hidden.float())


def token_logprobs(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    rows: torch.Tensor,
    targets: torch.Tensor,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the log-probability of each token and the entropy of each distribution, `MAX_LOGITS` logits at a time.

    Args:
        head: hidden states [n, H] to logits [n, V].
        hidden: [N, H], each of which may have been drawn from several times.
        rows: int64 [M], the hidden state that each token was drawn from.
        targets: int64 [M], the tokens.

    Returns:
        float32 [M] and [N]; the second one has a gradient only with ``entropy_gradient``.
    """

    def part(hidden: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = (compute_logits(head, hidden) / temperature).log_softmax(-1)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            uncertainty = entropy(logprobs)
        return logprobs[rows, targets], uncertainty

    if not len(hidden):
        return part(hidden, rows, targets)
    size = max(1, MAX_LOGITS // compute_logits(head, hidden[:1].detach()).shape[-1])
    if len(hidden) <= size:
        return part(hidden, rows, targets)
    # The tokens in the order of the hidden states that they were drawn from, and how many each part has.
    order = rows.argsort(stable=True)
    counts = torch.bincount(rows // size, minlength=-(-len(hidden) // size)).tolist()
    chosen, uncertainty = [], []
    for number, tokens in enumerate(order.split(counts)):
        inputs = hidden[number * size : (number + 1) * size], rows[tokens] - number * size, targets[tokens]
        of_tokens, of_nodes = checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=False)
        chosen.append(of_tokens)
        uncertainty.append(of_nodes)
    return torch.cat(chosen)[order.argsort()], torch.cat(uncertainty)
