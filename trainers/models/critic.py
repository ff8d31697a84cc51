"""The critic of PPO: what is still to come, at each token that the policy is about to sample."""

import torch

from trainers.models.hidden_states import hidden_states
from trainers.models.lora import trainable_copy
from trainers.models.micro_batches import map_parts
from trainers.models.policy import Policy
from trainers.trajectory import Batch


class Critic(torch.nn.Module):
    """A transformer with one number for an output.

    It starts as a copy of the policy's own layers, which know how to read; the new layer on top starts at zero, so the
    first advantages are plain returns. Of a policy with a LoRA adapter, it has an adapter of its own on the same frozen
    layers.

    Args:
        shared: read with the policy's layers themselves, which then serve both losses, in place of a copy.
    """

    def __init__(self, policy: Policy, shared: bool = False):
        super().__init__()
        self._policy = [policy] if shared else []  # in a list: its weights are not this module's
        self.backbone = None if shared else trainable_copy(policy.model.base_model, policy.model)
        self.dtype, self.trees = policy.dtype, policy.trees
        size = policy.model.config.get_text_config().hidden_size
        self.head = torch.nn.Linear(size, 1, device=policy.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> torch.Tensor:
        """V_t, float [B, T], from everything before token t; zero where the mask is 0."""
        backbone = self._policy[0].model.base_model if self._policy else self.backbone
        hidden, where = hidden_states(backbone, batch, self.dtype, self.trees)
        values = torch.nn.functional.pad(self.head(hidden).squeeze(-1)[where[:, :-1]], (1, 0))
        return torch.where(batch.mask, values, 0.0)

    def values(self, batch: Batch, max_tokens: int) -> torch.Tensor:
        """The same without a gradient, in parts of at most ``max_tokens`` tokens."""
        return map_parts(self, batch, max_tokens)
