"""Keys and values of many conversations, a row for each, in buffers that grow."""

import torch
from transformers import Cache


class KeyValues(Cache):
    """What attention remembers: of each layer, keys and values [rows, heads, width, D].

    A row is full from its first column to its length, which the engine knows and masks what lies behind; it is never
    infinite, or it would show through the mask. Before a pass through the model, `aim` says where its tokens go.

    Attributes:
        version: another number whenever the buffers lie somewhere else.
    """

    def __init__(self):
        super().__init__(layers=[])
        self._buffers: list[list[torch.Tensor]] = []
        self._rows = self._width = self.version = 0

    def aim(self, rows: torch.Tensor | slice, positions: torch.Tensor, width: int) -> None:
        """The next pass is over tokens of these rows, [m], at ``positions``, int64 [m, w], and looks at ``width`` columns."""
        self._target, self._positions, self._look = rows, positions, width

    def reserve(self, rows: int, width: int) -> None:
        """Make room, for twice as much as there was or what is asked for, whichever is more."""
        if rows <= self._rows and width <= self._width:
            return
        if rows > self._rows:
            self._rows = max(rows, 2 * self._rows)
        if width > self._width:
            self._width = max(width + 32, 2 * self._width)
        self._buffers = [[self._grown(buffer) for buffer in layer] for layer in self._buffers]
        self.version += 1

    def _grown(self, old: torch.Tensor) -> torch.Tensor:
        if old.shape[0] == self._rows and old.shape[2] == self._width:
            return old
        new = old.new_zeros(self._rows, old.shape[1], self._width, old.shape[3])
        new[: old.shape[0], :, : old.shape[2]] = old
        return new

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args, **kwargs):
        """Called by each attention layer: what is new, [m, heads, w, D], goes in; what is to be looked at comes out."""
        key_states = key_states.to(value_states.dtype)  # under autocast the rotation of positions makes them float32
        if layer_idx == len(self._buffers):
            shape = self._rows, key_states.shape[1], self._width
            self._buffers.append([x.new_zeros(*shape, x.shape[-1]) for x in (key_states, value_states)])
            self.version += 1
        found = []
        for buffer, states in zip(self._buffers[layer_idx], (key_states, value_states), strict=True):
            seen = buffer[:, :, : self._look][self._target]  # a view for a slice, a copy for a tensor
            if isinstance(self._target, slice):  # one token a row
                seen[torch.arange(len(seen), device=seen.device), :, self._positions[:, 0]] = states[:, :, 0]
            else:
                seen.scatter_(2, self._positions[:, None, :, None].expand_as(states), states)
                buffer[self._target, :, : self._look] = seen
            found.append(seen)
        return tuple(found)

    def copy(self, sources: list[int], targets: list[int], width: int) -> None:
        """Make rows equal to others over their first ``width`` columns."""
        for layer in self._buffers:
            for buffer in layer:
                buffer[targets, :, :width] = buffer[sources, :, :width]

    def swap(self, a: list[int], b: list[int], width: int) -> None:
        """Let rows ``a`` and ``b`` change places, over their first ``width`` columns."""
        self.copy(a + b, b + a, width)

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for layer in self._buffers for buffer in layer)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Asked by models that would find positions by it; they are always given."""
        return 0
