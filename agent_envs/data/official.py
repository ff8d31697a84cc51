"""The files that the authors of the benchmarks publish, read into questions and passages.

HotpotQA and 2WikiMultihopQA share one format: a JSON array of objects with `_id`, `question`, `answer`, `type`,
`supporting_facts` [[title, sentence index]] and `context` [[title, [sentence]]]; 2WikiMultihopQA adds `evidences`
and `answer_id`, whose aliases are in `id_aliases.json` (https://github.com/Alab-NII/2wikimultihop). MuSiQue is JSONL
with `question_decomposition`, `answer_aliases` and `paragraphs` (https://github.com/StonyBrookNLP/musique). The
copies on the hub hold the same records with columns in place of pairs, and go through the same functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from agent_envs.data.question import Question, question_from_row
from retrieval_index import Passage

Parsed = tuple[Question | None, list[Passage]]
ALIASES_FILE = "id_aliases.json"
_CHUNK = 1 << 16
_LONGEST_RECORD = 1 << 22  # a record has some 20 kB; without a limit, one broken quote would read in the whole file


def read_official(path: str | Path, parse: Callable[[Mapping], Parsed]) -> tuple[tuple[Question, ...], list[Passage]]:
    """The questions of an official file and the paragraphs they come with, each paragraph once.

    Raises:
        ValueError: naming the file and the number of the record that could not be read.
    """
    questions, passages = [], {}
    for question, context in parse_records(iter_records(path), parse, str(path)):
        if question is not None:
            questions.append(question)
        passages.update((passage.id, passage) for passage in context)
    if not questions:
        raise ValueError(f"{path}: there is no question in it")
    return tuple(questions), list(passages.values())


def parse_records(records: Iterable[Mapping], parse: Callable[[Mapping], Parsed], where: str) -> Iterator[Parsed]:
    """Apply a parser to records, and say in its errors which record it was."""
    for number, record in enumerate(records, start=1):
        try:
            yield parse(record)
        except KeyError as error:
            raise ValueError(f"{where}: record {number} has no {error}") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{where}: record {number}: {error}") from None


def parse_hotpotqa(record: Mapping[str, Any], aliases: Mapping[str, Sequence[str]]) -> Parsed:
    """A record of HotpotQA or 2WikiMultihopQA; `aliases` maps an `answer_id` to other names of the answer."""
    facts = _pairs(record["supporting_facts"], "title", "sent_id")
    also = dict.fromkeys(aliases.get(record.get("answer_id") or "", ()))
    also.pop(record["answer"], None)
    question = question_from_row(
        {
            "id": record.get("_id") or record["id"],
            "question": record["question"],
            "answer": record["answer"],
            "aliases": list(also),
            "type": record.get("type"),
            "supporting_titles": list(dict.fromkeys(title for title, _ in facts)),
            "supporting_facts": facts,
            "evidences": _pairs(record.get("evidences") or [], "fact", "relation", "entity") or None,
        }
    )
    context = [(title, _join(sentences)) for title, sentences in _pairs(record["context"], "title", "sentences")]
    return question, [make_passage(title, text) for title, text in context if text]


def parse_musique(record: Mapping[str, Any]) -> Parsed:
    """A record of MuSiQue. The unanswerable ones of MuSiQue-Full give their paragraphs and no question."""
    paragraphs = record["paragraphs"]
    passages = [make_passage(paragraph["title"], paragraph["paragraph_text"]) for paragraph in paragraphs]
    if not record.get("answerable", True):
        return None, passages
    question = {
        "id": record["id"],
        "question": record["question"],
        "answer": record["answer"],
        "aliases": record.get("answer_aliases"),
        "supporting_titles": [paragraph["title"] for paragraph in paragraphs if paragraph["is_supporting"]],
        "decomposition": record.get("question_decomposition"),
    }
    return question_from_row(question), passages


def read_aliases(path: Path) -> dict[str, tuple[str, ...]]:
    """2WikiMultihopQA's `id_aliases.json`: names and demonyms by Wikidata id. Its script counts both as right."""
    rows = iter_records(path)
    return {row["Q_id"]: (*row.get("aliases", ()), *row.get("demonyms", ())) for row in rows}


def make_passage(title: str, text: str) -> Passage:
    """A passage whose id is a hash of its content: the same paragraph has one id in every file and split."""
    return Passage(blake2b(f"{title}\n{text}".encode(), digest_size=8).hexdigest(), title, text)


def iter_records(path: str | Path) -> Iterator[dict]:
    """Stream the objects of a JSON array or of a JSONL file; the largest official file would take 3 GB as one list.

    Raises:
        ValueError: the file breaks off or is no such JSON, saying how many objects were read before.
    """
    decode = json.JSONDecoder().raw_decode
    buffer, count = "", 0
    with open(path, encoding="utf-8-sig") as file:
        while True:
            buffer = buffer.lstrip(" \t\r\n[,]")
            try:
                record, end = decode(buffer)
            except (ValueError, RecursionError) as error:
                # Broken, or only cut off by the end of the chunk: more text tells.
                chunk = file.read(_CHUNK) if len(buffer) < _LONGEST_RECORD else ""
                if not chunk and not buffer:
                    return
                if not chunk:
                    raise ValueError(f"{path}: after {count} records: {error}") from None
                buffer += chunk
                continue
            if not isinstance(record, dict):
                raise ValueError(f"{path}: record {count + 1} is not an object")
            buffer, count = buffer[end:], count + 1
            yield record


def _pairs(value: object, *names: str) -> list[tuple]:
    """Rows from the official form, a list of lists, or from the hub's, a mapping of columns or a list of mappings."""
    if isinstance(value, Mapping):
        return list(zip(*(value[name] for name in names), strict=True))
    return [tuple(row[name] for name in names) if isinstance(row, Mapping) else tuple(row) for row in value]


def _join(sentences: Sequence[str]) -> str:
    """HotpotQA's sentences carry the space between them, 2WikiMultihopQA's do not."""
    spaced = any(sentence[:1].isspace() for sentence in sentences[1:])
    return ("" if spaced else " ").join(sentences).strip()
