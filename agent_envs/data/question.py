"""A question of a benchmark, and the records of the files that questions are kept and published in."""

from __future__ import annotations

import ast
import html
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from retrieval_index.formats import Rows, csv_rows, json_rows, jsonl_rows, parquet_rows, tsv_rows

Record = Mapping[str, Any]
_DATA = re.compile(r'\s*\{[^\[\]{}]*"Data"\s*:\s*\[')


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its gold answer and what supports it.

    `supporting_titles` names the gold paragraphs; in MuSiQue a title may come twice. `supporting_paragraphs` has the
    `paragraph_key` of each, or is empty. MiniWiki's questions have `supporting_facts`, (title, sentence index) pairs, and a
    `decomposition` into single-hop questions and answers.
    """

    id: str
    question: str
    answer: str
    aliases: tuple[str, ...] = ()
    type: str | None = None
    supporting_titles: tuple[str, ...] = ()
    supporting_paragraphs: tuple[str, ...] = ()
    supporting_facts: tuple[tuple[str, int], ...] | None = None
    decomposition: tuple[Mapping[str, Any], ...] | None = field(default=None, hash=False)

    @property
    def golds(self) -> tuple[str, ...]:
        """Every answer that counts as right."""
        return (self.answer, *self.aliases)


def paragraph_key(text: str) -> str:
    """A hash of a paragraph's letters and digits, 16 hexadecimal digits: copies may differ in white space, punctuation, case
    and HTML entities."""
    letters = re.sub(r"\W+", "", html.unescape(text).casefold())
    return blake2b(letters.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def numbered_records(path: Path) -> Iterator[tuple[str, Record]]:
    """Stream records, each with its place: `file:line`, or `file: record number`.

    The extension tells the format: `.jsonl`, `.parquet`, `.tsv` and `.csv` with a header, where a list may be written in the
    cell of an answer; anything else is JSON, an array or objects in a row, or TriviaQA's object with the array `Data`.

    Raises:
        ValueError: the file breaks off, or a record is not an object; the message names the place.
    """
    read, label = _READERS.get(path.suffix.lower(), (_json_rows, ": record "))
    for number, record in read(path):
        where = f"{path}{label}{number}"
        if not isinstance(record, Mapping):
            raise ValueError(f"{where}: expected an object, got {record!r:.80}")
        try:
            record = dict(map(_read_cell, record.items())) if read in (csv_rows, tsv_rows) else record
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        yield where, record


def _read_cell(cell: tuple[str, Any]) -> tuple[str, Any]:
    name, value = cell
    return name, (read_list(value) or value) if name.strip().lower() == "answer" and isinstance(value, str) else value


def read_list(text: str) -> list | None:
    """Read the list in a cell of a table, written in Python or JSON; None for other text.
    Raises ValueError: a list without commas, as numpy writes arrays."""
    text = text.strip()
    for read in (json.loads, ast.literal_eval) if text[:1] == "[" and text[-1:] == "]" else ():
        try:
            found = read(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if read is ast.literal_eval and re.search(r"""['"]\s+['"]""", text):
            raise ValueError(f"a list without commas, {text!r:.80}: write it as JSON")
        return list(found)
    return None


def _json_rows(path: Path) -> Rows:
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        if not _DATA.match(file.read(1 << 16)):
            return json_rows(path)
    try:
        return enumerate(json.loads(path.read_text(encoding="utf-8-sig"))["Data"], start=1)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None


# Extension -> its reader, and what comes between file and number in errors.
_READERS: dict[str, tuple[Callable[[Path], Rows], str]] = {".jsonl": (jsonl_rows, ":"), ".tsv": (tsv_rows, ":")}
_READERS |= {".csv": (csv_rows, ":"), ".parquet": (partial(parquet_rows, columns_of=lambda names: names), ": row ")}
FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")  # file extensions that tell the format
