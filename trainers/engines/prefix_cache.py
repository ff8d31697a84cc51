"""Shared prefixes in the KV cache: which conversations have the same tokens, and in which row.

For 64 episodes on 8 questions, only a fifth of the tokens go through the model (docs/speed.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trainers.engines.kv_cache import KVCache


@dataclass(slots=True, eq=False)
class CachedSequence:
    """A sequence of tokens that conversations have in common."""

    index: int  # its row in the KV cache
    keys: list[int]  # the conversations
    ids: list[int] = field(default_factory=list)  # the cached tokens, with which each of the conversations begins
    next_id: int | None = None  # the token that is run next, if a turn is open


class PrefixCache:
    """The sequences in a KV cache. Conversations with the same tokens share one, which is copied when they differ."""

    def __init__(self, kv_cache: KVCache):
        self.kv_cache = kv_cache
        self.sequences: list[CachedSequence] = []
        self._sequence_of: dict[int, CachedSequence] = {}
        self._pending_copies: list[tuple[CachedSequence, CachedSequence]] = []

    def match(self, prompts: dict[int, list[int]]) -> dict[CachedSequence, list[int]]:
        """Find or begin the sequence of each conversation; return each with its prompt's ids, some of them cached.

        Conversations with equal prompts share a sequence. One whose prompt does not extend its cached tokens begins anew.
        """
        groups: dict[tuple[CachedSequence | None, tuple[int, ...]], list[int]] = {}
        for key, prompt in prompts.items():
            sequence = self._sequence_of.get(key)
            if sequence is not None and (
                len(prompt) <= len(sequence.ids) or prompt[: len(sequence.ids)] != sequence.ids
            ):
                self._remove(key, sequence)
                sequence = None
            groups.setdefault((sequence, tuple(prompt[len(sequence.ids) if sequence else 0 :])), []).append(key)
        matched = {}
        for (sequence, _), keys in groups.items():
            matched[self._add(keys) if sequence is None else self.fork(sequence, keys)] = prompts[keys[0]]
        self.copy_forks()
        return matched

    def fork(self, sequence: CachedSequence, keys: list[int]) -> CachedSequence:
        """Give these conversations a copy of their sequence, unless no others share it; `copy_forks` copies the cache later."""
        if len(keys) == len(sequence.keys):
            return sequence
        sequence.keys = [key for key in sequence.keys if key not in keys]
        fork = self._add(keys, sequence.ids.copy())
        self._pending_copies.append((sequence, fork))
        return fork

    def copy_forks(self) -> None:
        """Copy the keys and values of all forks since the last call, at once."""
        if self._pending_copies:
            sources, targets = zip(*self._pending_copies, strict=True)
            width = max(len(s.ids) for s in targets)
            self.kv_cache.copy_rows([s.index for s in sources], [s.index for s in targets], width)
            self._pending_copies = []

    def copy_prefix(self, source: CachedSequence, targets: Sequence[CachedSequence], ids: list[int]) -> None:
        """Copy the first tokens of a sequence, ``ids``, into empty sequences."""
        self.kv_cache.copy_rows([source.index] * len(targets), [target.index for target in targets], len(ids))
        for target in targets:
            target.ids = list(ids)

    def move_to_front(self, sequences: list[CachedSequence]) -> None:
        """Exchange rows of the KV cache so that these sequences have the first rows."""
        chosen = {sequence.index for sequence in sequences}
        inside = [i for i in range(len(sequences)) if i not in chosen]
        outside = [i for i in chosen if i >= len(sequences)]
        if inside:
            width = max(len(self.sequences[i].ids) for i in inside + outside)
            self.kv_cache.copy_rows(inside + outside, outside + inside, width)
            for a, b in zip(inside, outside, strict=True):
                self.sequences[a], self.sequences[b] = self.sequences[b], self.sequences[a]
                self.sequences[a].index, self.sequences[b].index = a, b

    def _add(self, keys: list[int], ids: list[int] | None = None) -> CachedSequence:
        sequence = CachedSequence(len(self.sequences), keys, ids or [])
        self.sequences.append(sequence)
        self._sequence_of |= dict.fromkeys(keys, sequence)
        return sequence

    def _remove(self, key: int, sequence: CachedSequence) -> None:
        del self._sequence_of[key]
        sequence.keys.remove(key)
        if not sequence.keys:
            last = self.sequences.pop()
            if last is not sequence:
                self.kv_cache.copy_rows([last.index], [sequence.index], len(last.ids))
                self.sequences[sequence.index], last.index = last, sequence.index
