"""Passages and the store that holds them: a list in memory, or two memory-mapped files on disk.

The stored form is one line of canonical JSON a passage (`passages.jsonl`) and the byte offset of each line
(`offsets.npy`), so that any passage is one slice away and a corpus larger than memory stays on disk.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

PASSAGES_FILE = "passages.jsonl"
OFFSETS_FILE = "offsets.npy"


@dataclass(frozen=True, slots=True)
class Passage:
    """One unit of retrieval, usually a paragraph.

    `score` is set only on search results, and two passages are equal whatever their scores.
    """

    id: str
    title: str
    text: str
    score: float | None = field(default=None, compare=False)


def read_jsonl(path: str | Path) -> Iterator[Passage]:
    """Stream passages from a JSONL file: one object a line with `id`, `title` and `text`; other fields are ignored.

    Blank lines are skipped; an `id` that is a number becomes a string.

    Raises:
        ValueError: for a row that is not such an object, naming file and line.
    """
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    passage = _passage_from_row(json.loads(line.decode("utf-8-sig")))
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{path}:{number}: {error}") from None
                yield passage


def _passage_from_row(row: object) -> Passage:
    if not isinstance(row, dict):
        raise ValueError(f"expected an object with id, title and text, got {type(row).__name__}")
    missing = [name for name in ("id", "title", "text") if name not in row]
    if missing:
        raise ValueError(f"the row has no {' and no '.join(repr(name) for name in missing)}")
    if isinstance(row["id"], bool) or not isinstance(row["id"], str | int | float):
        raise ValueError(f"'id' must be a string or a number, got {row['id']!r}")
    for name in ("title", "text"):
        if not isinstance(row[name], str):
            raise ValueError(f"{name!r} must be a string, got {type(row[name]).__name__}")
    passage = Passage(str(row["id"]), row["title"], row["text"])
    f"{passage.id}{passage.title}{passage.text}".encode()  # a lone surrogate is legal JSON, and no text: say so here
    return passage


def encode_passage(passage: Passage) -> bytes:
    """The canonical line of a passage, UTF-8 with its newline. A corpus's fingerprint is the SHA-256 of its lines."""
    row = {"id": passage.id, "title": passage.title, "text": passage.text}
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class Corpus(Sequence[Passage]):
    """Random access to passages by row number; rows are what every index returns.

    `Corpus(passages)` holds them in memory; `Corpus.open(folder)` reads them from disk when asked for. Both pickle:
    the second by its path, so that worker processes share one copy of the pages.
    """

    def __init__(self, passages: Iterable[Passage]):
        self._rows: Sequence[Passage] = passages if isinstance(passages, _MappedPassages) else list(passages)

    @classmethod
    def open(cls, folder: str | Path) -> Corpus:
        """Open the corpus that `write` left in `folder`, memory-mapped."""
        return cls(_MappedPassages(folder))

    def write(self, folder: str | Path) -> None:
        """Store the corpus in an existing folder as `passages.jsonl` and `offsets.npy`."""
        if isinstance(self._rows, _MappedPassages):
            # From the open maps and not by path, where another index may have been published since.
            (Path(folder) / PASSAGES_FILE).write_bytes(self._rows.blob)
            np.save(Path(folder) / OFFSETS_FILE, self._rows.offsets, allow_pickle=False)
        else:
            write_passages(self._rows, folder)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content, in hex: the same in memory and on disk, and equal to that of `passages.jsonl`."""
        if isinstance(self._rows, _MappedPassages):
            return hashlib.sha256(self._rows.blob).hexdigest()
        digest = hashlib.sha256()
        for passage in self._rows:
            digest.update(encode_passage(passage))
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Passage:
        return self._rows[row]

    def __iter__(self) -> Iterator[Passage]:
        return iter(self._rows)

    def __repr__(self) -> str:
        where = f" at {self._rows.folder}" if isinstance(self._rows, _MappedPassages) else " in memory"
        return f"Corpus({len(self):,} passages{where})"


def write_passages(passages: Iterable[Passage], folder: str | Path) -> None:
    """Stream passages into the stored form; only the offsets (8 bytes a passage) are held in memory."""
    offsets = [0]
    with open(Path(folder) / PASSAGES_FILE, "wb") as blob:
        for passage in passages:
            offsets.append(offsets[-1] + blob.write(encode_passage(passage)))
    np.save(Path(folder) / OFFSETS_FILE, np.array(offsets, dtype=np.int64), allow_pickle=False)


class _MappedPassages(Sequence[Passage]):
    """The rows of a stored corpus. Reads are slices of a read-only map: no file position for forks to fight over."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder).resolve()
        # A plain view of the map: indexing np.memmap itself is several times slower.
        self.offsets = np.asarray(np.load(self.folder / OFFSETS_FILE, mmap_mode="r", allow_pickle=False))
        with open(self.folder / PASSAGES_FILE, "rb") as blob:
            empty = len(self.offsets) == 1  # and an empty file cannot be mapped
            self.blob = b"" if empty else mmap.mmap(blob.fileno(), 0, access=mmap.ACCESS_READ)

    def __reduce__(self):
        return _MappedPassages, (self.folder,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Passage:
        row = range(len(self))[row]  # negative rows count from the end, and a row outside raises IndexError
        return Passage(**json.loads(self.blob[self.offsets[row] : self.offsets[row + 1]]))

    def __iter__(self) -> Iterator[Passage]:
        return (self[row] for row in range(len(self)))
