"""Questions of your own: a file or folder in the format of docs/own_data.md, or Search-R1's and FlashRAG's files."""

from __future__ import annotations

import ast
import json
import math
import random
import re
import sys
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from agent_envs.data import catalog
from agent_envs.data.local import find_faults, place_of, read_corpus, shorten_path, stamp
from agent_envs.data.question import FORMATS, Question, numbered_records, paragraph_key, question_from_row
from agent_envs.data.sources import Benchmark
from retrieval_index import Passage
from retrieval_index.readers import context_passages, make_passage, paragraph_passages, title_from

TRAIN = ("train", "training")
HELD_OUT = ("validation", "valid", "val", "dev", "development", "eval", "test")  # the first of them that there is
ANSWERS = ("answer", "answers", "golden_answers")
_CONTEXTS = ("contexts", "context", "paragraphs", "passages")
_IDS = ("id", "_id", "question_id", "questionid")
_OWN = {*_CONTEXTS, *"decomposition evidences supporting_titles supporting_facts aliases answer_aliases type".split()}
_OF_FLASHRAG = {"supporting_facts", "context", "paragraphs", "question_decomposition"}  # what its metadata may hold
HOLDOUT = 5  # one question in so many is held out where nothing else says which
_FEW, _FEW_HELD_OUT = 100, 50  # questions; below, a sentence says what they are good for
_CORPUS = ("passages", "corpus")  # files and folders beside the questions that are searched, not asked
_TABLES = (".csv", ".tsv")  # whose cells are text, also where they were lists


def load_own(
    data: str | Path | None,
    *,
    split: str,
    corpus: str | Path | None = None,
    index: str | Path | None = None,
    name: str = "",
    holdout: int = 0,
    split_seed: int = 0,
) -> Benchmark:
    """Your questions of a split, and the passages to search: none where an index has them.

    Args:
        data: a file of questions (.jsonl, .json, .csv, .tsv or .parquet), or a folder of such files.
        split: ``"train"`` or ``"validation"``, as the files' names or the rows' ``split`` say; else one question in
            ``HOLDOUT`` is held out, drawn by ``split_seed``.
        corpus: what to search, anything that `retrieval_index.readers.read_passages` takes. By default ``passages`` or
            ``corpus`` beside the questions, or the contexts in the rows.
        index: searched instead of a corpus.
        name: the name in reports; by default that of the file or folder.
        holdout: 0, or n to hold out one in n of the training questions, whatever the files say; 1 holds out all of them.
        split_seed: of that draw.

    Raises:
        FileNotFoundError: there is no such file or folder, or nothing to search.
        ValueError: a row is no question, or a split has none.
    """
    if not data:
        raise ValueError(
            'give your questions with data=, such as \'{"data": "my.jsonl", "corpus": "passages.jsonl"}\'; what a file of '
            "questions looks like is in docs/own_data.md"
        )
    if corpus and index:
        raise ValueError(f"give corpus= or index=, not both: got {str(corpus)!r} and {str(index)!r}")
    path = Path(data).expanduser().resolve()
    files = _files_of(path)
    loaded = _read(files, tuple(map(stamp, files)))
    called = name or path.stem
    beside = None if corpus or index else _corpus_beside(path)
    where = place_of(corpus) if corpus else beside
    passages = () if index else read_corpus(where) if where else loaded.passages
    if not passages and not index:
        raise FileNotFoundError(
            f"{called}: there is nothing to search: give corpus=FILE_OR_FOLDER or index=FOLDER_OR_URL, put passages.jsonl "
            "beside the questions, or give each question its contexts"
        )
    parts, how = _split(_resolve_support(loaded, passages, called), called, holdout, split_seed)
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


