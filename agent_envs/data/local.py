"""Benchmarks in a folder: their files, questions and passages. Files are cached in memory until they change."""

from __future__ import annotations

import hashlib
import html
import io
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from agent_envs.data.catalog import ALIASES_FILE, CATALOG, parser_of
from agent_envs.data.question import Question, numbered_records
from agent_envs.data.rows import parse_records
from retrieval_index import Corpus, Index, IndexCorrupt, Passage, build_folder, durable
from retrieval_index import load as load_index
from retrieval_index.readers import files_in, read_passages

CACHE_VARIABLE = "AGENT_ENVS_CACHE"
PASSAGES_FILE = "passages.jsonl"
_INDEXED_ONCE = 4_000_000  # bytes; the index of a larger corpus is kept in the cache
_FEWEST_COUNTED = 20  # questions; with fewer, the balance of answers is not checked
_SEARCH_R1 = {"train": "train", "validation": "test"}  # its names of the splits


class NotHere(LookupError):
    """A place was looked into and does not have the benchmark."""


def questions_file(name: str, split: str) -> str:
    """Name the file of a benchmark's questions in a folder of JSONL files."""
    return f"{name}.{split}.jsonl"


def load(
    name: str, path: Path, corpus: str | Path | None, questions_only: bool = False
) -> tuple[tuple[Question, ...], Sequence[Passage], Path | str | None]:
    """Load the questions in a file, the passages to search, and the place of the passages if it is not this file.

    That place is ``corpus``, or `passages.jsonl` beside questions without paragraphs. ``questions_only`` loads no passages.

    Raises:
        FileNotFoundError: there are no passages.
        ValueError: there is no question, or an invalid one; the message names file, line and field.
    """
    stamps = (*stamp(path), *stamp(path.with_name(ALIASES_FILE)))
    questions, passages = _read_questions(name, path, stamps)
    if questions_only:
        return questions, (), None
    if corpus is None and passages:
        return questions, passages, None
    place = _existing(corpus or path.parent / PASSAGES_FILE)
    return questions, read_corpus(place), place


def find_faults(name: str, questions: Sequence[Question], passages: Sequence[Passage]) -> Iterator[tuple[str, str]]:
    """Find faults of the data; yields each in a few words for the source, and in full for a warning.

    Faults: more than 5% of the questions lack a gold paragraph, as in HotpotQA's fullwiki files; 2WikiMultihopQA has no
    aliases; one answer is too frequent.
    """
    titles = passages.titles() if isinstance(passages, Corpus) else {passage.title for passage in passages}
    titles = set(map(html.unescape, titles))
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


def find_file(place: Path, name: str, split: str) -> Path:
    """The file of questions at a place: the place itself, or the first one in a folder and in its sub-folder `name`.
    The order: `<name>.<split>.jsonl`, official files, FlashRAG's and Search-R1's.
    Raises NotHere: the folder has none; FileNotFoundError: there is no such path."""
    if not place.exists():
        raise FileNotFoundError(f"there is no {place}")
    return _find_in_folder(place, name, split) if place.is_dir() else place


def _find_in_folder(folder: Path, name: str, split: str) -> Path:
    entry, bases = CATALOG[name], (folder, folder / name)
    wanted = (questions_file(name, split), *entry.official_files[split])
    paths = [base / file for file in wanted for base in bases]
    if entry.flashrag:
        flashrag = "train.jsonl" if split == "train" else entry.flashrag
        # FlashRAG names the files of all benchmarks alike, and Search-R1's files hold all benchmarks.
        paths += [base / flashrag for base in bases if base.name == name]
        wanted += (f"{name}/{flashrag}", f"{_SEARCH_R1[split]}.parquet")
        paths += [base / wanted[-1] for base in bases]
    for path in paths:
        if path.is_file():
            return path
    raise NotHere(f"{folder} holds none of {', '.join(wanted)}")


def _existing(corpus: str | Path) -> Path | str:
    """The place of a corpus, or of the `passages.jsonl` in it."""
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


@lru_cache(maxsize=8)
def _read_questions(name: str, path: Path, stamps: tuple) -> tuple[tuple[Question, ...], tuple[Passage, ...]]:
    questions: list[Question] = []
    passages: dict[str, Passage] = {}
    for _, parsed in parse_records(numbered_records(path), parser_of(name, path.parent)):
        questions += [parsed.question] if parsed.question else []
        passages.update((passage.id, passage) for passage in parsed.passages)
    if not questions:
        raise ValueError(f"{path}: there is no question of this benchmark in it")
    return tuple(questions), tuple(passages.values())


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
        ValueError: a row is not a passage (the message names file and row), or there is none.
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
    """The corpus of an index in the cache; None for a small corpus, or if the cache cannot be written."""
    files = sorted(files_in(corpus)) if corpus.is_dir() else [corpus]
    if sum(file.stat().st_size for file in files) < _INDEXED_ONCE:
        return None
    contents = hashlib.blake2b(digest_size=16)
    for file in files:
        titled = file.suffix.lower() in (".txt", ".md")  # by its name
        name = file.relative_to(corpus if corpus.is_dir() else corpus.parent) if titled else file.suffix
        with open(file, "rb") as content:
            contents.update(hashlib.file_digest(content, "blake2b").digest() + os.fsencode(name))
    folder = cache / "indexes" / contents.hexdigest()
    try:
        with suppress(FileNotFoundError, IndexCorrupt):
            return open_index(folder).corpus
        durable.make_folder(folder.parent)
        with FileLock(folder.with_name(f".{folder.name}.wait")):
            with suppress(FileNotFoundError, IndexCorrupt):  # another process may have built it
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
    if not path.is_file():  # a folder, whose time does not tell of changed files; or a broken link
        return 0, 0
    status = path.stat()
    return status.st_mtime_ns, status.st_size
