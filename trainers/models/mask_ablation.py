"""What happens without the masks: the paper's ablation (Agent-R1, table 3), and nothing that a run should use."""

from dataclasses import replace

import torch

from trainers.models.micro_batches import compute_logprobs
from trainers.models.policy import Policy
from trainers.trajectory import Batch


def remove_mask(batch: Batch, policy: Policy, temperature: float, max_tokens: int) -> Batch:
    """The batch without an action mask: from the first sampled token on, observations count as sampled.

    An observation belongs to the turn before it, and its log-probabilities are the policy's own.
    """
    columns = torch.arange(batch.mask.shape[1], device=batch.mask.device)
    first = torch.where(batch.mask, columns, batch.mask.shape[1]).min(1).values
    mask = (columns >= first[:, None]) & (columns < batch.lengths[:, None])
    turns = torch.where(mask, batch.turns.cummax(1).values, -1)
    wide = replace(batch, mask=mask, turns=turns)
    logprobs = compute_logprobs(policy, wide, temperature, max_tokens)
    return replace(wide, logprobs=torch.where(batch.mask, batch.logprobs, logprobs))
