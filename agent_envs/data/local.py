"""Benchmarks in a folder: which files they are, what is in them, and what is searched. Files are cached until they change."""

from __future__ import annotations

import hashlib
import html
import io
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from agent_envs.data.catalog import (
    ALIASES_FILE,
    CATALOG,
    has_paragraphs,
    is_flashrag,
    is_of,
    metadata_of,
    parser_of,
    read_official,
)
from agent_envs.data.question import Question, Record, first_record, read_questions
from retrieval_index import Corpus, Index, IndexCorrupt, Passage, build_folder, durable
from retrieval_index import load as load_index
from retrieval_index.readers import files_in, read_passages

CACHE_VARIABLE = "AGENT_ENVS_CACHE"
PASSAGES_FILE = "passages.jsonl"
_PARAGRAPHS = {"context", "paragraphs"}  # fields of a question that comes with what to search
# Fields that our own rows never have.
_PUBLISHED = _PARAGRAPHS | {"_id", "answer_id", "possible_answers", "golden_answers", "reward_model"}
_INDEXED_ONCE = 4_000_000  # bytes of a corpus whose index is kept in the cache
_FEWEST_COUNTED = 20  # questions whose answers may be called lopsided
_SEARCH_R1 = {"train": "train", "validation": "test"}  # what it calls the splits


class NotHere(LookupError):
    """A place was looked into and does not have the benchmark."""


@dataclass(frozen=True, slots=True)
class Location:
    """A file of questions, whose rows are published (`official`) or have the fields of `Question`, and the corpus to search:
    None for the paragraphs of an official file, or none."""

    name: str
    questions: Path
    official: bool
    passages: Path | str | None


def questions_file(name: str, split: str) -> str:
    """Name the file of a benchmark's questions in a folder of JSONL files."""
    return f"{name}.{split}.jsonl"


def locate(place: Path, name: str, split: str, corpus: str | Path | None, questions_only: bool = False) -> Location:
    """Find a benchmark at a path: a file of questions, or a folder, in which `_find_in_folder` looks.

    Raises:
        NotHere: the folder has no file of the benchmark.
        FileNotFoundError: there is no such path, or no passages to go with the questions unless `questions_only`.
        ValueError: there is no question of the benchmark in the file.
    """
    if not place.exists():
        raise FileNotFoundError(f"there is no {place}")
    path = _find_in_folder(place, name, split) if place.is_dir() else place
    own = first_record(path, lambda record: is_of(name, record))
    try:
        if corpus is None and not questions_only and not _has_paragraphs(own):
            corpus = path.parent / PASSAGES_FILE
    except ValueError as error:
        raise ValueError(f"{path}: its first question: {error}") from None
    if not own:
        others = first_record(path, lambda record: True)
        raise ValueError(f"{path}: there is no question {'of this benchmark ' if others else ''}in it")
    location = Location(name, path, _is_official(name, path, own), None)
    if corpus is None:
        return location
    try:
        return replace(location, passages=_existing(corpus))
    except FileNotFoundError:
        load(location)  # what is wrong with the questions comes first
        raise


def load(location: Location) -> tuple[tuple[Question, ...], Sequence[Passage]]:
    """Read questions and passages. Raises ValueError: by file, line and field."""
    path, corpus = location.questions, location.passages
    passages: Sequence[Passage] = ()
    if location.official:
        questions, passages = _read_official(location.name, path, (*stamp(path), *stamp(path.with_name(ALIASES_FILE))))
    else:
        questions = _read_questions(path, stamp(path))
    if corpus is not None:
        passages = read_corpus(corpus)
    return questions, passages


