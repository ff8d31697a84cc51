"""Log-probabilities from hidden states, without holding all logits of a large vocabulary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from trainers.algorithms.losses import entropy
from trainers.models.architecture import find_backbone
from trainers.models.products import linear
from trainers.runtime.distributed import memory_share
from trainers.runtime.errors import UserError

# Logits of one part; the backward pass holds four to seven times as many. A GPU takes more: each part reads the head's weights
# and adds to their gradients, which at 2**24 takes a tenth of a 3 B model's update.
MAX_LOGITS, MAX_LOGITS_ON_GPU = 2**24, 2**26
ROWS_IN_CACHE = 16  # whose entropies a CPU computes at once, four times as fast as those of a part
KEPT_FRACTION = 1 / 32  # of a CPU's memory: if all log-probabilities fit into it, they are kept and not recomputed


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterHead:
    """The change of a head's output x: cap · tanh(scale · x / cap), or scale · x without a cap."""

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Change a head's output into the logits [..., V] that the model samples from."""
        if self.scale != 1:
            logits = logits * self.scale
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


_SMALL, _LARGE = 2.0**-10, 1e6  # outputs of a head that reveal its scale and its cap


@torch.no_grad()
def find_after_head(model: PreTrainedModel, ids: torch.Tensor) -> AfterHead:
    """Find what a model does to the output of its head, by replacing that output with known numbers.

    Args:
        ids: int64 [1, T], any tokens.

    Raises:
        ValueError: there is no head, it reads something else than the last hidden states, or its output is changed otherwise.
    """
    kind, head = type(model).__name__, model.get_output_embeddings()
    inputs: list[torch.Tensor] = []
    values: list[torch.Tensor] = []  # [3, T, V]

    def replace_output(module: torch.nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        steps = torch.linspace(-200, 200, output.shape[-1], device=output.device).expand(output.shape[1:])
        inputs.append(args[0])
        values.append(torch.stack([torch.full_like(steps, _SMALL), torch.full_like(steps, _LARGE), steps]))
        return values[-1].clone()  # some models mask logits in place

    if head is None:
        raise UserError(f"{kind} has no head between its last hidden states and its logits: take another model")
    hook = head.register_forward_hook(replace_output)
    try:
        found = model(ids.expand(3, -1), use_cache=False).logits.float()
    finally:
        hook.remove()
    # Three rows again: for one row other kernels run, whose results in TF32 differ by over a percent in a deep model.
    hidden = find_backbone(model)(ids.expand(3, -1), use_cache=False)[0].float()
    same_shape = len(inputs) == 1 and inputs[0].shape == hidden.shape
    if not same_shape or (inputs[0].float() - hidden).abs().max() > 1e-2 * hidden.abs().max():
        raise UserError(f"the head of {kind} reads something else than its last hidden states: take another model")
    scale, most = float(found[0, 0, 0]) / _SMALL, float(found[1, 0, 0])
    after = AfterHead(scale=1.0 if abs(scale - 1) < 1e-5 else scale, cap=most if most < 0.9 * scale * _LARGE else None)
    if found.shape != values[0].shape or not torch.allclose(after(values[0]), found, rtol=1e-3, atol=1e-3):
        raise UserError(f"{kind} neither scales nor caps its logits, but changes them otherwise: take another model")
    return after


def compute_logits(head: torch.nn.Module, hidden: torch.Tensor, copied: Sequence[torch.Tensor] = ()) -> torch.Tensor:
    """Compute float32 logits [..., V] of hidden states [..., H], whatever dtype the layers ran in.

    ``copied``: the head's weight and bias, for `products.linear`, to use instead of its own.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        if copied:
            return linear(hidden.float(), *copied)
        if type(head) is torch.nn.Linear:
            return linear(hidden.float(), head.weight, head.bias)
        return head(hidden.float())


def max_logits(device: torch.device) -> int:
    """Return the most logits in a part: 64 MiB, on a GPU up to 256 MiB (1/64 to 1/36 of its memory in the backward pass)."""
    if device.type != "cuda":
        return MAX_LOGITS
    return min(MAX_LOGITS_ON_GPU, torch.cuda.get_device_properties(device).total_memory // 1024)


def token_logprobs(
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    rows: torch.Tensor,
    targets: torch.Tensor,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the log-probability of each token and the entropy of each distribution, `max_logits` at a time.

    Args:
        logits_of: hidden states [n, H] to float32 logits [n, V].
        hidden: [N, H]; several tokens may have been drawn from one hidden state.
        rows: int64 [M], the hidden state that each token was drawn from.
        targets: int64 [M], the tokens.

    Returns:
        float32 [M] and [N]; the second one has a gradient only with ``entropy_gradient``.
    """

    def part(hidden: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = logits_of(hidden)
        logprobs = (logits if temperature == 1 else logits / temperature).log_softmax(-1)
        chosen = logprobs[rows, targets]  # before the entropy, so that the backward pass does not recompute it
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            rows_at_once = ROWS_IN_CACHE if hidden.device.type == "cpu" else max(1, len(hidden))
            uncertainty = torch.cat([entropy(some) for some in logprobs.split(rows_at_once)])
        return chosen, uncertainty

    vocabulary = logits_of(hidden[:1].detach()).shape[-1]
    size = max(1, max_logits(hidden.device) // vocabulary)
    if len(hidden) <= size:
        return part(hidden, rows, targets)
    fits = hidden.device.type == "cpu" and 4 * len(hidden) * vocabulary <= KEPT_FRACTION * memory_share()
    keeps = fits and not entropy_gradient  # its intermediate results take several times as much
    run = part if keeps else partial(checkpoint, part, use_reentrant=False, preserve_rng_state=False)
    # Order the tokens by the hidden states that they were drawn from, and count those of each part.
    order = rows.argsort(stable=True)
    counts = torch.bincount(rows // size, minlength=-(-len(hidden) // size)).tolist()
    chosen, uncertainty = [], []
    for number, tokens in enumerate(order.split(counts)):
        of_part = hidden[number * size : (number + 1) * size]
        of_tokens, of_nodes = run(of_part, rows[tokens] - number * size, targets[tokens])
        chosen.append(of_tokens)
        uncertainty.append(of_nodes)
    return torch.cat(chosen)[order.argsort()], torch.cat(uncertainty)
