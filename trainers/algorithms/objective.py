"""The loss of a micro-batch: the surrogate that was chosen, and what is weighted and added to it."""

import torch

from trainers.algorithms import importance as penalties
from trainers.algorithms.kl import KLPenalty
from trainers.algorithms.losses import aggregate, cispo_loss, clipped_policy_loss, gspo_loss, kl_k3, sequence_mean
from trainers.engines.mismatch import measure_mismatch
from trainers.models.micro_batches import by_parts
from trainers.models.policy import Policy
from trainers.runs.arguments import PolicyArgs
from trainers.trajectory import Batch

GSPO_CLIP = 3e-4, 4e-4  # of a sequence's ratio, three orders below those of a token's


def policy_loss(policy: Policy, penalty: KLPenalty | None, args: PolicyArgs, part: Batch, normalizer: int):
    """The loss of a micro-batch, and its share of the batch's metrics.

    Args:
        part: with ``advantages`` among its extra tensors, and what `corrected` and `KLPenalty.prepare` left there.
        normalizer: action tokens (or sequences) of the whole gradient step, so that any split into micro-batches gives
            one gradient.
    """
    logprobs, entropy = policy.logprobs(part, args.temperature, entropy_gradient=args.entropy_coef > 0)
    loss = surrogate(args, logprobs, part)
    if "weights" in part.extra:
        loss = loss * part.extra["weights"]
    if penalty is not None:
        loss = loss + penalty.loss(logprobs, part)
    if args.entropy_coef:
        loss = loss - args.entropy_coef * entropy
    with torch.no_grad():
        tokens = part.mask.sum().clamp(min=1)
        sampler = part.extra.get("sampler", part.logprobs)
        metrics = {
            "entropy": aggregate(entropy, part.mask, tokens).item(),
            "clip_fraction": aggregate(is_clipped(args, logprobs, part).float(), part.mask, tokens).item(),
            "sampler_kl": aggregate(kl_k3(sampler, logprobs), part.mask, tokens).item(),
        }
        if "weights" in part.extra:
            metrics["importance"] = aggregate(part.extra["weights"], part.mask, tokens).item()
    return total(args, loss, part.mask, normalizer), metrics


def total(args: PolicyArgs, loss: torch.Tensor, mask: torch.Tensor, normalizer: int) -> torch.Tensor:
    """The losses of tokens [B, T] as one number, as ``args.normalize`` says."""
    return (aggregate if args.normalize == "tokens" else sequence_mean)(loss, mask, normalizer)


def surrogate(args: PolicyArgs, logprobs: torch.Tensor, part: Batch) -> torch.Tensor:
    """The loss of each token that ``args.loss`` names."""
    advantages = part.extra["advantages"]
    if args.loss == "gspo":
        return gspo_loss(logprobs, part.logprobs, advantages, part.mask, *GSPO_CLIP)
    function = cispo_loss if args.loss == "cispo" else clipped_policy_loss
    return function(logprobs, part.logprobs, advantages, args.clip_low, args.clip_high)


def is_clipped(args: PolicyArgs, logprobs: torch.Tensor, part: Batch) -> torch.Tensor:
    """Where the ratio that the surrogate looks at lies outside its range, bool [B, T]."""
    log_ratio, (low, high) = logprobs - part.logprobs, (args.clip_low, args.clip_high)
    if args.loss == "gspo":
        of_sequence = log_ratio.sum(1, keepdim=True) / part.mask.sum(1, keepdim=True).clamp(min=1)
        log_ratio, (low, high) = of_sequence.expand_as(log_ratio), GSPO_CLIP
    ratio = log_ratio.exp()
    return (ratio < 1 - low) | (ratio > 1 + high)


def corrected(batch: Batch, policy: Policy, args: PolicyArgs) -> tuple[Batch, dict[str, float]]:
    """The batch for a sampler whose probabilities are not quite the trainer's: each token's loss is weighted, and the
    ratio is taken to the trainer's own log-probabilities before the update. And how far the two are apart, where the
    sampler is another program."""
    if args.importance == "none" and args.engine == "transformers":
        return batch, {}
    own = by_parts(lambda part: policy.logprobs(part, args.temperature)[0], batch, args.max_tokens_per_micro_batch)
    metrics = measure_mismatch(own, batch.logprobs, batch.mask)
    if args.importance == "none":
        return batch, metrics
    if args.importance == "sequence":
        weights = penalties.sequence_masked_importance(own, batch.logprobs, batch.mask)
    else:
        weigh = {"tis": penalties.truncated_importance, "icepop": penalties.masked_importance}[args.importance]
        weights = weigh(own, batch.logprobs)
    batch.extra |= {"sampler": batch.logprobs, "weights": weights}
    batch.logprobs = own
    return batch, metrics
