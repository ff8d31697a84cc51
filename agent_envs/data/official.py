"""The files that the authors of the multi-hop benchmarks publish, read into questions and passages.

HotpotQA and 2WikiMultihopQA share one format: a JSON array of objects with `_id`, `question`, `answer`, `type`,
`supporting_facts` [[title, sentence index]] and `context` [[title, [sentence]]]; 2WikiMultihopQA adds `evidences`
and `answer_id`, whose aliases are in `id_aliases.json` (https://github.com/Alab-NII/2wikimultihop). MuSiQue is JSONL
with `question_decomposition`, `answer_aliases` and `paragraphs` (https://github.com/StonyBrookNLP/musique). The
copies on the hub hold the same records with columns in place of pairs, and go through the same functions.
"""

from __future__ import annotations

import html
import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_envs.data.question import Question, note_id, paragraph_key, question_from_row
from agent_envs.data.records import Record, numbered_records
from retrieval_index import Passage
from retrieval_index.formats import iter_records
from retrieval_index.readers import context_passages, paragraph_passages

Parsed = tuple[Question | None, list[Passage]]
ALIASES_FILE = "id_aliases.json"


def read_official(path: str | Path, parse: Callable[[Mapping], Parsed]) -> tuple[tuple[Question, ...], list[Passage]]:
    """The questions of an official file and the paragraphs they come with, each paragraph once.

    Raises:
        ValueError: naming the file and the line or number of the record that could not be read.
    """
    questions: list[Question] = []
    passages: dict[str, Passage] = {}
    for question, context in parse_records(numbered_records(Path(path)), parse):
        if question is not None:
            questions.append(question)
        passages.update((passage.id, passage) for passage in context)
    if not questions:
        raise ValueError(f"{path}: there is no question of this benchmark in it")
    return tuple(questions), list(passages.values())


def parse_records(records: Iterable[tuple[str, Record]], parse: Callable[[Mapping], Parsed]) -> Iterator[Parsed]:
    """Apply a parser to records that come with their place, and name the place in its errors.

    Two questions of one id are an error, unless the file has no ids and the id was made from the text: then every
    further question of a text has a number behind the id.
    """
    places: dict[str, str] = {}
    tried: Counter[str] = Counter()
    for where, record in records:
        try:
            question, passages = parse(record)
            if question is not None:
                if not _has_id(record):
                    question = replace(question, id=_free_id(question.id, places, tried))
                note_id(question.id, where, places)
            yield question, passages
        except KeyError as error:
            raise ValueError(f"{where} has no {error}") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{where}: {error}") from None


def _has_id(record: Mapping) -> bool:
    return any(str(name).lower().replace("_", "") in ("id", "questionid") for name in record)


def _free_id(id: str, taken: Container[str], tried: Counter[str]) -> str:
    """The id, or the first of "id-2", "id-3", … that is free. ``tried`` spares many rows of one id a search each."""
    while True:
        tried[id] += 1
        free = f"{id}-{tried[id]}" if tried[id] > 1 else id
        if free not in taken:
            return free


def parse_hotpotqa(record: Mapping[str, Any], aliases: Mapping[str, Sequence[str]]) -> Parsed:
    """A record of HotpotQA or 2WikiMultihopQA; `aliases` maps an `answer_id` to other names of the answer."""
    facts = pairs(record["supporting_facts"], "title", "sent_id")
    also = dict.fromkeys(aliases.get(record.get("answer_id") or "", ()))
    also.pop(record["answer"], None)
    passages = context_passages(dict(record)) if record.get("context") else []  # copies without contexts go around
    titles = list(dict.fromkeys(title for title, _ in facts))
    question = question_from_row(
        {
            "id": record.get("_id") or record["id"],
            "question": record["question"],
            "answer": record["answer"],
            "aliases": list(also),
            "type": record.get("type"),
            "supporting_titles": titles,
            "supporting_paragraphs": gold_paragraphs(titles, passages),
            "supporting_facts": facts,
            "evidences": pairs(record.get("evidences") or [], "fact", "relation", "entity") or None,
        }
    )
    return question, passages


def gold_paragraphs(titles: Sequence[str], passages: Iterable[Passage]) -> list[str]:
    """The keys of the paragraphs with these titles, whatever their HTML entities; none at all where one of them is not
    among the passages, or is the title of several paragraphs."""
    wanted = [html.unescape(title) for title in titles]
    named = ((html.unescape(passage.title), passage.text) for passage in passages)
    keys: dict[str, set[str]] = {title: set() for title in wanted}
    for title, text in named:
        if title in keys:
            keys[title].add(paragraph_key(text))
    return [min(keys[title]) for title in wanted] if all(len(found) == 1 for found in keys.values()) else []


def parse_musique(record: Mapping[str, Any]) -> Parsed:
    """A record of MuSiQue. The unanswerable ones of MuSiQue-Full give their paragraphs and no question."""
    passages = paragraph_passages(dict(record))
    if not record.get("answerable", True):
        return None, passages
    gold = [paragraph for paragraph in record["paragraphs"] if paragraph["is_supporting"]]
    question = {
        "id": record["id"],
        "question": record["question"],
        "answer": record["answer"],
        "aliases": record.get("answer_aliases"),
        "supporting_titles": [paragraph["title"] for paragraph in gold],
        "supporting_paragraphs": [paragraph_key(paragraph["paragraph_text"]) for paragraph in gold],
        "decomposition": record.get("question_decomposition"),
    }
    return question_from_row(question), passages


def read_aliases(path: Path) -> dict[str, tuple[str, ...]]:
    """2WikiMultihopQA's `id_aliases.json`: names and demonyms by Wikidata id. Its script counts both as right."""
    aliases: dict[str, tuple[str, ...]] = {}
    for number, row in enumerate(iter_records(path), start=1):
        names = [row.get(field) or [] for field in ("aliases", "demonyms")]
        if not isinstance(row.get("Q_id"), str) or not all(isinstance(each, list) for each in names):
            raise ValueError(f"{path}: record {number}: expected an object with Q_id, aliases and demonyms")
        aliases[row["Q_id"]] = tuple(itertools.chain(*names))
    return aliases


def pairs(value: Any, *names: str) -> list[tuple]:
    """Rows from the official form, a list of lists, or from the hub's, a mapping of columns or a list of mappings."""
    if isinstance(value, Mapping):
        return list(zip(*(value[name] for name in names), strict=True))
    return [tuple(row[name] for name in names) if isinstance(row, Mapping) else tuple(row) for row in value]
