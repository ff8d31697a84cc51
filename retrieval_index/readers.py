"""Readers of corpora: `read_passages` finds the format and streams the passages.

The name of a file gives its format. The fields of its first row give the kind of rows: our passages, those of FlashRAG, Search-R1
and DPR, or questions of HotpotQA, 2WikiMultihopQA and MuSiQue with their paragraphs. Text and Markdown are cut into passages.
"""

import os
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import NoReturn

from retrieval_index import formats
from retrieval_index.corpus import Passage, passage_from_row, split_contents, title_from
from retrieval_index.hub import ask_hub
from retrieval_index.markdown import read_markdown
from retrieval_index.publish import is_index, outside_indexes


def read_passages(source: str | Path, *, split: str | None = None) -> Iterator[Passage]:
    """Stream the passages of a corpus, in its order and with its duplicates.

    Args:
        source: one of
            - a file: `.jsonl`, `.json` (an array, objects in a row, or one object, sentences by title), `.tsv` or
              `.csv`, each also with `.gz` or `.zst`, or `.parquet`;
            - a folder of such files, with its subfolders, read in the order of their paths, without `.md` files and names
              with a leading `.` or `_`;
            - a text, `.txt` or `.md`, or a folder of texts without other corpus files, cut into passages of up to 1,000
              characters, titled by the first level-1 Markdown heading or the file's name, with ids such as "notes/oslo.md#2";
            - a folder of `datasets.save_to_disk`, or `hf:owner/name[:config]` on the hub (or a local path after `hf:`).
            A row has `id`, `title`, `text`; or `id`, `contents`; or the `context` or `paragraphs` of a question. All rows
            of a file have the form of its first row. A missing `id` becomes a hash of the content (see `make_passage`), a
            missing `title` the first words of the text.
        split: split of a data set; needed if it has several.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: at once for an invalid source; during the iteration for a bad row, with its file and number.
    """
    name, path = str(source), Path(source)
    if name.startswith("hf:"):
        return _dataset_passages(_open_hub(name), split, name)
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}; a data set on the hub is written hf:owner/name")
    if any((path / mark).is_file() for mark in ("dataset_dict.json", "state.json")):
        return _dataset_passages(_open_saved(path), split, name)
    if split is not None:
        raise ValueError(f"{path} has no splits: split is for data sets of the hub and of save_to_disk")
    if path.suffix.lower() in _TEXT and path.is_file():
        return _text_passages(path, _name_of(path, path.parent))
    readers = _folder_readers(path) if path.is_dir() else [_file_reader(path)]
    return chain.from_iterable(reader() for reader in readers)


def make_passage(title: str, text: str) -> Passage:
    """Make a passage whose id is a hash of its content, so the same paragraph has the same id in every file and split."""
    passage = passage_from_row({"id": "", "title": title, "text": text})
    digest = blake2b(f"{passage.title}\n{passage.text}".encode(), digest_size=8).hexdigest()
    return replace(passage, id=digest)


def context_passages(record: dict) -> list[Passage]:
    """Return the passages of the `context` of a question of HotpotQA or 2WikiMultihopQA, without empty paragraphs."""
    passages, rows = [], record["context"]
    rows = rows[0] if isinstance(rows, list) and rows else rows
    sentences_are = "content" if isinstance(rows, dict) and "content" in rows else "sentences"  # FlashRAG's 2Wiki
    for title, sentences in _pairs(record, "context", "title", sentences_are):
        if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
            raise ValueError(f"'context': expected a list of sentences under {title!r}")
        # The sentences of HotpotQA begin with the space between them, those of 2WikiMultihopQA do not.
        spaced = any(sentence[:1].isspace() for sentence in sentences[1:])
        if text := ("" if spaced else " ").join(sentences).strip():
            passages.append(make_passage(title, text))
    return passages


def paragraph_passages(record: dict) -> list[Passage]:
    """Return the passages of the `paragraphs` of a question of MuSiQue."""
    return [make_passage(*pair) for pair in _pairs(record, "paragraphs", "title", "paragraph_text")]


def _pairs(record: dict, field: str, first: str, second: str) -> list[tuple]:
    """Return pairs from a list of pairs, a list of objects, or an object of two lists (as in copies on the hub)."""
    rows = record[field]
    if isinstance(rows, dict):
        columns = [column for column in (rows.get(first), rows.get(second)) if isinstance(column, list)]
        same = len(columns) == 2 and len(columns[0]) == len(columns[1])
        rows = list(zip(*columns, strict=True)) if same else None
    elif isinstance(rows, list):
        rows = [(row.get(first), row.get(second)) if isinstance(row, dict) else row for row in rows]
    if not isinstance(rows, list) or not all(isinstance(row, list | tuple) and len(row) == 2 for row in rows):
        raise ValueError(f"{field!r}: expected pairs of {first!r} and {second!r}")
    return rows


