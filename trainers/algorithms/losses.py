"""Losses as pure functions of log-probabilities. All are per token, shape [B, T]; `aggregate` reduces them to a number.

Values outside the mask are never read; log-probabilities there should be 0, or an overflow would poison the gradient.
A *sequence* is an episode, which has several rows if its context was rewritten. ``episode_tokens``, int [B]: action tokens of the
row's sequence. ``other_log_ratios``, float [B]: Σ log r over the tokens of its other rows. By default each row is a sequence.
"""

import torch

MAX_LOG_RATIO = 20.0  # nats; larger values are accidents, and are clamped before the exponential


def clipped_policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> torch.Tensor:
    """PPO's clipped surrogate (Schulman et al. 2017, eq. 7).

        −min(r A, clip(r, 1 − ε_low, 1 + ε_high) A),  r = exp(logprobs − old_logprobs)

    With ε_high > ε_low it is the "clip-higher" of DAPO (Yu et al. 2025, eq. 10).

    ``dual_clip``: c > 1, the bound of r if A < 0: −max(min(r A, clip(r) A), c A) (Ye et al. 2020, arXiv 1912.09729, eq. 5). 0
    leaves it unbounded up to `MAX_LOG_RATIO`.
    """
    ratio = bounded_ratio(logprobs, old_logprobs)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    return torch.where(advantages < 0, loss.minimum(-dual_clip * advantages), loss) if dual_clip else loss


def bounded_ratio(logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> torch.Tensor:
    """Compute exp(logprobs − old_logprobs), at most exp(`MAX_LOG_RATIO`), above which there is no gradient."""
    return torch.exp((logprobs - old_logprobs).clamp(max=MAX_LOG_RATIO))


def gspo_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip_low: float,
    clip_high: float,
    episode_tokens: torch.Tensor | None = None,
    other_log_ratios: torch.Tensor | None = None,
) -> torch.Tensor:
    """GSPO's surrogate with the ratio of whole sequences (Zheng et al. 2025).

        −min(s A, clip(s, 1 − ε_low, 1 + ε_high) A),  s = exp(mean of log r over the sequence's tokens)

    The token form (arXiv 2507.18071, eqs. 7 and 13-14): every token has the value of its sequence's ratio s, and the gradient
    of its own log-probability. Under `sequence_mean` it equals the sequence form (eq. 5).

    ``mask``: bool [B, T], the tokens of the ratio. The paper's ε are 3e-4 and 4e-4.
    """
    of_sequence = sequence_log_ratio(logprobs, old_logprobs, mask, episode_tokens, other_log_ratios)
    straight_through = logprobs - logprobs.detach()  # 0, with the gradient of the log-probability
    same = torch.zeros_like(logprobs)
    return clipped_policy_loss(of_sequence + straight_through, same, advantages, clip_low, clip_high)


