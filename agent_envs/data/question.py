"""A question of a benchmark, and the files that questions are kept and published in, row by row."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from retrieval_index.corpus import unescape
from retrieval_index.formats import Rows, csv_rows, json_rows, jsonl_rows, parquet_rows, tsv_rows

Record = Mapping[str, object]
_DATA = re.compile(r'\s*\{[^\[\]{}]*"Data"\s*:\s*\[')


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its gold answer and supporting facts.

    `supporting_titles` names the gold paragraphs; in MuSiQue a title may come twice. `supporting_paragraphs` has the
    `paragraph_key` of each, or is empty. `supporting_facts` are HotpotQA's and 2WikiMultihopQA's (title, sentence index)
    pairs; `decomposition` MuSiQue's single-hop questions and answers.
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


def read_questions(path: str | Path) -> tuple[Question, ...]:
    """Read questions from a file of rows with the fields of `Question`.

    `id`, `question` and `answer` are required; other fields may be absent or null; unknown ones are ignored. Without
    `supporting_titles` they are those of `supporting_facts`. HTML entities become characters, as they do in passages.

    Raises:
        ValueError: a row is no such object or has the id of another, by file, line and field, or there is no question.
    """
    questions: list[Question] = []
    places: dict[str, str] = {}
    for where, record in numbered_records(Path(path)):
        try:
            questions.append(question_from_row(record))
            note_id(questions[-1].id, Path(where).name, places)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    if not questions:
        raise ValueError(f"{path}: there is no question in it")
    return tuple(questions)


def note_id(id: str, place: str, places: dict[str, str]) -> None:
    """Note the place of the question of this id. Raises ValueError: a question noted before has the same id."""
    if (other := places.setdefault(id, place)) != place:
        raise ValueError(f"the id {id!r:.80} is that of {other} too: give every question an id of its own")


def question_from_row(row: object) -> Question:
    """Check a decoded row and make a `Question` of it.
    Raises ValueError: naming the field that is missing or of the wrong type."""
    if not isinstance(row, Mapping):
        raise ValueError(f"expected an object with id, question and answer, got {type(row).__name__}")
    if isinstance(row.get("id"), int) and not isinstance(row["id"], bool):
        row = {**row, "id": str(row["id"])}
    facts = _read_optional(row, "supporting_facts", _each(_fact))
    named = tuple(dict.fromkeys(title for title, _ in facts or ()))
    titles = _read_optional(row, "supporting_titles", _each(_text)) or named
    paragraphs = _read_optional(row, "supporting_paragraphs", _each(_text)) or ()
    if paragraphs and len(paragraphs) != len(titles):
        got = f"got {len(paragraphs)} for {len(titles)}; where two have one title, the title twice"
        raise ValueError(f"'supporting_paragraphs': give one for each of supporting_titles, {got}")
    return Question(
        id=_read_required(row, "id", _identifier),
        **{name: _read_required(row, name, _text) for name in ("question", "answer")},
        aliases=_read_optional(row, "aliases", _each(_text)) or (),
        type=_read_optional(row, "type", _text),
        supporting_titles=titles,
        supporting_paragraphs=paragraphs,
        supporting_facts=facts,
        decomposition=_read_optional(row, "decomposition", _each(_object)),
    )


def _read_required(row: Mapping, name: str, check: Callable) -> Any:
    if row.get(name) is None:
        raise ValueError(f"the row has no {name!r}")
    value = _read_optional(row, name, check)
    if not value.strip():
        raise ValueError(f"{name!r} is empty")
    return value


def _read_optional(row: Mapping, name: str, check: Callable) -> Any:
    value = row.get(name)
    try:
        return None if value is None else check(value)
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from None


def _text(value: object) -> str:
    return unescape(_identifier(value))


def _identifier(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a string, got {value!r:.80}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a lone surrogate is no text: {value!a:.80}") from None
    return value


def _each(check: Callable) -> Callable[[object], tuple]:
    def check_all(value: object) -> tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"expected a list, got {value!r:.80}")
        return tuple(map(check, value))

    return check_all


def _fact(value: object) -> tuple[str, int]:
    match value:
        case [title, int(sentence)] if not isinstance(sentence, bool):
            return _text(title), sentence
    raise ValueError(f"expected [title, sentence index], got {value!r:.80}")


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected an object, got {value!r:.80}")
    return value


def numbered_records(path: Path) -> Iterator[tuple[str, Record]]:
    """Stream records, each with its place: `file:line`, or `file: record number`.

    The extension tells the format: `.jsonl`, `.parquet`, `.tsv` and `.csv` with a header; anything else is JSON, an array or
    objects in a row, or TriviaQA's object with the records in its array `Data`.

    Raises:
        ValueError: the file breaks off, or a record is not an object, by its place.
    """
    read, label = _READERS.get(path.suffix.lower(), (_json_rows, ": record "))
    for number, record in read(path):
        if not isinstance(record, Mapping):
            raise ValueError(f"{path}{label}{number}: expected an object, got {record!r:.80}")
        yield f"{path}{label}{number}", record


def first_record(path: Path, wanted: Callable[[Record], bool]) -> Record:
    """The first record that is wanted; empty if there is none."""
    return next((record for _, record in numbered_records(path) if wanted(record)), {})


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
FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")  # those that a name can tell