def _passage(row: dict, title: str | None, text: str) -> Passage:
    """Make a passage. A missing id becomes a hash of the content, a missing title the first words of the text."""
    title = title_from(text) if title is None else title
    ids = [id for id in (row.get("id"), row.get("_id")) if id not in (None, "")]  # None or "": a blank cell
    return passage_from_row({"id": ids[0], "title": title, "text": text}) if ids else make_passage(title, text)


def _string(row: dict, name: str) -> str:
    if not isinstance(row[name], str):
        raise ValueError(f"{name!r} must be a string, got {type(row[name]).__name__}")
    return row[name]


# The field that tells the form of a row -> the function that makes its passages.
_FORMS: dict[str, Callable[[dict], Iterable[Passage]]] = {
    "contents": lambda row: [_passage(row, *split_contents(_string(row, "contents"), row.get("title")))],
    "context": context_passages,
    "paragraphs": paragraph_passages,
    "text": lambda row: [_passage(row, row.get("title"), _string(row, "text"))],
}
_OPTIONAL = ("id", "_id", "title")
_NEEDED = "id, title, text; or id, contents; or context; or paragraphs; id and title may be left out"


def _field_of(names: Iterable[str]) -> str:
    """Return the key of `_FORMS` for a row with fields of these names."""
    names = list(names)
    if {"id", "title", "text"} <= set(names):
        return "text"
    for field in _FORMS:
        if field in names:
            return field
    found = ", ".join(repr(name)[:40] for name in names[:10]) + ", …" * (len(names) > 10)
    raise ValueError(f"the fields are {found or 'none'}; needed are {_NEEDED}")


def _is_titles(row: dict) -> bool:
    """Whether an object is a whole corpus: a list of sentences for each title."""
    texts = list(row.values())
    lists = all(isinstance(text, list) and text and isinstance(text[0], str) for text in texts)
    return lists and len(texts) > 1 and not _FORMS.keys() & row.keys()


def _titled_passages(row: dict) -> Iterator[Passage]:
    for title, sentences in row.items():
        if not all(isinstance(sentence, str) for sentence in sentences):
            raise ValueError(f"expected a list of sentences under {title!r}")
        yield make_passage(title, " ".join(sentences))


def _columns_of(names: Iterable[str]) -> list[str]:
    """Return the columns to read from a table that has the columns ``names``."""
    names = list(names)
    return [name for name in names if name == _field_of(names) or name in _OPTIONAL]


def _to_passages(rows: formats.Rows, where: str) -> Iterator[Passage]:
    """Stream the passages of rows, which all have the form of the first. Errors name a row by `where` and its number."""
    field = None
    for number, row in rows:
        try:
            if not isinstance(row, dict):
                raise ValueError(f"expected an object, got {type(row).__name__}")
            if field is None and _is_titles(row):  # HippoRAG's and KAG's corpora: one object
                yield from _titled_passages(row)
                continue
            field = field or _field_of(row)
            if field not in row:
                raise ValueError(f"the row has no {field!r}")
            passages = _FORMS[field](row)
        except ValueError as error:
            raise ValueError(f"{where}{number}: {error}") from None
        yield from passages


# Extension -> its reader, and the text between file and row number in errors.
_READERS: dict[str, tuple[Callable[[Path], formats.Rows], str]] = {
    ".jsonl": (formats.jsonl_rows, ":"),
    ".json": (formats.json_rows, ": record "),
    ".tsv": (formats.tsv_rows, ":"),
    ".csv": (formats.csv_rows, ":"),
    ".parquet": (partial(formats.parquet_rows, columns_of=_columns_of), ": row "),
}


def _file_reader(path: Path) -> Callable[[], Iterator[Passage]]:
    """Return a reader that opens the file when called, so that only one file of a folder is open at a time."""
    plain = _plain(path)
    extension = plain.suffix.lower()
    if extension not in _READERS or (extension == ".parquet" and plain != path):
        known = ".jsonl, .json, .tsv and .csv, each also with .gz or .zst, and .parquet; for text .txt and .md"
        raise ValueError(f"{path}: cannot tell the format by the name; known are {known}")
    rows, label = _READERS[extension]
    return lambda: _to_passages(rows(path), f"{path}{label}")


_TEXT = (".txt", ".md")
_DOCUMENTS = (".rst", ".html", ".htm", ".org", ".tex", ".text", ".rtf", ".pdf", ".doc", ".docx", ".odt", ".epub")
_ROOM = 1000  # maximum number of characters of a passage that is cut from a text


