"""Which conversations are at one point of one history, and where in the cache it lies."""

from dataclasses import dataclass, field

from trainers.engines.kv_cache import KeyValues


@dataclass(slots=True, eq=False)
class Row:
    """A history that conversations have in common.

    Attributes:
        index: its row in the cache.
        keys: the conversations.
        ids: what the cache holds; all of them begin with it.
        next: the token that goes in next, where a turn is open.
    """

    index: int
    keys: list[int]
    ids: list[int] = field(default_factory=list)
    next: int | None = None


class Histories:
    """The rows of a cache. Conversations that have the same history share one, until they differ: it is copied then.

    Args:
        cache: whatever it holds is written over.
    """

    def __init__(self, cache: KeyValues):
        self.cache = cache
        self.rows: list[Row] = []
        self._row_of: dict[int, Row] = {}
        self._copies: list[tuple[Row, Row]] = []

    def extend(self, prompts: dict[int, list[int]]) -> dict[Row, list[int]]:
        """The row of each history that ``prompts`` end in, and all of its ids, of which the row may hold the first.

        What was seen of a conversation is used where its prompt goes on from there; else it starts over.
        """
        groups: dict[tuple[Row | None, tuple[int, ...]], list[int]] = {}
        for key, prompt in prompts.items():
            row = self._row_of.get(key)
            if row is not None and (len(prompt) <= len(row.ids) or prompt[: len(row.ids)] != row.ids):
                self._leave(key, row)
                row = None
            groups.setdefault((row, tuple(prompt[len(row.ids) if row else 0 :])), []).append(key)
        found = {}
        for (row, _), keys in groups.items():
            found[self._new(keys) if row is None else self.part(row, keys)] = prompts[keys[0]]
        self.copy()
        return found

    def part(self, row: Row, keys: list[int]) -> Row:
        """These conversations of a row in a row of their own, which `copy` has yet to fill; the same row for all."""
        if len(keys) == len(row.keys):
            return row
        row.keys = [key for key in row.keys if key not in keys]
        new = self._new(keys, row.ids.copy())
        self._copies.append((row, new))
        return new

    def copy(self) -> None:
        """Fill the rows that `part` made."""
        if self._copies:
            sources, targets = zip(*self._copies, strict=True)
            self.cache.copy([r.index for r in sources], [r.index for r in targets], max(len(r.ids) for r in targets))
            self._copies = []

    def fill(self, source: Row, target: Row, ids: list[int]) -> None:
        """Let a row begin with ``ids``, as another one does."""
        self.cache.copy([source.index], [target.index], len(ids))
        target.ids = list(ids)

    def to_front(self, rows: list[Row]) -> None:
        """Change places in the cache, so that ``rows`` are the first ones."""
        chosen = {row.index for row in rows}
        inside = [i for i in range(len(rows)) if i not in chosen]
        outside = [i for i in chosen if i >= len(rows)]
        if inside:
            width = max(len(self.rows[i].ids) for i in inside + outside)
            self.cache.swap(inside, outside, width)
            for a, b in zip(inside, outside, strict=True):
                self.rows[a], self.rows[b] = self.rows[b], self.rows[a]
                self.rows[a].index, self.rows[b].index = a, b

    def _new(self, keys: list[int], ids: list[int] | None = None) -> Row:
        row = Row(len(self.rows), keys, ids or [])
        self.rows.append(row)
        self.cache.reserve(len(self.rows), 0)
        self._row_of |= dict.fromkeys(keys, row)
        return row

    def _leave(self, key: int, row: Row) -> None:
        del self._row_of[key]
        row.keys.remove(key)
        if not row.keys:
            last = self.rows.pop()
            if last is not row:
                self.cache.copy([last.index], [row.index], len(last.ids))
                self.rows[row.index], last.index = last, row.index
