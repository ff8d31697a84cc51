"""The benchmarks that publish questions and answers without paragraphs, and FlashRAG's and Search-R1's copies of all.

- Bamboogle: CSV of `Question,Answer` (https://github.com/ofirpress/self-ask).
- NQ-open: JSONL of `question` and a list `answer`
  (https://github.com/google-research-datasets/natural-questions/tree/master/nq_open).
- TriviaQA: an object whose array `Data` holds `QuestionId`, `Question` and `Answer`, an object with `Value`,
  `NormalizedAliases` and, in some, `HumanAnswers` (https://nlp.cs.washington.edu/triviaqa).
- PopQA: TSV of `id`, `question`, the triple `subj`, `prop`, `obj` that it was made from, and `possible_answers`, a list
  as JSON (https://github.com/AlexTMallen/adaptive-retrieval).
- GSM8K: JSONL of `question` and a worked `answer` that ends in `#### 42` (https://github.com/openai/grade-school-math).
- FlashRAG: JSONL of `id`, `question`, `golden_answers` and `metadata`, which has the support and the paragraphs of
  multi-hop questions (https://huggingface.co/datasets/RUC-NLPIR/FlashRAG_datasets).
- Search-R1: the same rows as Parquet or JSONL, several benchmarks in a file, told apart by `data_source`; with `prompt`,
  `ability`, `reward_model` (`ground_truth`, an object whose `target` repeats the answers) and `extra_info`
  (https://github.com/PeterGriffinJin/Search-R1).

The copies on the hub hold the same records, those of TriviaQA with names such as `question_id`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from agent_envs.data.official import Parsed, gold_paragraphs, pairs
from agent_envs.data.question import paragraph_key, question_from_row
from retrieval_index import Passage
from retrieval_index.readers import context_passages, paragraph_passages

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
    """A record of any benchmark as FlashRAG and Search-R1 have it, with the support and the paragraphs that it gives for
    multi-hop questions."""
    record = with_question_of_verl(record)
    metadata = metadata_of(record)
    passages = _passages(metadata)
    facts = pairs(metadata.get("supporting_facts") or [], "title", "sent_id")
    steps = list(metadata.get("question_decomposition") or [])
    gold = [step["support_paragraph"] for step in steps if step.get("support_paragraph")]
    gold = gold or [paragraph for paragraph in metadata.get("paragraphs") or [] if paragraph.get("is_supporting")]
    titles = list(dict.fromkeys(title for title, _ in facts)) or [paragraph["title"] for paragraph in gold]
    texts = [paragraph["paragraph_text"] for paragraph in gold if paragraph.get("paragraph_text")]
    keys = gold_paragraphs(titles, passages) if facts else [paragraph_key(text) for text in texts]
    question, _ = _question(
        record["question"],
        _golden_answers(record),
        id=record["id"],
        type=metadata.get("type") or metadata.get("prop"),
        supporting_titles=titles,
        supporting_paragraphs=keys if len(keys) == len(titles) else [],
        supporting_facts=facts or None,
        decomposition=steps or None,
    )
    return question, passages


def metadata_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """What FlashRAG knows of a question beside its answers; in some files it is nested in itself."""
    metadata = _check_object(record.get("metadata") or {}, "metadata")
    return _check_object(metadata.get("metadata") or metadata, "metadata")


def benchmark_named_in(record: Mapping[str, Any]) -> str | None:
    """The benchmark that a row of Search-R1 says it is of; None for other rows."""
    source = record.get("data_source")
    return source.lower().removeprefix("searchr1_") if isinstance(source, str) else None


def with_question_of_verl(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """verl's preprocessing of Search-R1's rows leaves the question in ``extra_info`` alone, and gives no id."""
    extra = record.get("extra_info")
    if "question" in record or not isinstance(extra, Mapping) or not isinstance(extra.get("question"), str):
        return record
    return {"id": hash_id(extra["question"]), **record, "question": extra["question"]}


def has_paragraphs(record: Mapping[str, Any], field: str) -> bool:
    """Whether a question comes with paragraphs in this field: a list of them, or a mapping of columns."""
    value = record.get(field)
    return any(value.values()) if isinstance(value, Mapping) else bool(value)


def _passages(metadata: Mapping[str, Any]) -> list[Passage]:
    if has_paragraphs(metadata, "context"):
        return context_passages(dict(metadata))
    return paragraph_passages(dict(metadata)) if has_paragraphs(metadata, "paragraphs") else []


def _golden_answers(record: Mapping[str, Any]) -> list:
    if record.get("golden_answers") is None and "reward_model" in record:
        return _check_list(record["reward_model"]["ground_truth"]["target"], "target")
    return _check_list(record["golden_answers"], "golden_answers")


def _question(question: object, answers: list, **fields: Any) -> Parsed:
    """A question without passages: the first answer that is not blank is the gold one, the others are its aliases."""
    if odd := [answer for answer in answers if not isinstance(answer, str)]:
        raise ValueError(f"expected answers that are strings, got {odd[0]!r:.80}")
    golds = list(dict.fromkeys(filter(str.strip, answers)))
    if not golds:
        raise ValueError("there is no answer that is not empty")
    row = {"id": hash_id(question), "question": question, "answer": golds[0], "aliases": golds[1:], **fields}
    return question_from_row(row), []


def hash_id(question: object) -> str:
    """The id of a question that has none: a hash of its text, 16 hexadecimal digits."""
    return blake2b(str(question).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _check_list(value: object, name: str) -> list:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name!r}: expected a list, got {value!r:.80}")
    return list(value)


def _check_object(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name!r}: expected an object, got {value!r:.80}")
    return value


def _fold_names(record: object) -> dict[str, Any]:
    """Field names in one spelling: `QuestionId` of the official files and `question_id` of the hub's are one."""
    if not isinstance(record, Mapping):
        raise ValueError(f"expected an object, got {record!r:.80}")
    return {name.lower().replace("_", ""): value for name, value in record.items()}