def stamps(data: str | Path | None, corpus: str | Path | None) -> tuple:
    """The part of a cache's key that changes when the questions or the corpus do."""
    path = Path(data or "").expanduser()
    if not data or not path.exists():
        return ()
    return stamp(path), stamp(place_of(corpus) if corpus else _corpus_beside(path), deep=True)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The questions of some files by the split that files or rows name (None: they name none), and their contexts.
    ``supporting_ids``: of passages of the corpus, by split and question id."""

    by_split: Mapping[str | None, tuple[Question, ...]]
    passages: tuple[Passage, ...]
    supporting_ids: Mapping[tuple[str | None, str], list[str]]


# -- files ---------------------------------------------------------------------------------------------------------


def _files_of(path: Path) -> tuple[Path, ...]:
    """The file that is named, or those of a folder: only those whose names say a split, if any does."""
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
    # Other held-out splits may have no answers.
    held_out = next((word for word in HELD_OUT if word in words), None)
    files = [file for file, word in zip(files, words, strict=True) if word in (None, *TRAIN, held_out)]
    named = [file for file in files if _split_in_name(file)]
    if named and (others := [file.name for file in files if file not in named]):
        read = ", ".join(file.name for file in named)
        warnings.warn(f"{path}: read are {read}, whose names say a split; not {', '.join(others)}", stacklevel=2)
    return tuple(named or files)


def _split_in_name(path: Path) -> str | None:
    words = re.split(r"[^a-z]+", path.stem.lower())
    return next((word for word in words if word in TRAIN + HELD_OUT), None)


def _corpus_beside(path: Path) -> Path | None:
    folder = path if path.is_dir() else path.parent
    found = [one for one in sorted(folder.iterdir()) if one.name.split(".")[0].lower() in _CORPUS and one != path]
    return found[0] if found else None


@lru_cache(maxsize=4)
def _read(files: tuple[Path, ...], stamps: tuple) -> _Loaded:
    by_split: dict[str | None, list[Question]] = {}
    passages: dict[str, Passage] = {}
    supporting_ids: dict[tuple[str | None, str], list[str]] = {}
    named = dict.fromkeys(_split_in_name(file) if len(files) > 1 else None for file in files)
    for group in named:  # ids are unique in a split: many files count from 1 in each
        chosen = [file for file in files if len(files) == 1 or _split_in_name(file) == group]
        for place, question, own, context, ids in _questions(chosen):
            if own and group and own != group:
                raise ValueError(f"{place}: 'split' is {own!r}, and the file's name has {group!r}")
            by_split.setdefault(own or group, []).append(question)
            if ids:
                supporting_ids[own or group, question.id] = ids
            passages.update((passage.id, passage) for passage in context)
    if not by_split:
        raise ValueError(f"{files[0]}: there is no question in it")
    if None in by_split and len(by_split) > 1:
        raise ValueError(f"{files[0]}: some rows have a 'split' and others have none: give it to all, or to none")
    questions = {split: tuple(questions) for split, questions in by_split.items()}
    return _Loaded(questions, tuple(passages.values()), supporting_ids)


def _resolve_support(loaded: _Loaded, passages: Iterable[Passage], name: str) -> _Loaded:
    """The same questions with the titles and texts of the passages that their ``supporting_ids`` name."""
    wanted = {id for ids in loaded.supporting_ids.values() for id in ids}
    found = {passage.id: passage for passage in passages if passage.id in wanted} if wanted else {}
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


def _questions(files: Iterable[Path]) -> Iterator[tuple[str, Question, str | None, list[Passage], list[str]]]:
    """Each question with its place, the split that its row names, its contexts, and the ids of what supports it."""
    seen: list[tuple[str, str | None, list[str]]] = []

    def noted() -> Iterator[tuple[str, Mapping[str, Any]]]:
        for file in files:
            for where, record in numbered_records(file):
                row = {str(key).strip().lower(): value for key, value in record.items() if not is_absent(value)}
                try:
                    if file.suffix.lower() in _TABLES and "answer" in row:
                        row["answer"] = from_cell(row["answer"])
                    ids = _texts(row.get("supporting_ids", []), "supporting_ids")
                    seen.append((where, split_of(row) or _split_of_verl(row, file), ids))
                except ValueError as error:
                    raise ValueError(f"{where}: {error}") from None
                yield where, row

    for question, context in catalog.parse_records(noted(), parse_row):
        if question is not None:
            where, split, ids = seen[-1]
            yield where, question, split, context, ids


# -- splits --------------------------------------------------------------------------------------------------------


def _split(loaded: _Loaded, name: str, holdout: int, seed: int) -> tuple[dict[str, tuple[Question, ...]], str]:
    """The questions of both splits, and what decided on them, in words."""
    train = tuple(chain.from_iterable(loaded.by_split.get(word, ()) for word in TRAIN))
    word = next((word for word in HELD_OUT if word in loaded.by_split), None)
    pool = train or loaded.by_split.get(None, ())
    if word and not holdout:
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
    """Split off one in ``holdout`` of the questions, at least one. Questions that differ only in spelling stay on one side,
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
    """An id that is not taken; from then on it is."""
    while id in taken:
        id = f"train/{id}"
    taken.add(id)
    return id