def find_faults(name: str, questions: Sequence[Question], passages: Sequence[Passage]) -> Iterator[tuple[str, str]]:
    """Find what the data lacks, in a few words for the source and in full for a warning.

    Faults: a gold paragraph for more than a twentieth of the questions, as in HotpotQA's fullwiki files; 2WikiMultihopQA's
    aliases; other answers than one.
    """
    titles = {html.unescape(passage.title) for passage in passages}
    gold = [set(map(html.unescape, question.supporting_titles)) for question in questions]
    share = sum(not titles.issuperset(each) for each in gold) / len(gold) if titles else 0.0
    if share > 0.05:
        yield (
            f"{share:.0%} of the questions lack a gold paragraph",
            f"{share:.0%} of the questions lack a gold paragraph in the passages that are searched. A fullwiki file is "
            "like that, and is not the distractor set that scores are reported on; name a corpus that has the "
            "paragraphs with corpus=, or, for an environment, index=",
        )
    if name == "2wikimultihopqa" and not any(question.aliases for question in questions):
        yield (
            "without aliases",
            f"no question has an alias, and the official scores count them: put {ALIASES_FILE}, which is published with "
            f"the questions ({CATALOG[name].homepage}), beside the official file, or the names into the rows",
        )

    answers = Counter(question.answer.strip().lower() for question in questions)
    closed = {answer: answers[answer] for answer in ("yes", "no")}
    for kind, counts, most in (("yes/no questions", closed, 2 / 3), ("questions", answers, 1 / 4)):
        answer, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
        share = count / max(1, sum(counts.values()))
        if sum(counts.values()) >= _FEWEST_COUNTED and share > most:
            told = f"{share:.0%} of the {kind} have the answer {answer!r}"
            yield (
                told,
                f"{told}: a model learns to say it. Balance the answers, and compare with the row of constant answers",
            )


def shorten_path(path: Path | str) -> str:
    """A file with its folder, for reports; a name on the hub as it is."""
    return path if isinstance(path, str) else f"{path.parent.name}/{path.name}"


def _find_in_folder(folder: Path, name: str, split: str) -> Path:
    """The first there is, here and in the sub-folder `name`: `<name>.<split>.jsonl`, official files, FlashRAG's, Search-R1's."""
    entry, bases = CATALOG[name], (folder, folder / name)
    wanted = (questions_file(name, split), *entry.official_files[split])
    paths = [base / file for file in wanted for base in bases]
    if entry.flashrag:
        flashrag = "train.jsonl" if split == "train" else entry.flashrag
        # FlashRAG's files of all benchmarks are called so, and Search-R1's have all benchmarks in them.
        paths += [base / flashrag for base in bases if base.name == name]
        wanted += (f"{name}/{flashrag}",)
        paths += [base / f"{_SEARCH_R1[split]}.parquet" for base in bases]
    for path in paths:
        if path.is_file():
            return path
    raise NotHere(f"{folder} holds none of {', '.join(wanted)}")


def _existing(corpus: str | Path) -> Path | str:
    """The place of a corpus; of `passages.jsonl` in a folder that has it."""
    path = place_of(corpus)
    if isinstance(path, str):
        return path
    path = path / PASSAGES_FILE if (path / PASSAGES_FILE).is_file() else path
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path} to search in: put it there, or name passages with corpus=; an environment also takes an "
            "index with index="
        )
    return path


def _has_paragraphs(first: Record) -> bool:
    """Whether the questions come with what to search: in the record, or in FlashRAG's metadata."""
    places = first, metadata_of(first) if is_flashrag(first) else {}
    return any(has_paragraphs(place, field) for place in places for field in _PARAGRAPHS)


def _is_official(name: str, path: Path, first: Record) -> bool:
    """Whether the first record has a field that ours never have, or lacks the `id` that ours always have."""
    facts = first.get("supporting_facts")
    columns = isinstance(facts, Mapping)  # the hub's form of the pairs
    array = path.suffix.lower() == ".json" and "supporting_titles" not in first  # ours is JSONL
    array = array and (facts is not None or "id" not in first)
    return columns or array or bool(_PUBLISHED & first.keys()) or (not CATALOG[name].own_passages and "id" not in first)


@lru_cache(maxsize=8)
def _read_questions(path: Path, stamps: tuple) -> tuple[Question, ...]:
    return read_questions(path)


@lru_cache(maxsize=4)
def _read_official(name: str, path: Path, stamps: tuple) -> tuple[tuple[Question, ...], tuple[Passage, ...]]:
    questions, passages = read_official(path, parser_of(name, path.parent))
    return questions, tuple(passages)


