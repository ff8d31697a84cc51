"""Passages and the store that holds them: a list in memory, or two files on disk.

The stored form is `passages.jsonl`, with one line of canonical JSON per passage, and `offsets.npy`, the byte offset of
each line. Any passage takes one read.
"""

import hashlib
import html.entities
import json
import os
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Self
from zlib import crc32

import numpy as np

from retrieval_index import durable
from retrieval_index.verified_array import IndexCorrupt, read_array, read_sums, save_sums

PASSAGES_FILE = "passages.jsonl"
OFFSETS_FILE = "offsets.npy"
_CHUNK = 1 << 22
_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class Passage:
    """A unit of retrieval, usually a paragraph.

    `score` is set only on search results, and is ignored when passages are compared.
    """

    id: str
    title: str
    text: str
    score: float | None = field(default=None, compare=False)


_ENTITY = re.compile(r"&(?:(\w+);|#\d+;|#[xX][0-9a-fA-F]+;)")


def unescape(text: str) -> str:
    """Replace the HTML entities of a text by their characters ("&amp;" by "&"), once. An entity must be complete, with its
    semicolon: "&copy" and "&copyright;" stay."""

    def character(entity: re.Match) -> str:
        return html.unescape(entity[0]) if not entity[1] or f"{entity[1]};" in html.entities.html5 else entity[0]

    return _ENTITY.sub(character, text) if "&" in text else text


def title_from(text: str) -> str:
    """Make a title for a passage that has none: the first six words of its text, at most 80 characters."""
    return " ".join(text.split()[:6])[:80]


def split_contents(contents: str, title: str | None = None) -> tuple[str, str]:
    """Split the `contents` of FlashRAG and Search-R1 into title and text: the title is the first line, mostly in double quotes.

    One pair of quotes around the title is removed; '"Heroes" (album)' stays whole. A single line is text. If the
    ``title`` is given, it is returned, and a first line that equals it is removed from the text.
    """
    if title is not None:
        heads = (head for head in (f'"{title}"\n', f"{title}\n") if contents.startswith(head))
        return title, contents.removeprefix(next(heads, ""))
    first, newline, text = contents.partition("\n")
    if not newline:
        return title_from(contents), contents
    quoted = len(first) > 1 and first[0] == first[-1] == '"'
    return first[1:-1] if quoted else first, text


def passage_from_row(row: object) -> Passage:
    """Make a passage from a JSON value; raises ValueError if the value is invalid. An `id` that is a number becomes a
    string, HTML entities in title and text become characters, other fields are ignored."""
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
    passage = Passage(str(row["id"]), unescape(row["title"]), unescape(row["text"]))
    f"{passage.id}{passage.title}{passage.text}".encode()  # raises for lone surrogates: legal JSON, not text
    return passage


def encode_passage(passage: Passage) -> bytes:
    """Encode a passage as its canonical line, UTF-8 with a newline. The SHA-256 of all lines is a corpus's fingerprint."""
    row = {"id": passage.id, "title": passage.title, "text": passage.text}
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _decode_passage(line: bytes) -> Passage:
    # Takes half the time of json.loads, which guesses the encoding and looks for white space first.
    return Passage(**_decode(str(line, "utf-8"))[0])


def _decode_title(line: bytes) -> str:
    _, _, rest = line.partition(b'","title":"')  # unambiguous: quotes in values are escaped
    title, _, _ = rest.partition(b'","text":"')
    return json.loads(b'"%b"' % title) if b"\\" in title else str(title, "utf-8")


class Corpus(Sequence[Passage]):
    """Random access to passages by row number, as indexes return them.

    `Corpus(passages)` holds them in memory; `Corpus.open(folder)` reads them from disk on request. Both pickle; the one on
    disk pickles as its path.
    """

    duplicates_left_out = 0  # passages with the title and text of an earlier one

    def __init__(self, passages: "Iterable[Passage] | _StoredPassages | _JoinedPassages"):
        self._rows: list[Passage] | _StoredPassages | _JoinedPassages = (
            passages if isinstance(passages, _StoredPassages | _JoinedPassages) else list(passages)
        )

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open the corpus that `write_passages` left in `folder`; passages are read when asked for."""
        return cls(_StoredPassages(folder))

    @classmethod
    def join(cls, corpora: list[Self]) -> Self:
        """Join corpora into one, one after the other."""
        return cls(_JoinedPassages(corpora))

    def with_score(self, row: int, score: float) -> Passage:
        """Return the passage of a row as a search result."""
        passage = self._rows[row]
        if isinstance(self._rows, _StoredPassages):
            object.__setattr__(passage, "score", score)  # just read from disk, so no one else holds it
            return passage
        return Passage(passage.id, passage.title, passage.text, score)

    @property
    def folder(self) -> Path | None:
        """Folder of the corpus; None if it is in memory."""
        return self._rows.folder if isinstance(self._rows, _StoredPassages) else None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content, in hex: the same in memory and on disk, and equal to that of `passages.jsonl`."""
        rows, digest = self._rows, hashlib.sha256()
        parts = rows.lines(0, len(self)) if isinstance(rows, _StoredPassages) else [map(encode_passage, self)]
        for line in chain.from_iterable(parts):
            digest.update(line)
        return digest.hexdigest()

    def passages(self, start: int, stop: int) -> Iterator[Passage]:
        """Stream rows `start` to `stop` (exclusive) in order; from disk in large reads of a few megabytes."""
        if isinstance(self._rows, _StoredPassages):
            return self._rows.passages(start, min(stop, len(self)))
        return (self._rows[row] for row in range(start, min(stop, len(self))))

    def titles(self) -> set[str]:
        """Return all titles; those on disk are read without decoding the texts."""
        if not isinstance(self._rows, _StoredPassages):
            return {passage.title for passage in self}
        lines = chain.from_iterable(self._rows.lines(0, len(self)))
        return {_decode_title(line) for line in lines}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row):
        rows = range(len(self))[row]  # negative rows count from the end, and a row outside raises IndexError
        return self._rows[rows] if isinstance(rows, int) else [self._rows[number] for number in rows]

    def __iter__(self) -> Iterator[Passage]:
        return self.passages(0, len(self))


