"""Questions of your own: a file or folder in the format of docs/own_data.md, or Search-R1's and FlashRAG's files."""

from __future__ import annotations

import math
import random
import re
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path

from agent_envs.data.catalog import SPLITS
from agent_envs.data.local import find_faults, place_of, read_corpus, shorten_path, stamp
from agent_envs.data.question import FORMATS, Question, Record, numbered_records, paragraph_key
from agent_envs.data.rows import HELD_OUT, TRAIN, Parsed, parse_records, parse_row
from agent_envs.data.sources import Benchmark
from retrieval_index import Passage
from retrieval_index.readers import read_passages

HOLDOUT = 5  # one question in HOLDOUT is held out if nothing else decides
_FEW, _FEW_HELD_OUT = 100, 50  # questions; for fewer, a sentence states what they are good for
_CORPUS = ("passages", "corpus")  # files and folders beside the questions that are searched


def load_own(
    data: str | Path | None,
    *,
    split: str,
    corpus: str | Path | None = None,
    index: str | Path | None = None,
    name: str = "",
    holdout: int = 0,
    split_seed: int = 0,
    indexed: Callable[[], Iterable[Passage] | None] = lambda: None,
) -> Benchmark:
    """Load your questions of a split, and the passages to search (none if an index has them).

    Args:
        data: a file of questions (.jsonl, .json, .csv, .tsv or .parquet), or a folder of such files.
        split: ``"train"`` or ``"validation"``, by file names or the rows' ``split``; otherwise one question in
            ``HOLDOUT`` is held out, drawn by ``split_seed``.
        corpus: what to search, anything that `retrieval_index.readers.read_passages` takes. By default ``passages`` or
            ``corpus`` beside the questions, or the contexts in the rows.
        index: what to search instead of a corpus.
        name: the name in reports; by default that of the file or folder.
        holdout: 0 follows the files or rows, or else holds out one question in ``HOLDOUT``. n always holds out one in n of
            the training questions; 1 all of them.
        split_seed: seed of the draw of held-out questions.
        indexed: returns the passages of ``index``; None for a server, which ``supporting_ids`` cannot refer to.

    Raises:
        FileNotFoundError: there is no such file or folder, or nothing to search.
        ValueError: a row is not a question, or the split is unknown or has no question.
    """
    path = _path_of(data)
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if corpus and index:
        raise ValueError(f"give corpus= or index=, not both: got {str(corpus)!r} and {str(index)!r}")
    files = _files_of(path)
    loaded = _read(files, tuple(map(stamp, files)), path.is_dir())
    called = name or path.stem
    beside = None if corpus or index else _corpus_beside(path)
    where = place_of(corpus) if corpus else beside
    passages = () if index else read_corpus(where) if where else loaded.passages
    if not passages and not index:
        raise FileNotFoundError(
            f"{called}: there is nothing to search: give corpus=FILE_OR_FOLDER or index=FOLDER_OR_URL, put passages.jsonl "
            "beside the questions, or give each question its contexts"
        )
    if loaded.supporting_ids:
        named = indexed() if index else read_passages(where) if where else passages  # as in the files, with duplicates
        loaded = _resolve_support(loaded, named, called)
    parts, how = _split(loaded, called, holdout, split_seed)
    if not parts[split]:
        raise ValueError(
            f"{called}: there is no question to {'train on' if split == 'train' else 'hold out'}, {how}: give more of them, or "
            "a file or a field 'split' that names the training questions"
        )
    source = f"{called} (local:{shorten_path(path)}), {how}" + (f" + corpus {shorten_path(where)}" if where else "")
    for short, long in find_faults("own", parts[split], passages):
        warnings.warn(f"{called}: {long}", stacklevel=2)
        source += f" ({short})"
    return Benchmark(called, split, parts[split], passages, source)


def _path_of(data: str | Path | None) -> Path:
    if not data:
        raise ValueError(
            'give your questions with data=, such as \'{"data": "my.jsonl", "corpus": "passages.jsonl"}\'; what a file of '
            "questions looks like is in docs/own_data.md"
        )
    return Path(data).expanduser().resolve()


