"""The benchmarks that publish questions and answers without paragraphs, and FlashRAG's copies of all benchmarks.

- Bamboogle: CSV of `Question,Answer` (https://github.com/ofirpress/self-ask).
- NQ-open: JSONL of `question` and a list `answer`
  (https://github.com/google-research-datasets/natural-questions/tree/master/nq_open).
- TriviaQA: an object whose array `Data` holds `QuestionId`, `Question` and `Answer`, an object with `Value`,
  `NormalizedAliases` and, in some, `HumanAnswers` (https://nlp.cs.washington.edu/triviaqa).
- PopQA: TSV of `id`, `question`, the triple `subj`, `prop`, `obj` that it was made from, and `possible_answers`, a list
  as JSON (https://github.com/AlexTMallen/adaptive-retrieval).
- GSM8K: JSONL of `question` and a worked `answer` that ends in `#### 42` (https://github.com/openai/grade-school-math).
- FlashRAG, which Search-R1 takes its data from: JSONL of `id`, `question`, `golden_answers` and `metadata`
  (https://huggingface.co/datasets/RUC-NLPIR/FlashRAG_datasets).

The copies on the hub hold the same records, those of TriviaQA with names such as `question_id`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from agent_envs.data.official import Parsed, pairs
from agent_envs.data.question import question_from_row

_STATED = re.compile(r"#### ?(-?[.,]*[0-9][0-9.,]*)")


def parse_bamboogle(record: Mapping[str, Any]) -> Parsed:
    """A row of Bamboogle. Its questions have no ids: the id is a hash of the question, as in NQ-open and GSM8K."""
    record = _fold_names(record)
    return _question(record["question"], [record["answer"]])


def parse_nq(record: Mapping[str, Any]) -> Parsed:
    """A record of NQ-open: every answer of the list is right."""
    return _question(record["question"], _check_list(record["answer"], "answer"))


def parse_triviaqa(record: Mapping[str, Any]) -> Parsed:
    """A record of TriviaQA: the normalised aliases are what its script compares with, and `Value` is to be read."""
    record = _fold_names(record)
    answer = _fold_names(record["answer"])
    aliases = _check_list(answer["normalizedaliases"], "NormalizedAliases")
    written = _check_list(answer.get("humananswers") or [], "HumanAnswers")
    return _question(record["question"], [answer["value"], *aliases, *written], id=record["questionid"])


def parse_popqa(record: Mapping[str, Any]) -> Parsed:
    """A record of PopQA; the type of the question is its relationship, such as "occupation"."""
    answers = record["possible_answers"]
    if isinstance(answers, str):
        try:
            answers = json.loads(answers)
        except ValueError as error:
            raise ValueError(f"'possible_answers': {error}") from None
    triple = [record["subj"], record["prop"], record["obj"]]
    return _question(
        record["question"],
        _check_list(answers, "possible_answers"),
        id=record["id"],
        type=record["prop"],
        evidences=[triple] if all(triple) else None,  # the hub's table reader makes null of a name such as "None"
    )


def parse_gsm8k(record: Mapping[str, Any]) -> Parsed:
    """A record of GSM8K: the answer is the number after ####, without commas; the working is left out."""
    stated = _STATED.search(record["answer"])
    if not stated:
        raise ValueError(f"'answer': there is no number after #### in {record['answer'][-80:]!r}")
    return _question(record["question"], [stated[1].replace(",", "")])


def parse_flashrag(record: Mapping[str, Any]) -> Parsed:
    """A record of any benchmark as FlashRAG has it, with the support that it gives for multi-hop questions."""
    metadata = record.get("metadata") or {}
    metadata = metadata.get("metadata") or metadata  # in some files it is nested in itself
    facts = pairs(metadata.get("supporting_facts") or [], "title", "sent_id")
    steps = metadata.get("question_decomposition") or []
    titles = list(dict.fromkeys(title for title, _ in facts)) or [step["support_paragraph"]["title"] for step in steps]
    return _question(
        record["question"],
        _check_list(record["golden_answers"], "golden_answers"),
        id=record["id"],
        type=metadata.get("type") or metadata.get("prop"),
        supporting_titles=titles,
        supporting_facts=facts or None,
        decomposition=list(steps) or None,
    )


def _question(question: object, answers: list, **fields: Any) -> Parsed:
    """A question without passages: the first answer that is not blank is the gold one, the others are its aliases."""
    if odd := [answer for answer in answers if not isinstance(answer, str)]:
        raise ValueError(f"expected answers that are strings, got {odd[0]!r:.80}")
    golds = list(dict.fromkeys(filter(str.strip, answers)))
    if not golds:
        raise ValueError("there is no answer that is not empty")
    digest = blake2b(str(question).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    row = {"id": digest, "question": question, "answer": golds[0], "aliases": golds[1:], **fields}
    return question_from_row(row), []


def _check_list(value: object, name: str) -> list:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name!r}: expected a list, got {value!r:.80}")
    return list(value)


def _fold_names(record: object) -> dict[str, Any]:
    """Field names in one spelling: `QuestionId` of the official files and `question_id` of the hub's are one."""
    if not isinstance(record, Mapping):
        raise ValueError(f"expected an object, got {record!r:.80}")
    return {name.lower().replace("_", ""): value for name, value in record.items()}
