"""An engine's passes through the model, by `llama` or in the library's layers. On a GPU, decoding steps are CUDA graphs."""

import collections
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from trainers.engines import llama
from trainers.engines.cuda_graphs import CUDAGraphCache, bucket_size, supports_cuda_graphs
from trainers.engines.kv_cache import KVCache
from trainers.models import llama_parts
from trainers.models.architecture import layer_kinds, local_widths, narrow_window
from trainers.models.policy import Policy
from trainers.models.products import can_pack, pack
from trainers.runtime.distributed import memory_share

PROBE_TEXT = "Which of the towns on the river was founded first, and by whom? " * 3
PROBE_WINDOW = 8  # tokens: sliding windows are this narrow in the passes that are compared, so that rows outgrow them
# Of the memory that this process has or can have. Buffers up to this size stay while the policy is trained: on a GPU graphs
# read them, and on a CPU new memory has to be cleared. Larger buffers are made again for each rollout.
KEPT_FRACTION = 0.1
MERGED_FRACTION = 0.2  # of that of a GPU: the most that merged and stacked copies of all weights may take

Draw = Callable[[torch.Tensor], torch.Tensor]


class ModelRunner:
    """Token ids in, hidden states out; keys and values go into the KV cache that `reset` returned.

    Attributes:
        unfit: why the model cannot be run with that cache, "" if it can.
        graphs: captured decoding steps, if a GPU runs our own layers; else None.
    """

    def __init__(self, policy: Policy):
        self._config = policy.model.config.get_text_config()
        self._kinds = layer_kinds(self._config)
        self.processed: collections.Counter[str] = collections.Counter()
        self._policy, self._on_gpu = policy, supports_cuda_graphs(policy.device)
        self._kv_cache = KVCache(self._on_gpu)
        self._backbone: Any = policy.backbone
        self._merges = self._has_room_to_merge()
        self._packs = self._merges and can_pack(policy.device, policy.dtype, self._config.hidden_size)
        self._weights: llama.CastWeights | None = None
        self._head: list[torch.Tensor] = []  # its packed weight, and its bias
        self._parts, self._reads_places = llama_parts.Parts(), False
        self.graphs: CUDAGraphCache | None = None
        exact = policy.dtype == torch.float32
        # In bfloat16 a small difference, as in the rotary embedding, looks like rounding: only known types are tried.
        self._runs_as_llama = (
            len(self._kinds) == 1 and getattr(self._config, "model_type", None) in llama_parts.MODEL_TYPES
        )
        if self._runs_as_llama:
            self._runs_as_llama = not self._find_difference(1e-4 if exact else 0.05)
        self.unfit = "" if self._runs_as_llama else self._find_difference(1e-3 if exact else 0.25)
        if self._on_gpu and not self._runs_as_llama and not self.unfit:
            kind = type(policy.model).__name__
            slow = f"{kind} is sampled from in the library's layers, without CUDA graphs: several times as slow"
            warnings.warn(slow, stacklevel=3)
        if self._on_gpu and self._runs_as_llama:
            self._use_kernels()
            self.graphs = CUDAGraphCache()

    def _use_kernels(self) -> None:
        """Compile the operations between products, and attend with FlashAttention, each if it agrees with the model."""
        tolerance = 1e-4 if self._policy.dtype == torch.float32 else 0.05
        self._parts = llama_parts.compiled_parts()
        if reason := self._find_difference(tolerance):
            self._parts = llama_parts.Parts()
            warnings.warn(f"sampling goes on without compiled layers, slower: {reason}", stacklevel=4)
        self._reads_places = self._policy.dtype == torch.bfloat16 and self._kinds == {"full_attention"}
        if self._reads_places and (reason := self._find_difference(tolerance)):
            self._reads_places = False
            warnings.warn(f"sampling goes on without FlashAttention, slower: {reason}", stacklevel=4)

    @torch.no_grad()
    def _find_difference(self, tolerance: float) -> str:
        """State how decoding with our cache differs from the library without one; "" if it does not.

        This finds layers that keep another state, or derive positions from the width of the cache.
        """
        if other := self._kinds - {"full_attention", "sliding_attention"}:
            return f"it has layers of the kinds {sorted(other)}"
        if local := {*local_widths(self._config)} - {getattr(self._config, "sliding_window", None)}:
            return f"its attention stays within {max(local)} tokens"
        ids, device = self._policy.encode(PROBE_TEXT), self._policy.device
        rows, width = [ids, ids[: 1 + len(ids) // 2]], len(ids)
        self._kv_cache, self._weights, self._weights_changed = KVCache(self._on_gpu), None, True
        try:
            with self._policy.autocast(), narrow_window(self._config, PROBE_WINDOW):
                passes = [self._backbone(torch.tensor([row], device=device), use_cache=False) for row in rows]
                self._kv_cache.reserve(len(rows), width)
                first = [len(row) // 2 for row in rows]
                self.prefill([row[:n] for row, n in zip(rows, first, strict=True)], [0, 1], [0, 0])
                self.prefill([row[n:-1] for row, n in zip(rows, first, strict=True)], [0, 1], first)
                last, columns = torch.tensor([[row[-1], len(row) - 1] for row in rows], device=device).T[..., None]
                found = self._run(last, columns, slice(0, len(rows)), width, width)[:, -1]
            expected = torch.stack([one.last_hidden_state[0, -1] for one in passes]).float()
            difference = float((found.float() - expected).abs().max() / expected.abs().max())
            return "" if difference <= tolerance else f"they differ by {difference:.2g}"
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # a model may fail on such a cache in any way, or the library on its layers
            return f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        finally:
            self._drop_buffers()
            self.processed.clear()

    def reset(self) -> KVCache:
        """Forget everything, as the weights may have changed; return the KV cache to fill, whose contents are invalid."""
        self._weights_changed = True
        if not self._keeps_buffers():
            self._drop_buffers()
            if self.graphs is not None:
                self.graphs.clear()
        return self._kv_cache

    def _drop_buffers(self) -> None:
        self._kv_cache, self._weights, self._head = KVCache(self._on_gpu), None, []

    def _has_room_to_merge(self) -> bool:
        """Whether copies of all weights, with adapters merged or stacked, are small compared with the memory there is."""
        size = sum(parameter.numel() for parameter in self._policy.model.parameters()) * self._policy.dtype.itemsize
        share = MERGED_FRACTION if self._on_gpu else KEPT_FRACTION / 2
        return size <= share * _device_memory(self._policy.device)

    def _keeps_buffers(self) -> bool:
        kept = self._kv_cache.nbytes + (self._weights.nbytes if self._weights else 0)
        kept += sum(copied.nbytes for copied in self._head)
        return kept <= KEPT_FRACTION * _device_memory(self._policy.device)

    def padded_rows(self, count: int) -> int:
        """Return the number of rows of the KV cache, padding included, in a decoding step of ``count`` rows."""
        return bucket_size(count, 8) if self.graphs else count

    def prefill(self, new_ids: list[list[int]], rows: list[int], lengths: list[int]) -> None:
        """Append new ids to rows of the KV cache that hold ``lengths`` tokens, in one pass."""
        device, longest = self._policy.device, max(map(len, new_ids))
        if self.graphs:  # only a few sizes here as well: kernels are planned for each
            longest = bucket_size(longest, 16)
        ids = torch.tensor([part + [self._policy.pad_id] * (longest - len(part)) for part in new_ids], device=device)
        columns = torch.tensor(lengths, device=device)[:, None] + torch.arange(longest, device=device)
        max_length = max(length + len(part) for part, length in zip(new_ids, lengths, strict=True))
        width = longest + max(lengths)  # with room for the padding of the longest one
        self._kv_cache.reserve(1 + max(rows), width)
        if self.graphs:
            width = min(bucket_size(width, 256), self._kv_cache.width)
        self.processed["prefill"] += ids.numel()
        self._run(ids, columns, torch.tensor(rows, device=device), width, max_length)

    def decode(self, ids: list[int], lengths: list[int], max_length: int, draw: Draw, steps: int = 1) -> None:
        """Run ``steps`` more tokens of each of the first rows of the KV cache, without waiting for the device in between.

        Args:
            ids: the first of these tokens, for each row.
            lengths: how many tokens each row holds so far.
            max_length: tokens of the longest conversation with an open turn, its first new one included.
            draw: function from the hidden states [rows, H] of a token to the token after it, int64 [rows].
        """
        count = len(ids)
        # No open turn goes further. Neither may rows whose turns end earlier, or some models would change all positions.
        width = int(min(steps + max(lengths), self._policy.max_length))
        last = width - 1
        if self.graphs:
            padding = self.padded_rows(count) - count
            ids, lengths = ids + [self._policy.pad_id] * padding, lengths + [0] * padding
        self._kv_cache.reserve(len(ids), width)
        if self.graphs:  # a few widths, or a single one where rows are read up to their own length
            most = self._kv_cache.width
            width = most if self._reads_places else min(bucket_size(width, 256), most)
        self.processed["decode"] += steps * len(ids)
        self.processed["decode_steps"] += steps
        inputs, columns = torch.tensor([ids, lengths], device=self._policy.device)[..., None]
        for step in range(steps):
            if self.graphs and self._kv_cache.nbytes and not self._weights_changed:
                hidden = self.graphs(self._decode_step, inputs, columns, width, self._kv_cache.version)
            else:
                hidden = self._run(inputs, columns, slice(0, len(ids)), width, max_length + step)
            inputs[:count, 0] = draw(hidden[:count, -1])
            columns.add_(1).clamp_(max=last)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute the float32 logits [..., V] of hidden states [..., H] of the last pass."""
        return self._policy.logits(hidden, self._head)

    def _decode_step(self, ids: torch.Tensor, columns: torch.Tensor, width: int) -> torch.Tensor:
        return self._run(ids, columns, slice(0, len(ids)), width, width)

    def _run(
        self, ids: torch.Tensor, columns: torch.Tensor, rows: torch.Tensor | slice, width: int, max_length: int
    ) -> torch.Tensor:
        """Compute the hidden states [m, w, H] of ids [m, w] that go into these rows and columns of the KV cache.

        Args:
            width: how many columns attention reads.
            max_length: columns from here on are padding, whose positions need only be valid for the model.
        """
        self._kv_cache.set_positions(rows, columns, width)
        positions = columns.clamp(max=max_length - 1)
        masks = {} if self._reads_places else self._attention_masks(columns, width)
        if not self._runs_as_llama:
            converted = {kind: self._policy.to_model_mask(mask) for kind, mask in masks.items()}
            return self._backbone(
                ids, attention_mask=converted if len(masks) > 1 else converted.popitem()[1], position_ids=positions,
                past_key_values=self._kv_cache, use_cache=True,
            ).last_hidden_state  # fmt: skip
        if self._weights is None:
            stacks = self._merges and self._on_gpu
            self._weights = llama.CastWeights(self._backbone, self._policy.dtype, self._merges, stacks, self._packs)
        elif self._weights_changed:
            self._weights.refresh()
        head = self._policy.model.get_output_embeddings()
        if self._weights_changed and self._packs and type(head) is torch.nn.Linear:
            self._head = [pack(head.weight), *([] if head.bias is None else [head.bias.detach()])]
        self._weights_changed = False
        attention_mask = next(iter(masks.values()), None)  # there is one kind of layer
        # PyTorch 2.11 compiles in one thread at a time: the one that trains.
        parts = self._parts if threading.current_thread() is threading.main_thread() else llama_parts.Parts()
        caching = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # as in a capture, in which nothing can be compiled for another state
        try:
            return llama.forward(self._backbone, self._weights, ids, positions, attention_mask, self._kv_cache, parts)
        finally:
            torch.set_autocast_cache_enabled(caching)

    def _attention_masks(self, columns: torch.Tensor, width: int) -> dict[str, torch.Tensor]:
        """Mask the columns of the cache that tokens in ``columns`` [m, w] attend to: bool [m, 1, w, width] by kind of layer."""
        key, query = torch.arange(width, device=columns.device), columns[:, None, :, None]
        causal = key <= query
        return {
            kind: causal if kind == "full_attention" else causal & (key > query - self._config.sliding_window)
            for kind in self._kinds
        }


def _device_memory(device: torch.device) -> int:
    """Return the memory that this process has of a device or can have, beside other processes, in bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return memory_share()