def _key(question: Question) -> str:
    """A question for comparison: without case, white space and punctuation, except signs of arithmetic, C++ and numbers."""
    text = unicodedata.normalize("NFKC", question.question).casefold()
    text = re.sub(r"(?<!\d)[.,:]|[.,:](?!\d)|(?<=[^\W\d])-(?=[^\W\d])|[`´]", " ", text)
    text = "".join(" " if unicodedata.category(c)[0] == "P" and c not in "+-*/%#.,:" else c for c in text)
    return " ".join(text.split()) or question.question


@lru_cache(maxsize=64)  # said once
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


# -- rows ---------------------------------------------------------------------------------------------------------------


def parse_row(row: Mapping[str, Any]) -> catalog.Parsed:
    """Read a row of docs/own_data.md, FlashRAG, Search-R1, verl, BEIR, HotpotQA, 2WikiMultihopQA or MuSiQue: its question and
    contexts. Field names are in lower case, and no value is absent.

    Raises:
        ValueError: a field is missing or of a wrong type, by its name.
    """
    row = catalog.with_question_of_verl(row)
    if "_id" in row and "text" in row and "question" not in row:  # BEIR's queries
        row = {**row, "question": row["text"]}
    if "question" not in row:
        raise ValueError(f"there is no 'question'; the fields are {', '.join(map(repr, row))}")
    if _is_of_flashrag(row):
        question, passages = catalog.parse_flashrag({"id": catalog.hash_id(row["question"])} | dict(row))
        benchmark = catalog.benchmark_named_in(row)  # Search-R1's files hold several, each with a question train_0
        if question and benchmark and "id" in row:
            question = replace(question, id=f"{benchmark}/{question.id}")
        return question, passages
    if "question_decomposition" in row:
        return catalog.parse_musique(row)
    passages = _contexts(row)
    facts = _facts(row["supporting_facts"]) if "supporting_facts" in row else []
    titles = _texts(row.get("supporting_titles", []), "supporting_titles") or [*dict.fromkeys(t for t, _ in facts)]
    golds = [*dict.fromkeys(_answers(row))]
    id = next((row[name] for name in _IDS if name in row), None)
    id = catalog.hash_id(row["question"]) if id is None else id
    question = question_from_row(
        {
            "id": int(id) if isinstance(id, float) and id.is_integer() else id,  # as pandas has a column with a gap
            "question": row["question"],
            "answer": golds[0],
            "aliases": golds[1:],
            "type": None if (kind := row.get("type")) is None else _text(kind, "type"),
            "supporting_titles": titles,
            "supporting_facts": facts or None,
            "supporting_paragraphs": row.get("supporting_paragraphs", catalog.gold_paragraphs(titles, passages)),
            "decomposition": _decomposition(row),
        }
    )
    return question, passages


def _is_of_flashrag(row: Mapping[str, Any]) -> bool:
    """Whether all but the answers is in the metadata. A row of yours may have a field of that name."""
    if not catalog.is_flashrag(row) or not {"metadata", "reward_model", "data_source"} & row.keys():
        return False
    known = catalog.metadata_of(row).keys() if isinstance(row.get("metadata"), Mapping) else set()
    return bool(_OF_FLASHRAG & known) or not (_OWN & row.keys() and set(ANSWERS) & row.keys())


def _decomposition(row: Mapping[str, Any]) -> object:
    """MuSiQue's steps. Warns of something else of that name."""
    value = from_cell(row.get("decomposition"))
    if value is None or (isinstance(value, list | tuple) and all(isinstance(step, Mapping) for step in value)):
        return value or None
    warnings.warn("'decomposition' is left out: it is not what MuSiQue has there", stacklevel=2)
    return None


def _facts(value: object) -> list[tuple]:
    value = from_cell(value)
    try:
        return [
            (_text(title, "supporting_facts"), number) for title, number in catalog.pairs(value, "title", "sent_id")
        ]
    except (ValueError, TypeError, LookupError):
        expected = "expected pairs of a title and a sentence's number"
        raise ValueError(f"'supporting_facts': {expected}, got {value!r:.80}") from None