@torch.no_grad()
def sequence_log_ratio(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    mask: torch.Tensor,
    episode_tokens: torch.Tensor | None = None,
    other_log_ratios: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the mean of log r over each sequence's tokens, float [B, 1]."""
    total = torch.where(mask, logprobs - old_logprobs, 0.0).sum(1)
    if other_log_ratios is not None:
        total = total + other_log_ratios
    tokens = mask.sum(1) if episode_tokens is None else episode_tokens
    return (total / tokens.clamp(min=1))[:, None]


def sum_of_sequence(values: torch.Tensor, owners: torch.Tensor) -> torch.Tensor:
    """Sum the values [B] of all rows of each row's sequence, [B]. ``owners``: int [B], the sequence of each row."""
    return values.new_zeros(int(owners.max()) + 1).index_add(0, owners, values)[owners]


def cispo_loss(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> torch.Tensor:
    """CISPO's surrogate with a clipped weight (MiniMax 2025, eqs. 4-5).

        −sg(clip(r, 1 − ε_low, 1 + ε_high)) A log π

    arXiv 2506.13585, which has ``clip_low=1``. The importance weight is clipped, not the token: all tokens keep a gradient.
    """
    weight = bounded_ratio(logprobs, old_logprobs).clamp(1 - clip_low, 1 + clip_high).detach()
    return -weight * advantages * logprobs


def value_loss(values: torch.Tensor, old_values: torch.Tensor, targets: torch.Tensor, clip: float) -> torch.Tensor:
    """PPO's clipped value loss (Huang et al. 2022, detail 9).

        ½ max((V − G)², (clip(V, V_old − ε, V_old + ε) − G)²)

    ``targets``: G, the returns of `trainers.algorithms.gae`. ``clip``: ε; ``math.inf`` for the plain squared error.
    """
    clipped = torch.clamp(values, old_values - clip, old_values + clip)
    return 0.5 * torch.maximum((values - targets) ** 2, (clipped - targets) ** 2)


def kl_k1(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Schulman's k1 estimate of KL(π ‖ π_ref), for the *reward*.

        log π − log π_ref

    It has no gradient: in a loss, ∇ log π would be zero in expectation, whatever the reference.
    """
    return (logprobs - reference).detach()


def kl_k2(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Schulman's k2 estimate of KL(π ‖ π_ref), for the *loss*.

        ½ (log π − log π_ref)²

    Its gradient is in expectation that of KL(π ‖ π_ref).
    """
    return 0.5 * (logprobs - reference) ** 2


def kl_k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Schulman's k3 estimate of KL(π ‖ π_ref), for the *loss*; never negative.

        exp(d) − d − 1,  d = log π_ref − log π

    The form of GRPO (Shao et al. 2024, eq. 4). Its gradient is in expectation that of KL(π_ref ‖ π), the other direction. d is
    bounded by `MAX_LOG_RATIO`, without a gradient above it.
    """
    difference = (reference - logprobs).clamp(max=MAX_LOG_RATIO)
    return torch.exp(difference) - difference - 1


def entropy(logprobs: torch.Tensor) -> torch.Tensor:
    """Entropy of log-probabilities [..., V], with a gradient.

        −Σ_v p_v log p_v

    −inf (a token that is ruled out) adds nothing.
    """
    return -torch.linalg.vecdot(logprobs.exp(), logprobs.clamp_min(torch.finfo(logprobs.dtype).min))


def aggregate(loss: torch.Tensor, mask: torch.Tensor, normalizer: float | torch.Tensor) -> torch.Tensor:
    """Sum over the masked tokens, divided by ``normalizer``.

    With the number of action tokens of the *whole* batch it is DAPO's token-level loss (eq. 12), for any split into
    micro-batches. With a constant (episodes x the longest allowed) it is Dr. GRPO's (Liu et al. 2025). Masks by ``where``, as
    0 · ∞ is NaN.
    """
    return torch.where(mask, loss, 0.0).sum() / normalizer


def sequence_mean(
    loss: torch.Tensor,
    mask: torch.Tensor,
    normalizer: float | torch.Tensor,
    episode_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean over each sequence's tokens, summed over sequences and divided by ``normalizer``: GRPO (Shao et al. 2024, eq. 3).

    ``normalizer``: number of sequences in the whole batch, empty ones included.
    """
    tokens = mask.sum(1) if episode_tokens is None else episode_tokens
    return aggregate(loss / tokens.clamp(min=1)[:, None], mask, normalizer)


def total_loss(
    mean_over: str, loss: torch.Tensor, mask: torch.Tensor, normalizer: int, episode_tokens: torch.Tensor | None = None
) -> torch.Tensor:
    """Reduce token losses [B, T] to one number: `aggregate` for ``"tokens"``, `sequence_mean` for ``"sequences"``."""
    if mean_over == "tokens":
        return aggregate(loss, mask, normalizer)
    return sequence_mean(loss, mask, normalizer, episode_tokens)


@torch.no_grad()
def is_clipped(
    name: str,
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    mask: torch.Tensor,
    clip_low: float,
    clip_high: float,
    episode_tokens: torch.Tensor | None = None,
    other_log_ratios: torch.Tensor | None = None,
) -> torch.Tensor:
    """Find the tokens with a clipped ratio in the surrogate of this name, bool [B, T]."""
    log_ratio = logprobs - old_logprobs
    if name == "gspo":
        of_sequence = sequence_log_ratio(logprobs, old_logprobs, mask, episode_tokens, other_log_ratios)
        log_ratio = of_sequence.expand_as(log_ratio)
    ratio = log_ratio.exp()
    return (ratio < 1 - clip_low) | (ratio > 1 + clip_high)
