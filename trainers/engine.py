"""Generation: prompts as ids in; ids, log-probabilities and finish reasons out.

`Engine` is all that a rollout needs, so that a faster one, or a server, can take the place of `TransformersEngine`.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from trainers.policy import Policy


@dataclass(slots=True, kw_only=True)
class Completion:
    """``tokens`` include the one that ended the turn. ``finish_reason``: "stop" or "length"."""

    tokens: list[int]
    logprobs: list[float]
    finish_reason: str


class Engine(Protocol):
    def generate(self, prompts: dict[int, list[int]], max_new_tokens: int, temperature: float) -> dict[int, Completion]:
        """Continue each prompt by one turn. Keys name conversations: a prompt that extends what was already seen under
        its key costs only the new ids. ``temperature`` 0 is greedy; log-probabilities are those of the distribution
        that was sampled from (at 0, of the untempered one)."""
        ...

    def reset(self) -> None:
        """Forget all conversations; call it whenever the weights have changed."""
        ...


class TransformersEngine:
    """Batched sampling from a `transformers` model, with keys and values kept across turns.

    The cache is a rectangle with a row for each conversation. Rows whose new ids are fewer leave holes, which the
    attention mask hides and the position ids skip, so every row sees exactly its own text. A model that keeps a state
    other than keys and values would take the holes in, and is refused.
    """

    def __init__(self, policy: Policy, stop: tuple[str, ...]):
        self.policy, self.stop = policy, stop
        tokenizer, config = policy.tokenizer, policy.model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if other := kinds - {"full_attention", "sliding_attention"}:
            raise ValueError(f"{type(policy.model).__name__} has layers that this engine cannot cache: {sorted(other)}")
        self._window = getattr(config, "sliding_window", None) or float("inf")
        ends = {s[-1] for s in stop}
        size = max(policy.model.get_output_embeddings().weight.shape[0], len(tokenizer))
        texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
        # A stop string can only be complete after a token that holds its last character: the rest need no look.
        self._may_stop = torch.zeros(size, dtype=torch.bool)
        self._may_stop[: len(texts)] = torch.tensor([any(e in text for e in ends) for text in texts])
        self._may_stop[list(policy.end_ids)] = True
        self._tail = 4 + 2 * max(map(len, stop), default=0)
        self.reset()

    def reset(self) -> None:
        self._rows: dict[int, int] = {}
        self._seen: dict[int, list[int]] = {}
        self._cache = Cache(layer_class_to_replicate=_GrowingLayer)
        self._valid = torch.zeros(0, 0, dtype=torch.bool, device=self.policy.device)

    @torch.no_grad()
    def generate(self, prompts: dict[int, list[int]], max_new_tokens: int, temperature: float) -> dict[int, Completion]:
        with self.policy.autocast():  # around all of a turn: weights are rounded once, and not for each token
            return self._generate(prompts, max_new_tokens, temperature)

    def _generate(self, prompts, max_new_tokens, temperature) -> dict[int, Completion]:
        keys = list(prompts)
        self._select(keys, prompts)
        new = [prompts[key][len(self._seen[key]) :] for key in keys]
        positions = torch.tensor([len(self._seen[key]) for key in keys], device=self.policy.device)
        logits = self._feed(new, positions)
        positions = positions + torch.tensor([len(ids) for ids in new], device=self.policy.device)
        done = {key: Completion(tokens=[], logprobs=[], finish_reason="length") for key in keys}
        open_rows = list(range(len(keys)))
        for count in range(1, max_new_tokens + 1):
            tokens, logprobs = sample(logits, temperature)
            tokens_list, logprobs_list = tokens.tolist(), logprobs.tolist()
            may_stop = self._may_stop[tokens.cpu()].tolist()
            still_open = []
            for row in open_rows:
                completion = done[keys[row]]
                completion.tokens.append(tokens_list[row])
                completion.logprobs.append(logprobs_list[row])
                if may_stop[row] and self._stopped(completion.tokens):
                    completion.finish_reason = "stop"
                else:
                    still_open.append(row)
            open_rows = still_open
            if not open_rows or count == max_new_tokens:
                break
            is_open = torch.zeros(len(keys), dtype=torch.bool, device=self.policy.device)
            is_open[open_rows] = True
            logits = self._forward(tokens[:, None], positions[:, None], is_open[:, None])[:, -1]
            positions = positions + is_open
        for key in keys:  # the token that ended a turn has not been fed: it comes with the next observation
            self._seen[key] = prompts[key] + done[key].tokens[:-1]
        return done

    def _stopped(self, tokens: list[int]) -> bool:
        if tokens[-1] in self.policy.end_ids:
            return True
        tail = self.policy.tokenizer.decode(tokens[-self._tail :])
        return any(s in tail for s in self.stop)

    def _select(self, keys: list[int], prompts: dict[int, list[int]]) -> None:
        """Make the cache hold exactly ``keys``, in order; rows whose prompt was rewritten start over."""
        # A prompt with nothing new in it starts over too: the logits after its last token are not kept.
        fresh = [k for k in keys if k not in self._rows or prompts[k][:-1][: len(self._seen[k])] != self._seen[k]]
        if len(fresh) == len(keys):
            self.reset()
            self._valid = torch.zeros(len(keys), 0, dtype=torch.bool, device=self.policy.device)
        else:
            rows = torch.tensor([self._rows.get(k, 0) for k in keys], device=self.policy.device)
            if len(keys) != len(self._rows) or rows.tolist() != list(range(len(keys))):
                self._cache.batch_select_indices(rows)
                self._valid = self._valid[rows]
        for row, key in enumerate(keys):
            if key in fresh:
                self._seen[key] = []
                self._valid[row] = False
        self._rows = {key: row for row, key in enumerate(keys)}
        self._seen = {key: self._seen[key] for key in keys}

    def _feed(self, new: list[list[int]], positions: torch.Tensor) -> torch.Tensor:
        """Prefill the new ids of each row (right-padded) and return the logits after the last one, [B, V]."""
        device, width = self.policy.device, max(map(len, new))
        lengths = torch.tensor([len(ids) for ids in new], device=device)
        ids = torch.tensor([i + [self.policy.pad_id] * (width - len(i)) for i in new], device=device)
        columns = torch.arange(width, device=device)
        return self._forward(ids, positions[:, None] + columns, columns < lengths[:, None], last=lengths - 1)

    def _forward(self, ids, positions, valid, last: torch.Tensor | None = None) -> torch.Tensor:
        self._valid = torch.cat([self._valid, valid], dim=1)
        if self._valid.shape[1] > self._window:  # the model would count the holes as part of its window
            raise ValueError(f"the conversations outgrow the model's attention window of {self._window} tokens")
        model = self.policy.model
        hidden = model.base_model(
            ids, attention_mask=self._valid.long(), position_ids=positions, past_key_values=self._cache, use_cache=True
        ).last_hidden_state
        if last is not None:
            hidden = hidden[torch.arange(len(ids), device=ids.device), last]
        return self.policy.logits(hidden)


def sample(logits: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row of ``logits`` [B, V], and its log-probability."""
    if temperature == 0:
        logp = logits.log_softmax(-1)
        tokens = logp.argmax(-1)
    else:
        logp = (logits / temperature).log_softmax(-1)
        # The Gumbel-max trick: the argmax of log p + Gumbel noise is a sample of p, several times faster on a CPU
        # than torch.multinomial.
        tokens = (logp - torch.empty_like(logp).exponential_().log()).argmax(-1)
    return tokens, logp.gather(-1, tokens[:, None]).squeeze(-1)


class _GrowingLayer(DynamicLayer):
    """Keys and values in a buffer that doubles when full: the library's own layer copies all of it at every token."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        key_states = key_states.to(value_states.dtype)  # under autocast the rotation of positions makes them float32
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers = [key_states.new_empty(0), value_states.new_empty(0)]
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        old, end = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        for i, (current, states) in enumerate(((self.keys, key_states), (self.values, value_states))):
            buffer = self._buffers[i]
            if buffer.dim() != 4 or len(buffer) != len(states) or buffer.shape[-2] < end:
                buffer = states.new_empty(*states.shape[:2], max(2 * old, end + 64), states.shape[-1])
                buffer[:, :, :old] = current
                self._buffers[i] = buffer
            buffer[:, :, old:end] = states
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._buffers = [buffer[indices] for buffer in self._buffers]
        end = self.keys.shape[-2]
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)