def stamps(data: str | Path | None, corpus: str | Path | None) -> tuple:
    """The part of a cache key that changes when the questions or the corpus change."""
    path = Path(data or "").expanduser()
    if not data or not path.exists():
        return ()
    return stamp(path), stamp(place_of(corpus) if corpus else _corpus_beside(path), deep=True)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The questions of some files by the split that files or rows name (None: they name none), and their contexts.
    ``supporting_ids`` holds ids of passages of the corpus, by split and question id."""

    by_split: Mapping[str | None, tuple[Question, ...]]
    passages: tuple[Passage, ...]
    supporting_ids: Mapping[tuple[str | None, str], Sequence[str]]


# -- files ---------------------------------------------------------------------------------------------------------


def _files_of(path: Path) -> tuple[Path, ...]:
    """The file at ``path``, or the files of a folder: only those with a split in their names, if there are any."""
    if not path.exists():
        raise FileNotFoundError(f"data: there is no file or folder {path}")
    if path.is_file():
        if path.suffix.lower() not in FORMATS:
            raise ValueError(f"{path}: cannot tell the format by the name; known are {', '.join(FORMATS)}")
        return (path,)
    files = sorted(f for f in path.iterdir() if f.is_file() and f.suffix.lower() in FORMATS and f.name[0] not in "._")
    files = [file for file in files if file.name.split(".")[0].lower() not in _CORPUS]
    if not files:
        raise ValueError(f"{path}: there is no file of questions in it ({', '.join(FORMATS)})")
    words = list(map(_split_in_name, files))
    # Only one held-out split is read: others may have no answers.
    held_out = next((word for word in HELD_OUT if word in words), None)
    files = [file for file, word in zip(files, words, strict=True) if word in (None, *TRAIN, held_out)]
    named = [file for file in files if _split_in_name(file)]
    if named and (others := [file.name for file in files if file not in named]):
        read = ", ".join(file.name for file in named)
        warnings.warn(f"{path}: only files that name a split are read ({read}), not {', '.join(others)}", stacklevel=2)
    return tuple(named or files)


def _split_in_name(path: Path) -> str | None:
    words = re.split(r"[^a-z]+", path.stem.lower())
    return next((word for word in words if word in TRAIN + HELD_OUT), None)


def _corpus_beside(path: Path) -> Path | None:
    folder = path if path.is_dir() else path.parent
    found = [one for one in sorted(folder.iterdir()) if one.name.split(".")[0].lower() in _CORPUS and one != path]
    return found[0] if found else None


@lru_cache(maxsize=4)
def _read(files: tuple[Path, ...], stamps: tuple, names_decide: bool) -> _Loaded:
    by_split: dict[str | None, list[Question]] = {}
    passages: dict[str, Passage] = {}
    supporting_ids: dict[tuple[str | None, str], Sequence[str]] = {}
    named = dict.fromkeys(map(_split_in_name, files))
    for word in named:  # ids must be unique only within a split: often each file counts from 1
        group = word if names_decide else None
        records = chain.from_iterable(numbered_records(file) for file in files if _split_in_name(file) == word)
        for place, parsed in parse_records(records, _parse):
            own = parsed.split or (None if word else parsed.noted_split)
            if own and group and own != group:
                raise ValueError(f"{place}: 'split' is {own!r}, and the file's name has {group!r}")
            if parsed.question is None:
                continue
            by_split.setdefault(own or group, []).append(parsed.question)
            if parsed.supporting_ids:
                supporting_ids[own or group, parsed.question.id] = parsed.supporting_ids
            passages.update((passage.id, passage) for passage in parsed.passages)
    if not by_split:
        raise ValueError(f"{files[0]}: there is no question in it")
    if None in by_split and len(by_split) > 1:
        raise ValueError(f"{files[0]}: some rows have a 'split' and others have none: give it to all, or to none")
    questions = {split: tuple(questions) for split, questions in by_split.items()}
    return _Loaded(questions, tuple(passages.values()), supporting_ids)


def _parse(record: Record) -> Parsed:
    """Parse a row, with the benchmark in its id: Search-R1's files hold several, each with a question train_0."""
    parsed = parse_row(record)
    if not parsed.benchmark or not parsed.question:
        return parsed
    return parsed._replace(question=replace(parsed.question, id=f"{parsed.benchmark}/{parsed.question.id}"))


def _resolve_support(loaded: _Loaded, passages: Iterable[Passage] | None, name: str) -> _Loaded:
    """The same questions with the titles and texts of the passages that their ``supporting_ids`` name."""
    if passages is None:
        advice = "give supporting_titles, or the folder of the index"
        warnings.warn(f"{name}: supporting_ids need a local index, not a server: {advice}", stacklevel=3)
        return loaded
    wanted = {id for ids in loaded.supporting_ids.values() for id in ids}
    found = {passage.id: passage for passage in passages if passage.id in wanted}
    if missing := sorted(wanted - found.keys()):
        count = f"{len(missing)} of {len(wanted)}"
        warnings.warn(f"{name}: {count} supporting_ids are not in the corpus: {missing[0]!r}", stacklevel=3)

    def resolve(split: str | None, question: Question) -> Question:
        gold = [found[id] for id in loaded.supporting_ids.get((split, question.id), ()) if id in found]
        if not gold:
            return question
        titles, texts = tuple(p.title for p in gold), tuple(paragraph_key(p.text) for p in gold)
        return replace(question, supporting_titles=titles, supporting_paragraphs=texts)

    by_split = {split: tuple(resolve(split, q) for q in questions) for split, questions in loaded.by_split.items()}
    return replace(loaded, by_split=by_split)


