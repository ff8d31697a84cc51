"""A causal language model and its tokenizer."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import cast

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent_envs.chat_tokens import ChatTokens
from trainers.models.architecture import find_backbone, max_positions
from trainers.models.hidden_states import (
    HiddenStates,
    autocast,
    choose_tree_attention,
    compute_hidden_states,
    token_cost_of,
)
from trainers.models.logits import compute_logits, find_after_head, token_logprobs
from trainers.runtime.errors import UserError
from trainers.trajectory import Batch


class Policy(ChatTokens):
    """Token ids in, token ids and log-probabilities out; a conversation is built from ids (`ChatTokens`).

    ``dtype``: bfloat16 or float32, in which layers run for sampling and training alike. ``thinking``: see `ChatTokens`. A number
    is the budget in tokens for the thoughts of a turn (``thought_tokens``), and turns thoughts on if there is a switch.
    """

    tokenizer: PreTrainedTokenizerBase

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype = torch.float32,
        thinking: str = "auto",
    ):  # fmt: skip
        eos_ids = model.generation_config.eos_token_id
        super().__init__(tokenizer, eos_ids if isinstance(eos_ids, list) else [eos_ids], thinking)
        self.thought_tokens = int(thinking) if thinking.isdecimal() else None
        self.format: str | None = None  # that `choose_format` was given or found
        self.stop: tuple[str, ...] = ()  # strings that end its turns
        # Without dropout: it would make the policies of a rollout and of its update differ.
        self.model, self.dtype = model.eval(), dtype
        if self.pad_id >= cast(torch.Tensor, model.get_input_embeddings().weight).shape[0]:
            self.pad_id = 0  # only the tokenizer has this token; any other will do
        if self.device.type == "cuda":
            # cuDNN's attention makes a plan for each new shape, and here shapes change all the time.
            torch.backends.cuda.enable_cudnn_sdp(False)
        with self.autocast():
            self.after_head = find_after_head(model, torch.tensor([self._sample[:8]], device=self.device))

    @cached_property
    def tree_attention(self) -> str:
        """How rows with common prefixes are run: the result of `choose_tree_attention`, computed at first use."""
        return choose_tree_attention(self.backbone, self._sample, self.dtype)

    @property
    def token_cost(self) -> int | None:
        """Cost of a token besides attention, for `micro_batches`; None if the model runs each row by itself."""
        return token_cost_of(self.tree_attention)

    @property
    def backbone(self) -> torch.nn.Module:
        """The model's layers below its head."""
        return find_backbone(self.model)

    @property
    def max_length(self) -> float:
        """Tokens of the longest conversation that the model can read, by `max_positions`."""
        return max_positions(self.model.config.get_text_config())

    def check_turn_length(self, max_new_tokens: int) -> None:
        """Raise a UserError if turns of ``max_new_tokens`` leave no room for a prompt in the tokens that the model reads."""
        if max_new_tokens >= self.max_length:
            raise UserError(
                f"max_new_tokens is {max_new_tokens}, and the model reads {self.max_length:.0f} tokens, prompt and turn "
                "together: give less"
            )

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.model.device

    def autocast(self) -> torch.autocast:
        """Return the autocast context that the layers run in."""
        return autocast(self.device, self.dtype)

    def logits(self, hidden: torch.Tensor, copied: Sequence[torch.Tensor] = ()) -> torch.Tensor:
        """Float32 logits [..., V] of hidden states [..., H]; see `compute_logits`."""
        return self.after_head(compute_logits(self.model.get_output_embeddings(), hidden, copied))

    def to_model_mask(self, attention_mask: torch.Tensor) -> torch.Tensor:
        """Convert a bool mask [B, 1, T, S], true where a token attends, to the form that the model's attention takes."""
        if self.model.config.get_text_config()._attn_implementation != "eager":
            return attention_mask
        blocked = torch.finfo(torch.float32).min
        return torch.zeros(attention_mask.shape, device=attention_mask.device).masked_fill(~attention_mask, blocked)

    def hidden_states(self, batch: Batch) -> HiddenStates:
        """Compute the last hidden states, and the index of each token's hidden state, by `compute_hidden_states`."""
        return compute_hidden_states(self.backbone, batch, self.dtype, self.tree_attention)

    def logprobs(
        self, batch: Batch, temperature: float = 1.0, entropy_gradient: bool = False, states: HiddenStates | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute log-probability and entropy of each action token, over prefix trees; observations cost no logits.

        ``states``: `hidden_states` of the batch, if already computed.

        Returns:
            Two float32 [B, T] tensors, zero if the mask is 0; the second has a gradient only with ``entropy_gradient``.
        """
        hidden, node_index = self.hidden_states(batch) if states is None else states
        target_mask = batch.mask[:, 1:]
        nodes, which = node_index[:, :-1][target_mask].unique(return_inverse=True)
        targets = batch.ids[:, 1:][target_mask]
        of_tokens, of_nodes = token_logprobs(self.logits, hidden[nodes], which, targets, temperature, entropy_gradient)
        return _scatter(of_tokens, batch.mask), _scatter(of_nodes[which], batch.mask)


def _scatter(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Put one value at each set position of ``mask``, in order, and zeros elsewhere."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)


def check_finite(tensors: Iterable[tuple[str, torch.Tensor]], where: object) -> None:
    """Raise a UserError naming the first tensor with NaN or infinity; of a sharded one, only this process's part is checked."""
    parts = ((name, t.to_local() if isinstance(t, DTensor) else t) for name, t in tensors)
    named = [(name, part.detach()) for name, part in parts if part.is_floating_point()]
    if not named:
        return
    finite = torch.stack([tensor.isfinite().all() for _, tensor in named])
    if not finite.all():
        name = named[int(finite.int().argmin())][0]
        raise UserError(f"{where} holds numbers that are NaN or infinite, in {name}")
