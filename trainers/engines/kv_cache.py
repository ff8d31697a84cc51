"""Keys and values of many conversations, one row each, in buffers that grow."""

from typing import Any

import torch
from transformers import Cache

from trainers.engines.cuda_graphs import bucket_size


class KVCache(Cache):
    """The keys and values of each layer, [rows, heads, width, D].

    Tokens fill a row from the first column; the engine masks what is after them. Call `set_positions` before each pass.

    Args:
        on_gpu: buffers grow by little at a time, since a GPU has little memory; otherwise they at least double.

    Attributes:
        width: columns that there is room for.
        version: changes whenever the buffers move to another address.
        rows, columns: int64 [m] and [m, w], where the tokens of the pass are stored.
    """

    def __init__(self, on_gpu: bool = False) -> None:
        super().__init__(layers=[])
        self._buffers: list[list[torch.Tensor]] = []
        self._num_rows = self.width = self.version = 0
        self._on_gpu = on_gpu

    def set_positions(self, rows: torch.Tensor | slice, columns: torch.Tensor, width: int) -> None:
        """Set where the tokens of the next pass are stored.

        Args:
            rows: int64 [m], or a slice of m rows where each gets a single token.
            columns: int64 [m, w], the column of each token.
            width: how many columns attention reads.
        """
        self._pass_rows, self.columns, self._pass_width = rows, columns, width
        # Made once for all layers: each of them would ask the device again.
        self.rows = torch.arange(len(columns), device=columns.device) if isinstance(rows, slice) else rows

    def reserve(self, rows: int, width: int) -> None:
        """Make room for this many rows and columns."""
        if rows <= self._num_rows and width <= self.width:
            return
        if rows > self._num_rows:  # on a GPU as many as a decoding step has, padding included
            self._num_rows = bucket_size(rows, 8) if self._on_gpu else max(rows, 2 * self._num_rows)
        if width > self.width:
            self.width = max(width + 32, int((1.25 if self._on_gpu else 2) * self.width))
        for layer in self._buffers:
            for i, buffer in enumerate(layer):
                layer[i] = self._grow(buffer)  # one by one: twice all of them may not fit
        self.version += 1

    def _grow(self, old: torch.Tensor) -> torch.Tensor:
        if old.shape[0] == self._num_rows and old.shape[2] == self.width:
            return old
        new = old.new_zeros(self._num_rows, old.shape[1], self.width, old.shape[3])
        new[: old.shape[0], :, : old.shape[2]] = old
        return new

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values of a layer, [m, heads, w, D]; return those that attention reads, [m, heads, width, D]."""
        key_states = key_states.to(value_states.dtype)  # under autocast the rotary embedding makes them float32
        keys, values = self.buffers(layer_idx, key_states, value_states)
        return self._store(keys, key_states), self._store(values, value_states)

    def buffers(self, layer: int, *states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of a layer [rows, heads, width, D], made for ``states`` [m, heads, w, D] at first use."""
        if layer == len(self._buffers):
            shape = self._num_rows, states[0].shape[1], self.width
            self._buffers.append([x.new_zeros(*shape, x.shape[-1]) for x in states])
            self.version += 1
        keys, values = self._buffers[layer]
        return keys, values

    def _store(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        read = buffer[:, :, : self._pass_width][self._pass_rows]  # a view for a slice, a copy for a tensor
        if isinstance(self._pass_rows, slice):  # one token a row
            read[self.rows, :, self.columns[:, 0]] = states[:, :, 0]
        else:
            read.scatter_(2, self.columns[:, None, :, None].expand_as(states), states)
            buffer[self._pass_rows, :, : self._pass_width] = read
        return read

    def copy_rows(self, sources: list[int], targets: list[int], width: int) -> None:
        """Copy rows onto others, over their first ``width`` columns."""
        self.reserve(1 + max(sources + targets), width)
        if not self._buffers:
            return
        # On a GPU each list of indices would wait for its own upload.
        from_rows, to_rows = torch.tensor([sources, targets], device=self._buffers[0][0].device)
        for layer in self._buffers:
            for buffer in layer:
                buffer[to_rows, :, :width] = buffer[from_rows, :, :width]

    @property
    def nbytes(self) -> int:
        """The size of the buffers, in bytes."""
        return sum(buffer.nbytes for layer in self._buffers for buffer in layer)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: models would derive positions from the length, and here positions are always given."""
        return 0
