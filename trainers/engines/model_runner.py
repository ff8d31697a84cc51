"""An engine's passes through the model: own layers or the library's, and on a GPU decoding steps as CUDA graphs."""

import torch

from trainers.engines import llama as decoder
from trainers.engines.cuda_graphs import Graphs, bucket, recordable
from trainers.engines.kv_cache import KeyValues
from trainers.models.policy import Policy

PROBE = "Which of the towns on the river was founded first, and by whom? " * 3
KEPT = 0.1  # of the GPU's memory: what the graphs look at may stay while a policy learns, or is made again for each rollout


class Forward:
    """Token ids in, hidden states out; keys and values go into the cache that `reset` gave."""

    def __init__(self, policy: Policy):
        config = policy.model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if other := kinds - {"full_attention", "sliding_attention"}:
            raise ValueError(f"{type(policy.model).__name__} has layers that this engine cannot cache: {sorted(other)}")
        self._policy, self._backbone = policy, policy.model.base_model
        self._window = getattr(config, "sliding_window", None) or float("inf")
        with policy.autocast():
            tolerance = 1e-4 if policy.dtype == torch.float32 else 0.05
            self._plain = decoder.agrees(self._backbone, policy.encode(PROBE), tolerance, policy.dtype)
        self._graphs = Graphs() if recordable(policy.device) and self._plain else None
        self._cache, self._weights, self._stale = KeyValues(), None, True

    def reset(self) -> KeyValues:
        """The weights may change now; returns a cache to begin with, what it holds counts for nothing."""
        self._stale = True
        if self._graphs is None or not self._fits():
            self._cache, self._weights = KeyValues(), None
            if self._graphs is not None:
                self._graphs.clear()
        return self._cache

    def _fits(self) -> bool:
        kept = self._cache.nbytes + (self._weights.nbytes if self._weights else 0)
        return kept <= KEPT * torch.cuda.get_device_properties(self._policy.device).total_memory

    @property
    def graphs(self) -> int:
        """How many are recorded."""
        return self._graphs.count if self._graphs else 0

    def rows(self, span: int) -> int:
        """How many rows of the cache a step is made for, of which ``span`` are asked for."""
        return bucket(span, 8) if self._graphs else span

    def prefill(self, new: list[list[int]], rows: list[int], lengths: list[int]) -> None:
        """Put new ids behind the first ``lengths`` tokens of rows of the cache, in one pass."""
        device, longest = self._policy.device, max(map(len, new))
        if self._graphs:  # a few sizes here as well: kernels are planned for each
            longest = bucket(longest, 16)
        ids = torch.tensor([part + [self._policy.pad_id] * (longest - len(part)) for part in new], device=device)
        places = torch.tensor(lengths, device=device)[:, None] + torch.arange(longest, device=device)
        reach = max(length + len(part) for part, length in zip(new, lengths, strict=True))
        width = longest + max(lengths)  # with room for the padding of the longest one
        if self._graphs:
            width = bucket(width, 256)
        self._check(reach)
        self._cache.reserve(0, width)
        self._policy.fed["prefill"] += ids.numel()
        self._pass(ids, places, torch.tensor(rows, device=device), width, reach)

    def decode(self, ids: list[int], lengths: list[int], reach: int) -> torch.Tensor:
        """The hidden states [rows, H] of one more token for each of the first rows of the cache.

        ``reach``: of the longest conversation that counts, with that token.
        """
        self._check(reach)
        count, width = len(ids), 1 + max(lengths)
        if self._graphs:
            width, padding = bucket(width, 256), self.rows(count) - count
            ids, lengths = ids + [self._policy.pad_id] * padding, lengths + [0] * padding
        self._cache.reserve(len(ids), width)
        self._policy.fed["decode"] += len(ids)
        self._policy.fed["steps"] += 1
        inputs, places = torch.tensor([ids, lengths], device=self._policy.device)[..., None]
        if self._graphs and self._cache.nbytes and not self._stale:
            return self._graphs(self._step, inputs, places, width, self._cache.version)[:count, -1]
        return self._pass(inputs, places, slice(0, len(ids)), width, reach)[:count, -1]

    def _step(self, ids: torch.Tensor, places: torch.Tensor, width: int) -> torch.Tensor:
        return self._pass(ids, places, slice(0, len(ids)), width, width)

    def _check(self, reach: int) -> None:
        if reach > self._window:
            raise ValueError(f"the conversations outgrow the model's attention window of {self._window} tokens")

    def _pass(
        self, ids: torch.Tensor, places: torch.Tensor, rows: torch.Tensor | slice, width: int, reach: int
    ) -> torch.Tensor:
        """Hidden states [m, w, H] of ids [m, w] at their places in rows of the cache, ``width`` columns of which count.

        What is beyond ``reach`` is padding, whose position need only be one that there is.
        """
        self._cache.aim(rows, places, width)
        sees = torch.arange(width, device=ids.device) <= places[:, None, :, None]
        positions = places.clamp(max=reach - 1)
        if not self._plain:
            return self._backbone(
                ids, attention_mask=self._policy.as_mask(sees), position_ids=positions, past_key_values=self._cache,
                use_cache=True,
            ).last_hidden_state  # fmt: skip
        if self._weights is None:
            self._weights = decoder.Weights(self._backbone, self._policy.dtype)
        elif self._stale:
            self._weights.refresh()
        self._stale = False
        return decoder.forward(self._backbone, self._weights, ids, positions, sees, self._cache)