def _folder_readers(folder: Path) -> list[Callable[[], Iterator[Passage]]]:
    """Return readers of the passage files below a folder, or of its texts if there are no passage files."""
    if is_index(folder):
        raise ValueError(f"{folder} is an index, not a corpus: search it as it is, with index=")
    files = sorted(files_in(folder))
    if any(_plain(path).suffix.lower() in _READERS for path in files):
        notes = [path.name for path in files if path.suffix.lower() == ".md"]
        if len(notes) > 1:  # one may describe the tables
            told = f"{folder}: its tables are read, and {len(notes)} files are not, such as {notes[0]!r}"
            warnings.warn(f"{told}: keep notes in a folder of their own", stacklevel=3)
        return [_file_reader(path) for path in files if path.suffix.lower() != ".md"]
    texts = [path for path in files if path.suffix.lower() in _TEXT]
    if not texts:
        raise ValueError(f"{folder}: there is no file of passages in it")
    if others := [path.name for path in files if path.suffix.lower() in _DOCUMENTS]:
        warnings.warn(
            f"{folder}: {len(others)} of its files are neither .txt nor .md and are left out, such as {others[0]!r}",
            stacklevel=3,
        )
    return [partial(_text_passages, path, _name_of(path, folder)) for path in texts]


def files_in(folder: Path) -> list[Path]:
    """List the files of a corpus in a folder, its subfolders and linked folders. Names with a leading . or _ and indexes
    that were built there are left out."""

    def fail(error: OSError) -> NoReturn:
        raise error

    found, seen = [], set()
    for place, folders, names in os.walk(folder, followlinks=True, onerror=fail):
        status = os.stat(place)
        if (status.st_dev, status.st_ino) in seen:  # reached by a link, which may lead back to a parent
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = [name for name in folders if name[0] not in "._"]
        found += [Path(place, name) for name in names if name[0] not in "._"]
    return outside_indexes([path for path in found if path.is_file()])


def _name_of(file: Path, folder: Path) -> str:
    """Return the path in the folder as valid text, even if the name is not UTF-8, as in old archives."""
    return os.fsencode(file.relative_to(folder).as_posix()).decode(errors="replace")


def _plain(path: Path) -> Path:
    """Return the path without the extension of its compression."""
    return path.with_suffix("") if path.suffix.lower() in (".gz", ".zst") else path


def _text_passages(path: Path, name: str) -> Iterator[Passage]:
    """Cut a text into passages, whose ids are ``name`` and a number."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {formats.explain(error)}") from None
    heading, text = read_markdown(text) if path.suffix.lower() == ".md" else ("", text)
    title, piece, number = heading or Path(name).stem, "", 1
    for part in _parts_of(text):
        if piece and len(piece) + len(part) >= _ROOM:
            yield passage_from_row({"id": f"{name}#{number}", "title": title, "text": piece})
            piece, number = "", number + 1
        piece = f"{piece}\n{part}" if piece else part
    if piece:
        yield passage_from_row({"id": f"{name}#{number}", "title": title, "text": piece})


def _parts_of(text: str) -> Iterator[str]:
    """Yield paragraphs; a paragraph that is too long is cut into sentences, and such a sentence into pieces."""
    for paragraph in filter(None, map(str.strip, re.split(r"\n\s*\n", text))):
        sentences = [paragraph] if len(paragraph) <= _ROOM else re.split(r"(?<=[.!?])\s+", paragraph)
        for sentence in sentences:
            yield from [sentence] if len(sentence) <= _ROOM else textwrap.wrap(sentence, _ROOM)


def _open_saved(folder: Path):
    """Memory-map what `save_to_disk` wrote: a `datasets.Dataset`, or a dict of them by split."""
    import pyarrow as pa
    from datasets import load_from_disk

    try:
        return load_from_disk(folder)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{folder}: {error}") from None


def _open_hub(source: str):
    """Open a data set on the hub as a dict of `datasets.IterableDataset` by split; nothing is downloaded in full."""
    name, _, config = source.removeprefix("hf:").partition(":")
    if not name:
        raise ValueError(f"{source!r} names no data set; one on the hub is written hf:owner/name")
    try:
        from datasets import load_dataset
        from huggingface_hub import constants

        if not Path(name).exists() and not constants.HF_HUB_OFFLINE:
            ask_hub(name, "dataset")  # without a network `load_dataset` tries for minutes

        return load_dataset(name, config or None, streaming=True)
    except Exception as error:  # any error of the HTTP library if the hub does not answer
        raise ValueError(
            f"{source}: {str(error).rstrip('.')}. Without a network, fetch the files elsewhere (hf download {name} "
            "--repo-type dataset --local-dir FOLDER), copy the folder here and name it as the source."
        ) from error


def _dataset_passages(loaded, split: str | None, source: str) -> Iterator[Passage]:
    splits = loaded if isinstance(loaded, dict) else {None: loaded}
    if split is None and len(splits) == 1:
        (split,) = splits
    if split not in splits:
        raise ValueError(f"{source}: split is {split!r}, it must be one of: {', '.join(map(str, splits))}")
    return _to_passages(formats.dataset_rows(splits[split], _columns_of, source), f"{source}: row ")