def write_passages(passages: Iterable[Passage], folder: str | Path) -> None:
    """Write passages into an existing folder, in the stored form. Only the offsets (8 bytes per passage) are in memory."""
    offsets = array("q", [0])
    with open(Path(folder) / PASSAGES_FILE, "wb") as blob:
        for passage in passages:
            offsets.append(offsets[-1] + blob.write(encode_passage(passage)))
    durable.write_array(Path(folder) / OFFSETS_FILE, np.array(offsets, dtype=np.int64))


def write_line_sums(folder: Path) -> None:
    """Write the CRC-32 of each line of a stored corpus beside it; nothing if there is no corpus."""
    if (folder / PASSAGES_FILE).is_file():
        with open(folder / PASSAGES_FILE, "rb") as lines:
            sums = array("L", map(crc32, lines))  # canonical JSON holds no other line feed
        save_sums(folder / PASSAGES_FILE, np.array(sums, dtype="<u4"))


class _StoredPassages:
    """The rows of a stored corpus. Each read gives its offset (pread), so threads and forks share no file position."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder).resolve()
        self.offsets = read_array(self.folder / OFFSETS_FILE)
        sums = read_sums(self.folder / PASSAGES_FILE, "<u4")
        self._sums = None if sums is None else sums.data
        if sums is not None and len(sums) != len(self):
            raise IndexCorrupt(f"{self.folder}: {len(sums):,} checksums for {len(self):,} passages")
        self._starts = self.offsets.data  # a memoryview, whose single elements are read much faster than an array's
        self.file = open(self.folder / PASSAGES_FILE, "rb", buffering=0)  # noqa: SIM115 - closed with the corpus

    def __reduce__(self):
        return _StoredPassages, (self.folder,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Passage:
        line = self._read(self._starts[row], self._starts[row + 1])
        self._check(row, line)
        return _decode_passage(line)

    def lines(self, start: int, stop: int) -> Iterator[list[bytes]]:
        """The lines of rows `start` to `stop`, in lists of a few megabytes."""
        while start < stop:
            # All rows that fit into a chunk, at least one.
            end = int(np.searchsorted(self.offsets[: stop + 1], self.offsets[start] + _CHUNK, side="right")) - 1
            end = max(end, start + 1)
            # Canonical JSON holds no other line feed.
            lines = self._read(self._starts[start], self._starts[end]).splitlines(keepends=True)
            if self._sums is not None and list(map(crc32, lines)) != list(self._sums[start:end]):
                for row, line in enumerate(lines, start):
                    self._check(row, line)
            yield lines
            start = end

    def passages(self, start: int, stop: int) -> Iterator[Passage]:
        return map(_decode_passage, chain.from_iterable(self.lines(start, stop)))

    def _check(self, row: int, line: bytes) -> None:
        if self._sums is not None and crc32(line) != self._sums[row]:
            raise IndexCorrupt(
                f"{self.folder / PASSAGES_FILE}: passage {row} is not what was written: the file was changed after it was "
                "opened. Copy the index again, or build it again."
            )

    def _read(self, start: int, stop: int) -> bytes:
        content = os.pread(self.file.fileno(), stop - start, start)
        if len(content) != stop - start:
            raise IndexCorrupt(f"{self.folder / PASSAGES_FILE}: it has lost its end after it was opened")
        return content


class _JoinedPassages:
    """The rows of several corpora, one after the other."""

    def __init__(self, corpora: Sequence[Corpus]):
        self.corpora = corpora
        self.starts = [0, *accumulate(map(len, corpora))]

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, row: int) -> Passage:
        part = bisect_right(self.starts, row) - 1
        return self.corpora[part][row - self.starts[part]]