def _answers(row: Mapping[str, Any]) -> list[str]:
    names = [name for name in ANSWERS if name in row]
    if not names:
        raise ValueError(
            f"there is no 'answer' and no 'answers'; the fields that hold anything are {', '.join(map(repr, row))}"
        )
    golds: list[str] = []
    for name in names:
        value = row[name]
        if isinstance(value, Mapping) and "text" in value:  # SQuAD's, with places in the context
            value = value["text"]
        is_one = name == "answer" and not isinstance(value, list | tuple)  # "|" may be in an answer
        golds += [_text(gold, name) for gold in ([value] if is_one else _listed(value, name))]
    if not any(gold.strip() for gold in golds):
        raise ValueError(f"{names[0]!r} holds no answer: a question without one can be neither trained on nor scored")
    golds += [alias for name in ("aliases", "answer_aliases") for alias in _texts(row.get(name, []), name)]
    return [gold for gold in golds if gold.strip()]


def _contexts(row: Mapping[str, Any]) -> list[Passage]:
    """The passages in a row: texts, objects with title and text, or HotpotQA's and MuSiQue's pairs."""
    name = next((name for name in _CONTEXTS if name in row), None)
    if name is None:
        return []
    value = row[name]
    if isinstance(value, str) and (listed := _written_list(value.strip())) is not None:  # in a cell of a table
        value = listed
    first = value[0] if isinstance(value, list | tuple) and value else value
    if isinstance(value, str) or isinstance(first, str):
        texts = [value] if isinstance(value, str) else value
        return [make_passage(str(row.get("title", "")) or title_from(t), t) for t in (_text(t, name) for t in texts)]
    if isinstance(first, Mapping) and "text" in first:
        if odd := [item for item in value if not isinstance(item, Mapping) or "text" not in item]:
            raise ValueError(f"{name!r}: expected objects with title and text, got {odd[0]!r:.80}")
        pairs = ((str(item.get("title") or ""), _text(item["text"], name)) for item in value)
        return [make_passage(title or title_from(text), text) for title, text in pairs]
    if name == "paragraphs":
        return paragraph_passages(dict(row))
    return context_passages({"context": value})


def split_of(row: Mapping[str, Any]) -> str | None:
    if "split" not in row:
        return None
    word = str(row["split"]).strip().lower()
    if word not in TRAIN + HELD_OUT:
        raise ValueError(f"'split' must be train, validation (or valid, val, dev) or test, got {row['split']!r:.80}")
    return word


def _split_of_verl(row: Mapping[str, Any], file: Path) -> str | None:
    """The split in ``extra_info``, if it is a known one and the name of the file has none."""
    extra = row.get("extra_info")
    word = str(extra.get("split")).lower() if isinstance(extra, Mapping) else ""
    return word if word in TRAIN + HELD_OUT and not _split_in_name(file) else None


def _listed(value: object, name: str) -> list:
    """A list; or a text with | between its parts, as a table holds it."""
    if isinstance(value, str):
        if (parts := _written_list(value.strip())) is not None:
            return parts
        return [part.strip() for part in value.split("|")]
    return list(value) if isinstance(value, list | tuple) else [value]


def from_cell(value: object) -> object:
    """The list that a cell of a table holds, or else the value as it is."""
    return (_written_list(value.strip()) or value) if isinstance(value, str) else value


def _written_list(text: str) -> list | None:
    """The list that a cell of a table was written from, in Python or JSON; None for other text.
    Raises ValueError: it is an array of numpy, without commas."""
    for read in (json.loads, ast.literal_eval) if text[:1] == "[" and text[-1:] == "]" else ():
        try:
            found = read(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if read is ast.literal_eval and re.search(r"""['"]\s+['"]""", text):
            raise ValueError(f"a list without commas, {text!r:.80}: write it as JSON")
        return list(found)
    return None


def _texts(value: object, name: str) -> list[str]:
    return [_text(one, name) for one in _listed(value, name) if not is_absent(one)]


def _text(value: object, name: str) -> str:
    if isinstance(value, bool) and name in ANSWERS:  # StrategyQA's
        return "yes" if value else "no"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{name!r}: expected text or a number, got {value!r:.80}")
    return value if isinstance(value, str) else f"{value:.15g}" if isinstance(value, float) else str(value)


def is_absent(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))
