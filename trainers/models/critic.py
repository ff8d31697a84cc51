"""The critic of PPO: the value of the state before each token that the policy samples."""

import torch

from trainers.models.hidden_states import HiddenStates, compute_hidden_states, token_cost_of
from trainers.models.lora import copy_trainable
from trainers.models.micro_batches import map_parts
from trainers.models.policy import Policy
from trainers.trajectory import Batch


class Critic(torch.nn.Module):
    """A transformer with one number as its output: a copy of the policy's layers below a linear layer that starts at zero.

    If the policy has a LoRA adapter, the critic trains its own adapter on the same frozen layers. With ``shared`` it uses
    the policy's layers themselves, which both losses then train.
    """

    def __init__(self, policy: Policy, shared: bool = False):
        super().__init__()
        self.shared = shared
        self._policy = [policy] if shared else []  # in a list: its weights are not this module's
        self.dtype, self.tree_attention = policy.dtype, policy.tree_attention  # before the copy: it may replace layers
        self.backbone = None if shared else copy_trainable(policy.backbone, policy.model)
        size = policy.model.config.get_text_config().hidden_size
        self.head = torch.nn.Linear(size, 1, device=policy.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch, states: HiddenStates | None = None) -> torch.Tensor:
        """Compute V_t, float [B, T], from everything before token t; zero if the mask is 0.

        ``states``: `Policy.hidden_states`, if already computed, for a critic that shares the policy's layers.
        """
        if states is None:
            backbone = self._policy[0].backbone if self.backbone is None else self.backbone
            states = compute_hidden_states(backbone, batch, self.dtype, self.tree_attention)
        hidden, node_index = states
        values = torch.nn.functional.pad(self.head(hidden).squeeze(-1)[node_index[:, :-1]], (1, 0))
        return torch.where(batch.mask, values, 0.0)

    def values(self, batch: Batch, max_tokens: int) -> torch.Tensor:
        """`forward` without a gradient, in parts of at most ``max_tokens`` tokens."""
        return map_parts(self, batch, max_tokens, token_cost_of(self.tree_attention))
