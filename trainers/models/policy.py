"""A causal language model, its tokenizer, and the little that a multi-turn conversation needs of both."""

import re
from functools import cached_property, lru_cache

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trainers.models.hidden_states import autocast, choose_tree_attention, compute_hidden_states, token_cost_of
from trainers.models.logits import compute_logits, token_logprobs
from trainers.trajectory import Batch

_MARK = "\u2063content\u2063"  # stands for a message while a chat template is taken apart


class Policy:
    """Token ids in, token ids and log-probabilities out.

    A conversation is built from ids: the prompt is encoded once, then each sampled turn is kept as it was sampled and
    only the observation after it is encoded. Nothing sampled is ever decoded and encoded again, since byte-pair
    encodings are not bijective.

    Args:
        dtype: what the layers run in, when sampling and when training alike; bfloat16 or float32.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype = torch.float32):
        if tokenizer.chat_template is None:
            raise ValueError("the tokenizer has no chat template; use an instruction-tuned model")
        # Without dropout, or a rollout and its update would see two different policies.
        self.model, self.tokenizer, self.dtype = model.eval(), tokenizer, dtype
        # Attempts at one question read the same, again and again.
        self._encoded = lru_cache(2**10)(lambda text: tuple(tokenizer(text, add_special_tokens=False).input_ids))
        self.eos_id = tokenizer.eos_token_id
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.eos_id
        conversation = [("user", "hello"), ("assistant", _MARK), ("user", _MARK)]
        text = self._template([{"role": r, "content": c} for r, c in conversation], add_generation_prompt=True)
        if text.count(_MARK) != 2:
            raise ValueError("the chat template rewrites earlier messages, so turns cannot be appended to each other")
        _, self._turn_end, self._turn_start = text.split(_MARK)
        # A model may end its turns with several tokens, eos not always among them; an ordinary token is never one.
        ends = model.generation_config.eos_token_id
        ends = {self.eos_id, *(ends if isinstance(ends, list) else [ends]), *self.encode(self._turn_end)[:1]}
        self.end_ids = ends & {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.turn_end_ids = [
            i for i in self.encode(self._turn_end)[:1] if i in self.end_ids
        ]  # what a turn should end with
        specials = [re.escape(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._special = re.compile("|".join(sorted(specials, key=len, reverse=True)) or r"(?!)")
        self._sample = self.encode(text)
        self._check_head(self._sample)

    @cached_property
    def tree_attention(self) -> str:
        """How rows with common prefixes are run, by `choose_tree_attention`: found at the first update."""
        return choose_tree_attention(self.model.base_model, self._sample, self.dtype)

    @property
    def token_cost(self) -> int:
        """What a token costs this model apart from attention, for `micro_batches`."""
        return token_cost_of(self.tree_attention)

    @torch.no_grad()
    def _check_head(self, text: list[int]) -> None:
        """Logits are made here from the last hidden state; some models scale or cap them on the way."""
        ids = torch.tensor([text], device=self.device)
        with self.autocast():
            logits = self.model(ids, use_cache=False).logits
            difference = self.model.get_output_embeddings()(self.model.base_model(ids, use_cache=False)[0]) - logits
        caps = getattr(self.model.config.get_text_config(), "final_logit_softcapping", None)
        if caps or difference.abs().max() > 1e-2 * logits.abs().max():
            raise ValueError(f"{type(self.model).__name__} transforms its logits, which this policy does not support")

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.device

    def autocast(self) -> torch.autocast:
        """The precision that the layers run in."""
        return autocast(self.device, self.dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float32 logits [..., V] of hidden states [..., H]."""
        return compute_logits(self.model.get_output_embeddings(), hidden)

    def to_model_mask(self, attention_mask: torch.Tensor) -> torch.Tensor:
        """A bool mask [B, 1, T, S], true where a token attends, in the form that the model's attention takes."""
        if self.model.config.get_text_config()._attn_implementation != "eager":
            return attention_mask
        blocked = torch.finfo(torch.float32).min
        return torch.zeros(attention_mask.shape, device=attention_mask.device).masked_fill(~attention_mask, blocked)

    def _template(self, messages: list[dict[str, str]], **kwargs) -> str:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        assert isinstance(text, str)
        return text

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without those that a tokenizer adds around it."""
        return list(self._encoded(text))

    def inert(self, text: str) -> str:
        """Text from outside, in which a control token that is spelled out stays text: a word joiner breaks it."""
        return self._special.sub(lambda found: f"{found[0][:1]}\u2060{found[0][1:]}", text)

    def prompt_ids(self, instructions: str, context: str | list[dict[str, str]]) -> list[int]:
        """The ids before a turn: instructions as the system message, then the first observation as the user's, or the
        messages of a context that the environment has rewritten."""
        messages = [{"role": "user", "content": context}] if isinstance(context, str) else context
        messages = [{"role": "system", "content": instructions}, *messages]
        messages = [{**message, "content": self.inert(message["content"])} for message in messages]
        return self.encode(self._template(messages, add_generation_prompt=True))

    def observation_ids(self, observation: str, after: list[int]) -> list[int]:
        """The ids between a sampled turn ``after`` and the next one: the turn's end as the template writes it, unless
        the policy wrote it itself, then the observation as a user message, then the start of the next turn."""
        ids = self.encode(self._turn_end + self.inert(observation) + self._turn_start)
        if after and after[-1] in self.end_ids and ids[:1] == after[-1:]:
            return ids[1:]
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of ids, without control tokens."""
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        assert isinstance(text, str)
        return text

    def logprobs(
        self, batch: Batch, temperature: float = 1.0, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability and entropy of each action token.

        Rows that begin alike are run as trees (`trainers.models.prefix_trees`), and the vocabulary is only projected to where an
        action token is next; observation tokens cost no logits.

        Returns:
            Two float32 [B, T] tensors, zero where the mask is 0; the second one has a gradient only where
            ``entropy_gradient`` asks for it.
        """
        hidden, node_index = compute_hidden_states(self.model.base_model, batch, self.dtype, self.tree_attention)
        target_mask = batch.mask[:, 1:]
        nodes, which = node_index[:, :-1][target_mask].unique(return_inverse=True)
        of_tokens, of_nodes = token_logprobs(
            self.model.get_output_embeddings(), hidden[nodes], which, batch.ids[:, 1:][target_mask],
            temperature=temperature, entropy_gradient=entropy_gradient, dtype=self.dtype,
        )  # fmt: skip
        return _scatter(of_tokens, batch.mask), _scatter(of_nodes[which], batch.mask)


def _scatter(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Put one value for each set position of ``mask`` in its place, zeros elsewhere."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)
