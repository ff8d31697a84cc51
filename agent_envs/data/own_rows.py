"""A row of a file of your own questions: which question it is, its answers and its contexts. See docs/own_data.md."""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from agent_envs.data.catalog import is_flashrag
from agent_envs.data.official import Parsed, gold_paragraphs, pairs, parse_musique
from agent_envs.data.open_domain import benchmark_named_in, hash_id, metadata_of, parse_flashrag, with_question_of_verl
from agent_envs.data.question import question_from_row
from retrieval_index import Passage
from retrieval_index.readers import context_passages, make_passage, paragraph_passages, title_from

TRAIN = ("train", "training")
HELD_OUT = ("validation", "valid", "val", "dev", "development", "eval", "test")  # the first of them that there is
ANSWERS = ("answer", "answers", "golden_answers")
_CONTEXTS = ("contexts", "context", "paragraphs", "passages")
_IDS = ("id", "_id", "question_id", "questionid")
_ANNOTATIONS = ("decomposition", "evidences")  # of a `Question`; in files of yours the names may mean something else
_OWN = {*_CONTEXTS, *_ANNOTATIONS, "supporting_titles", "supporting_facts", "aliases", "answer_aliases", "type"}
_OF_FLASHRAG = {"supporting_facts", "context", "paragraphs", "question_decomposition"}  # what its metadata may hold


def parse_row(row: Mapping[str, Any]) -> Parsed:
    """The question of a row with its contexts: a row of docs/own_data.md, of FlashRAG or Search-R1, of HotpotQA,
    2WikiMultihopQA or MuSiQue. Field names are in lower case, and nothing in it is absent.

    Raises:
        ValueError: a field is missing or of a wrong type, by its name.
    """
    row = with_question_of_verl(row)
    if "question" not in row:
        raise ValueError(f"there is no 'question'; the fields are {_names(row)}")
    if _is_of_flashrag(row):
        question, passages = parse_flashrag({"id": hash_id(row["question"])} | dict(row))
        benchmark = benchmark_named_in(row)  # Search-R1's files hold several, each with a question train_0
        if question and benchmark and "id" in row:
            question = replace(question, id=f"{benchmark}/{question.id}")
        return question, passages
    if "question_decomposition" in row:
        return parse_musique(row)
    passages = _contexts(row)
    facts = _facts(row["supporting_facts"]) if "supporting_facts" in row else []
    titles = _texts(row.get("supporting_titles", []), "supporting_titles") or [*dict.fromkeys(t for t, _ in facts)]
    golds = [*dict.fromkeys(_answers(row))]
    id = next((row[name] for name in _IDS if name in row), None)
    id = hash_id(row["question"]) if id is None else id
    question = question_from_row(
        {
            "id": int(id) if isinstance(id, float) and id.is_integer() else id,  # as pandas has a column with a gap
            "question": row["question"],
            "answer": golds[0],
            "aliases": golds[1:],
            "type": None if (kind := row.get("type")) is None else _text(kind, "type"),
            "supporting_titles": titles,
            "supporting_facts": facts or None,
            "supporting_paragraphs": row.get("supporting_paragraphs", gold_paragraphs(titles, passages)),
            **_annotations(row),
        }
    )
    return question, passages


def _is_of_flashrag(row: Mapping[str, Any]) -> bool:
    """Rows of FlashRAG and Search-R1 keep all but the answers in their metadata. A row of yours may have a field of that name."""
    if not is_flashrag(row) or not {"metadata", "reward_model", "data_source"} & row.keys():
        return False
    known = metadata_of(row).keys() if isinstance(row.get("metadata"), Mapping) else set()
    return bool(_OF_FLASHRAG & known) or not (_OWN & row.keys() and set(ANSWERS) & row.keys())


def _annotations(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Question` that only the benchmarks have; with a warning, without what is something else."""
    found: dict[str, Any] = {}
    for name in _ANNOTATIONS:
        value = from_cell(row.get(name))
        try:
            if value is not None and name == "evidences":
                value = pairs(value, "fact", "relation", "entity")
            question_from_row({"id": "0", "question": "?", "answer": "!", name: value})
            found |= {name: value} if value else {}
        except (ValueError, TypeError, LookupError):
            _say_that_it_is_left_out(name)
    return found


@lru_cache(maxsize=64)  # said once
def _say_that_it_is_left_out(name: str) -> None:
    warnings.warn(f"{name!r} is left out: it is not what HotpotQA, 2WikiMultihopQA or MuSiQue have there", stacklevel=2)


def _facts(value: object) -> list[tuple]:
    value = from_cell(value)
    try:
        return [(title, number) for title, number in pairs(value, "title", "sent_id")]
    except (ValueError, TypeError, LookupError):
        raise ValueError(
            f"'supporting_facts': expected pairs of a title and a sentence's number, got {value!r:.80}"
        ) from None


def _answers(row: Mapping[str, Any]) -> list[str]:
    names = [name for name in ANSWERS if name in row]
    if not names:
        raise ValueError(f"there is no 'answer' and no 'answers'; the fields that hold anything are {_names(row)}")
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
    """The passages that stand in a row: texts, objects with title and text, or HotpotQA's and MuSiQue's pairs."""
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
        return [_context(item, name) for item in value]
    if name == "paragraphs":
        return paragraph_passages(dict(row))
    return context_passages({"context": value})


def _context(item: object, name: str) -> Passage:
    if not isinstance(item, Mapping) or "text" not in item:
        raise ValueError(f"{name!r}: expected objects with title and text, got {item!r:.80}")
    text = _text(item["text"], name)
    return make_passage(str(item.get("title") or "") or title_from(text), text)


def split_of(row: Mapping[str, Any]) -> str | None:
    if "split" not in row:
        return None
    word = str(row["split"]).strip().lower()
    if word not in TRAIN + HELD_OUT:
        raise ValueError(f"'split' must be train, validation (or valid, val, dev) or test, got {row['split']!r:.80}")
    return word


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
    """The list that a cell of a table was written from, in Python or JSON: "['Friday', 'Fridays']"; None for other text.

    Raises:
        ValueError: it is an array of numpy, without commas: its parts can't be told from one text.
    """
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
    if isinstance(value, bool):
        raise ValueError(f'{name!r}: expected text or a number, got {value}: write "yes" or "no"')
    if not isinstance(value, str | int | float):
        raise ValueError(f"{name!r}: expected text or a number, got {value!r:.80}")
    return value if isinstance(value, str) else f"{value:.15g}" if isinstance(value, float) else str(value)


def is_absent(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _names(row: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, row)) or "none"
