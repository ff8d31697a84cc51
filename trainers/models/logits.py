"""From hidden states to log-probabilities, without ever holding all logits of a large vocabulary."""

from typing import Any, cast

import torch
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from trainers.algorithms.losses import entropy

MAX_LOGITS = 2**24  # that are held at once, and again in the backward pass: 64 MiB


def compute_logits(head: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Float32 logits [..., V] of hidden states [..., H], whatever the layers ran in: bfloat16 knows no number between 20
    and 20.125."""
    with torch.autocast(hidden.device.type, enabled=False):
        return head(hidden.float())


def token_logprobs(
    head: torch.nn.Module, hidden: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor, *,
    temperature: float = 1.0, entropy_gradient: bool = False, dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Log-probability of each token, and entropy where it was drawn.

    Where there are more than `MAX_LOGITS`, they are computed in parts. A head that is trained computes them again in the
    backward pass; behind a frozen one nothing of that size is kept (`FrozenHead`).

    Args:
        head: hidden states [n, H] to logits [n, V].
        hidden: [N, H], each of which may have been drawn from several times.
        rows: int64 [M], the hidden state that each token was drawn from.
        targets: int64 [M], the tokens.
        dtype: what the gradient's product with a frozen head runs in. Logits are float32.

    Returns:
        float32 [M] and [N]; the second one has a gradient only with ``entropy_gradient``.
    """
    if _is_frozen(head) and len(hidden) and not entropy_gradient:
        weight = cast(torch.nn.Linear, head).weight
        return FrozenHead.apply(hidden.float(), weight, rows, targets, temperature, dtype)

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
    order, counts = _split(rows, size, len(hidden))
    chosen, uncertainty = [], []
    for number, tokens in enumerate(order.split(counts)):
        inputs = hidden[number * size : (number + 1) * size], rows[tokens] - number * size, targets[tokens]
        of_tokens, of_nodes = checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=False)
        chosen.append(of_tokens)
        uncertainty.append(of_nodes)
    return torch.cat(chosen)[order.argsort()], torch.cat(uncertainty)


def _split(rows: torch.Tensor, size: int, count: int) -> tuple[torch.Tensor, list[int]]:
    """The tokens in the order of the hidden states that they were drawn from, and how many each ``size`` of those have."""
    return rows.argsort(stable=True), torch.bincount(rows // size, minlength=-(-count // size)).tolist()


def _is_frozen(head: torch.nn.Module) -> bool:
    """Whether this is a plain matrix that gets no gradient, all of it on this device."""
    return (
        type(head) is torch.nn.Linear
        and head.bias is None
        and not head.weight.requires_grad
        and type(head.weight.data) is torch.Tensor
    )


class FrozenHead(torch.autograd.Function):
    """`token_logprobs` with logits h Wᵀ / T, where W is not trained.

    The gradient of log p(y) by h is (W_y − Σ_v p_v W_v) / T, whatever the loss is made of. So it is computed beside the
    logits, [M, H] for [N, V] of them, and the backward pass has nothing more to do than to scale it.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor,
        temperature: float, dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        size = max(1, MAX_LOGITS // len(weight))
        order, counts = _split(rows, size, len(hidden))
        learns = ctx.needs_input_grad[0]
        rounded = weight.to(dtype) if learns else weight
        chosen, uncertainty = hidden.new_empty(len(rows)), hidden.new_empty(len(hidden))
        gradients = hidden.new_empty(len(rows), hidden.shape[1]) if learns else None
        for number, tokens in enumerate(order.split(counts)):
            nodes = slice(number * size, (number + 1) * size)
            drawn_from, drawn = rows[tokens] - nodes.start, targets[tokens]
            logp = linear(hidden[nodes].float(), weight.float()).div_(temperature).log_softmax(-1)
            p = logp.exp()
            chosen[tokens] = logp[drawn_from, drawn]
            uncertainty[nodes] = -torch.linalg.vecdot(p, logp)
            if gradients is not None:
                # One token of each node is taken out before p is rounded: of a token that is nearly sure little is left.
                some = drawn.new_zeros(len(p)).index_put_((drawn_from,), drawn)
                p[torch.arange(len(p), device=p.device), some] -= 1
                others = (p.to(dtype) @ rounded).float()[drawn_from]
                gradients[tokens] = (weight[drawn].float() - weight[some[drawn_from]].float() - others) / temperature
        ctx.save_for_backward(*(() if gradients is None else (gradients, rows)))
        ctx.mark_non_differentiable(uncertainty)
        ctx.count = len(hidden)
        return chosen, uncertainty

    @staticmethod
    def backward(ctx: Any, *by_outs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients, rows = ctx.saved_tensors
        by_hidden = gradients.new_zeros(ctx.count, gradients.shape[1])
        return by_hidden.index_add_(0, rows, gradients * by_outs[0][:, None]), None, None, None, None, None