def place_of(corpus: str | Path) -> Path | str:
    """A file or folder by its full path, a data set on the hub by its name."""
    return str(corpus) if str(corpus).startswith("hf:") else Path(corpus).expanduser().resolve()


def cache_folder() -> Path:
    """Return the folder of downloads and indexes: `$AGENT_ENVS_CACHE`, or `~/.cache/agent_envs`."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "agent_envs")


def keep_dataset(data: Any) -> Any:
    """Write a data set to the cache, named by its content: a `datasets.Dataset` as a Parquet file, a `DatasetDict` as a folder
    with a file for each split. Returns the path; a value that is no data set is returned as it is."""
    parts = data if isinstance(data, Mapping) else {"questions": data}
    if not any(hasattr(part, "to_parquet") for part in parts.values()):
        return data
    written, digest = {}, hashlib.blake2b(digest_size=16)
    for name, part in parts.items():
        part.to_parquet(buffer := io.BytesIO())
        written[name] = buffer.getvalue()
        digest.update(name.encode() + written[name])
    folder = cache_folder() / "datasets" / digest.hexdigest()
    place = folder / "questions" if isinstance(data, Mapping) else folder
    durable.make_folder(place)
    for name, content in written.items():
        if not (place / f"{name}.parquet").exists():
            staging = place / f".{name}.{os.getpid()}.staging"  # another process may write it too
            staging.write_bytes(content)
            durable.publish(staging, place / f"{name}.parquet")
    return str(place if isinstance(data, Mapping) else place / "questions.parquet")


def read_corpus(corpus: Path | str) -> Sequence[Passage]:
    """The passages of anything that `retrieval_index.readers.read_passages` takes. Files of more than 4 MB are indexed once:
    the index is kept in the cache, by their content, and the result is its `Corpus`.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: a row is no passage, by file and row, or there is none.
    """
    return _read(corpus, stamp(corpus, deep=True), cache_folder())


@lru_cache(maxsize=4)
def open_index(folder: Path) -> Index:
    """The index that `read_corpus` keeps."""
    return load_index(folder, verify="fast")


@lru_cache(maxsize=4)
def _read(corpus: Path | str, stamps: tuple, cache: Path) -> Sequence[Passage]:
    indexed = _index_once(Path(corpus), cache) if Path(corpus).exists() else None
    passages: Sequence[Passage] = tuple(read_passages(corpus)) if indexed is None else indexed
    if not any(passage.text.strip() for passage in passages):
        raise ValueError(f"{corpus}: there is {'no text in its passages' if passages else 'no passage in it'}")
    return passages


def _index_once(corpus: Path, cache: Path) -> Corpus | None:
    """The corpus of an index in the cache; None for a small one, or where the cache cannot be written."""
    files = sorted(files_in(corpus)) if corpus.is_dir() else [corpus]
    if sum(file.stat().st_size for file in files) < _INDEXED_ONCE:
        return None
    contents = hashlib.blake2b(digest_size=16)
    for file in files:
        with open(file, "rb") as content:
            contents.update(hashlib.file_digest(content, "blake2b").digest() + file.suffix.encode())
    folder = cache / "indexes" / contents.hexdigest()
    try:
        with suppress(FileNotFoundError, IndexCorrupt):
            return open_index(folder).corpus
        build_folder(corpus, folder, progress=True)
        return open_index(folder).corpus
    except OSError as error:
        warnings.warn(f"the index of {corpus} is not kept, and is built anew each time: {error}", stacklevel=2)
        return None


def stamp(place: object, deep: bool = False) -> tuple:
    """Time and size of a file, or of the files of a folder (and of folders in it, if ``deep``) with their names; () for what
    is not on disk."""
    path = Path(str(place or "")).expanduser()
    if not place or not path.exists():
        return ()
    if path.is_dir():
        files = sorted(files_in(path) if deep else path.iterdir())
        return tuple((str(file.relative_to(path)), *_stamp_file(file)) for file in files)
    return _stamp_file(path)


def _stamp_file(path: Path) -> tuple[int, int]:
    if not path.is_file():  # a folder, whose time says nothing of its files; a link that leads nowhere
        return 0, 0
    status = path.stat()
    return status.st_mtime_ns, status.st_size