# -- splits --------------------------------------------------------------------------------------------------------


def _split(loaded: _Loaded, name: str, holdout: int, seed: int) -> tuple[dict[str, tuple[Question, ...]], str]:
    """The questions of both splits, and a description of what decided on the splits."""
    train = tuple(chain.from_iterable(loaded.by_split.get(word, ()) for word in TRAIN))
    word = next((word for word in HELD_OUT if word in loaded.by_split), None)
    pool = train or loaded.by_split.get(None, ())
    if word and (not holdout or (holdout == 1 and not pool)):
        held_out = loaded.by_split[word]
        train = _without(train, held_out, name) if train else ()
        parts, how = (train, held_out), f'"{word}" held out as the data says'
    elif pool:
        parts = _draw(pool, holdout or HOLDOUT, seed)
        count = f"all {len(pool)}" if holdout == 1 else f"{len(parts[1])} of {len(pool)}"
        how = f"{count} questions held out" + f" by seed {seed}" * (holdout != 1)
    else:
        raise ValueError(f'{name}: all of its questions are called "{word}": holdout= is for training questions')
    _say_what_it_is_good_for(name, *map(len, parts), how)
    return dict(zip(("train", "validation"), parts, strict=True)), how


def _draw(pool: Sequence[Question], holdout: int, seed: int) -> tuple[tuple[Question, ...], tuple[Question, ...]]:
    """Split off one in ``holdout`` of the questions, at least one. Questions with the same `_key` stay on one side,
    and the order of a file does not matter."""
    keys = sorted({_key(question) for question in pool})
    random.Random(f"split:{seed}").shuffle(keys)
    aside = set(keys[: max(len(keys) // holdout, 1)])
    sides = tuple(tuple(question for question in pool if (_key(question) in aside) == side) for side in (False, True))
    return sides[0], sides[1]


def _without(train: Sequence[Question], held_out: Sequence[Question], name: str) -> tuple[Question, ...]:
    """Training questions without those that are held out, and with ids that no held-out question has."""
    keys, ids = {_key(question) for question in held_out}, {question.id for question in held_out}
    kept = [question for question in train if _key(question) not in keys]
    if shared := len(train) - len(kept):
        both = f"{shared} of {len(train)} training questions are held out too"
        warnings.warn(f"{name}: {both}; they are left out of training", stacklevel=2)
    taken = ids | {question.id for question in kept}
    return tuple(replace(q, id=_free_id(q.id, taken)) if q.id in ids else q for q in kept)


def _free_id(id: str, taken: set[str]) -> str:
    """An id that is not taken, which is then added to ``taken``."""
    while id in taken:
        id = f"train/{id}"
    taken.add(id)
    return id


def _key(question: Question) -> str:
    """A question for comparison: without case, white space and punctuation, except in arithmetic, names like C++ and numbers."""
    text = unicodedata.normalize("NFKC", question.question).casefold()
    text = re.sub(r"(?<![^\W\d])([^\W\d])\.(?:\s+(?=[^\W\d]\.)|(?=[^\W\d]\.|\W|$))", r"\1", text)  # U.S., J. K.
    text = re.sub(r"(?<!\d)[.,:]|[.,:](?!\d)|(?<=[^\W\d])-(?=[^\W\d])|[`´]", " ", text)
    text = "".join(" " if unicodedata.category(c)[0] == "P" and c not in "+-*/%#.,:" else c for c in text)
    return " ".join(text.split()) or question.question


@lru_cache(maxsize=64)  # printed once
def _say_what_it_is_good_for(name: str, train: int, held_out: int, how: str) -> None:
    text = f"{name}: {train} questions to train on; {how}."
    if train + held_out < _FEW or held_out < _FEW_HELD_OUT:
        margin = min(1 / math.sqrt(held_out), 1) if held_out else 1
        questions = f"{held_out} held-out question{'s' * (held_out != 1)}"
        text += f" A score over {questions} is known to ±{margin:.2f} (over 100, to ±0.10)"
        if 0 < train < _FEW:
            text += f", and {train} questions are learned by heart: that is enough to see that everything runs"
        text += ". Use hundreds of questions to compare models, and thousands to train one."
    print(text, file=sys.stderr)
