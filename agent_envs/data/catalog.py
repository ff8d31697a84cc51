"""The benchmarks that can be loaded by name: their places, the names of their files, and how to read a record of each.

The copies on the hub hold the same records as the official files, with columns instead of pairs, and names such as
`question_id`. FlashRAG (https://huggingface.co/datasets/RUC-NLPIR/FlashRAG_datasets) and Search-R1
(https://github.com/PeterGriffinJin/Search-R1) publish rows of their own; Search-R1's files hold several benchmarks.
"""

from __future__ import annotations

import html
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agent_envs.data.question import Question, Record, note_id, numbered_records, paragraph_key, question_from_row
from retrieval_index import Passage
from retrieval_index.formats import iter_records
from retrieval_index.readers import context_passages, paragraph_passages

Parsed = tuple[Question | None, list[Passage]]
ALIASES_FILE = "id_aliases.json"
_STATED = re.compile(r"#### ?(-?[.,]*[0-9][0-9.,]*)")
SPLITS = ("train", "validation")
Parser = Callable[[Mapping], Parsed]


def read_official(path: str | Path, parse: Callable[[Mapping], Parsed]) -> tuple[tuple[Question, ...], list[Passage]]:
    """The questions of an official file and their paragraphs, each once. Raises ValueError: by file and record."""
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
    """Apply a parser to records that come with their place, and name the place in its errors. Two questions of one id are an
    error; ids made from the text get a number."""
    places: dict[str, str] = {}
    tried: Counter[str] = Counter()
    for where, record in records:
        try:
            question, passages = parse(record)
            if question is not None:
                if not _has_id(record):
                    tried[question.id] += 1
                    number = tried[question.id]
                    question = replace(question, id=f"{question.id}-{number}" if number > 1 else question.id)
                note_id(question.id, where, places)
            yield question, passages
        except KeyError as error:
            raise ValueError(f"{where} has no {error}") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{where}: {error}") from None


def _has_id(record: Mapping) -> bool:
    return any(str(name).lower().replace("_", "") in ("id", "questionid") for name in record)


def parse_hotpotqa(record: Mapping[str, Any], aliases: Mapping[str, Sequence[str]] = MappingProxyType({})) -> Parsed:
    """Read a record of HotpotQA or 2WikiMultihopQA; `aliases` maps an `answer_id` to other names of the answer."""
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
        }
    )
    return question, passages


def gold_paragraphs(titles: Sequence[str], passages: Iterable[Passage]) -> list[str]:
    """The keys of the paragraphs with these titles; [] if one of them is the title of no passage, or of several."""
    wanted = [html.unescape(title) for title in titles]
    named = ((html.unescape(passage.title), passage.text) for passage in passages)
    keys: dict[str, set[str]] = {title: set() for title in wanted}
    for title, text in named:
        if title in keys:
            keys[title].add(paragraph_key(text))
    return [min(keys[title]) for title in wanted] if all(len(found) == 1 for found in keys.values()) else []


def parse_musique(record: Mapping[str, Any]) -> Parsed:
    """Read a record of MuSiQue. The unanswerable ones of MuSiQue-Full give their paragraphs and no question."""
    passages = paragraph_passages(dict(record))
    if not record.get("answerable", True):
        return None, passages
    gold = [paragraph for paragraph in record["paragraphs"] if paragraph["is_supporting"]]
    question = {
        **{name: record[name] for name in ("id", "question", "answer")},
        "aliases": record.get("answer_aliases"),
        "supporting_titles": [paragraph["title"] for paragraph in gold],
        "supporting_paragraphs": [paragraph_key(paragraph["paragraph_text"]) for paragraph in gold],
        "decomposition": record.get("question_decomposition"),
    }
    return question_from_row(question), passages


def read_aliases(path: Path) -> dict[str, tuple[str, ...]]:
    """Read 2WikiMultihopQA's `id_aliases.json`: names and demonyms by Wikidata id."""
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


# -- without paragraphs, and with those of FlashRAG ---------------------------------------------------------------------


def parse_bamboogle(record: Mapping[str, Any]) -> Parsed:
    """Read a row of Bamboogle. The id is a hash of the question, as in NQ-open and GSM8K."""
    record = _fold_names(record)
    return _question(record["question"], [record["answer"]])


def parse_nq(record: Mapping[str, Any]) -> Parsed:
    """Read a record of NQ-open: every answer of the list is right."""
    return _question(record["question"], _check_list(record["answer"], "answer"))


def parse_triviaqa(record: Mapping[str, Any]) -> Parsed:
    """Read a record of TriviaQA, whose script compares with the normalised aliases."""
    record = _fold_names(record)
    answer = _fold_names(record["answer"])
    aliases = _check_list(answer["normalizedaliases"], "NormalizedAliases")
    written = _check_list(answer.get("humananswers") or [], "HumanAnswers")
    return _question(record["question"], [answer["value"], *aliases, *written], id=record["questionid"])


def parse_popqa(record: Mapping[str, Any]) -> Parsed:
    """Read a record of PopQA; the type of the question is its relationship, such as "occupation"."""
    answers = record["possible_answers"]
    if isinstance(answers, str):
        try:
            answers = json.loads(answers)
        except ValueError as error:
            raise ValueError(f"'possible_answers': {error}") from None
    golds = _check_list(answers, "possible_answers")
    return _question(record["question"], golds, id=record["id"], type=record["prop"])


def parse_gsm8k(record: Mapping[str, Any]) -> Parsed:
    """Read a record of GSM8K: the answer is the number after ####, without commas."""
    stated = _STATED.search(record["answer"])
    if not stated:
        raise ValueError(f"'answer': there is no number after #### in {record['answer'][-80:]!r}")
    return _question(record["question"], [stated[1].replace(",", "")])


def parse_flashrag(record: Mapping[str, Any]) -> Parsed:
    """Read a record of FlashRAG or Search-R1, with the support and the paragraphs of multi-hop questions."""
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
    """The metadata of FlashRAG's row; in some files it is nested in itself."""
    metadata = _check_object(record.get("metadata") or {}, "metadata")
    return _check_object(metadata.get("metadata") or metadata, "metadata")


def benchmark_named_in(record: Mapping[str, Any]) -> str | None:
    """The benchmark that a row of Search-R1 names; None for other rows."""
    source = record.get("data_source")
    return source.lower().removeprefix("searchr1_") if isinstance(source, str) else None


def with_question_of_verl(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of verl with its question, the one in ``extra_info``, else the prompt or its last message of the user, and an id."""
    if "question" in record or "reward_model" not in record:
        return record
    extra = _check_object(record.get("extra_info") or {}, "extra_info")
    question = extra.get("question") or _read_prompt(record.get("prompt", ""))
    if not isinstance(question, str) or not question.strip():
        raise ValueError(
            "a row of verl needs a 'question' in its 'extra_info', or a message of the user in its 'prompt'"
        )
    numbered = f"{extra.get('split', '')}/{extra['index']}".strip("/") if "index" in extra else hash_id(question)
    return {"id": numbered, **record, "question": question}


def _read_prompt(prompt: object) -> str:
    """What is asked in a prompt: a text, or messages, perhaps written as JSON, whose content is a text or a list of parts."""
    if isinstance(prompt, str):
        if not prompt.lstrip().startswith("[{"):
            return prompt
        try:
            prompt = json.loads(prompt)
        except ValueError:  # a text that begins like that
            return str(prompt)
    messages = [_check_object(message, "prompt") for message in _check_list(prompt, "prompt")]
    content = next((m.get("content") for m in reversed(messages) if m.get("role") == "user"), "")
    if isinstance(content, str):
        return content
    parts = [_check_object(part, "content") for part in _check_list(content, "content")]
    if odd := [part for part in parts if not isinstance(part.get("text"), str)]:
        raise ValueError(f"'prompt': a question is text, got a part {odd[0]!r:.80}")
    return "".join(part["text"] for part in parts)


def has_paragraphs(record: Mapping[str, Any], field: str) -> bool:
    """Whether the field holds paragraphs: a list, or a mapping of columns."""
    value = record.get(field)
    return any(value.values()) if isinstance(value, Mapping) else bool(value)


def _passages(metadata: Mapping[str, Any]) -> list[Passage]:
    if has_paragraphs(metadata, "context"):
        return context_passages(dict(metadata))
    return paragraph_passages(dict(metadata)) if has_paragraphs(metadata, "paragraphs") else []


def _golden_answers(record: Mapping[str, Any]) -> list:
    if record.get("golden_answers") is None and "reward_model" in record:
        truth = _check_object(record["reward_model"], "reward_model").get("ground_truth")
        truth = truth.get("target") if isinstance(truth, Mapping) else truth
        golds = truth if isinstance(truth, list | tuple) else [] if truth is None else [truth]
        return [("no", "yes")[gold] if isinstance(gold, bool) else str(gold) for gold in golds]
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


# -- the benchmarks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One benchmark."""

    title: str
    homepage: str
    repository: str  # on the hub
    configuration: str | None = None
    official_files: Mapping[str, tuple[str, ...]]  # by split, the preferred file first; no key for a split it lacks
    parse: Parser  # of a record of an official file
    flashrag: str = "test.jsonl"  # FlashRAG's file of the held-out questions; "" where it has none
    held_out: str = "validation"  # what "validation" is called on the hub
    own_passages: bool = False  # whether questions come with paragraphs to search in


def parser_of(name: str, folder: Path | None) -> Parser:
    """The function that reads a benchmark's record, official, FlashRAG's or Search-R1's; nothing for a row of another one."""
    entry = CATALOG[name]
    official = entry.parse
    if name == "2wikimultihopqa" and folder and (folder / ALIASES_FILE).is_file():
        official = partial(parse_hotpotqa, aliases=read_aliases(folder / ALIASES_FILE))
    if not entry.flashrag:
        return official

    def parse(record: Mapping) -> Parsed:
        if not is_of(name, record):
            return None, []
        return parse_flashrag(record) if is_flashrag(record) else official(record)

    return parse


def is_of(name: str, record: Mapping) -> bool:
    """False for a row that names another benchmark."""
    return benchmark_named_in(record) in (None, name) or not is_flashrag(record)


def is_flashrag(record: Mapping) -> bool:
    """Whether it is a row of FlashRAG or Search-R1."""
    return "golden_answers" in record or "reward_model" in record


CATALOG: Mapping[str, CatalogEntry] = {
    "hotpotqa": CatalogEntry(
        title="HotpotQA",
        homepage="https://hotpotqa.github.io",
        repository="hotpotqa/hotpot_qa",
        configuration="distractor",  # the contexts of "fullwiki" are search results and may lack the gold paragraphs
        official_files={
            "train": ("hotpot_train_v1.1.json", "hotpot_train_v1.json"),
            "validation": ("hotpot_dev_distractor_v1.json", "hotpot_dev_fullwiki_v1.json"),
        },
        parse=parse_hotpotqa,
        flashrag="dev.jsonl",
        own_passages=True,
    ),
    "2wikimultihopqa": CatalogEntry(
        title="2WikiMultihopQA",
        homepage="https://github.com/Alab-NII/2wikimultihop",
        # The authors' own copy, xanhho/2WikiMultihopQA, is a loading script, which `datasets` has not supported since 4.0.
        repository="framolfese/2WikiMultihopQA",
        official_files={"train": ("train.json",), "validation": ("dev.json",)},
        parse=parse_hotpotqa,
        flashrag="dev.jsonl",
        own_passages=True,
    ),
    "musique": CatalogEntry(
        title="MuSiQue",
        homepage="https://github.com/StonyBrookNLP/musique",
        repository="dgslibisey/MuSiQue",
        official_files={
            "train": ("musique_ans_v1.0_train.jsonl", "musique_full_v1.0_train.jsonl"),
            "validation": ("musique_ans_v1.0_dev.jsonl", "musique_full_v1.0_dev.jsonl"),
        },
        parse=parse_musique,
        flashrag="dev.jsonl",
        own_passages=True,
    ),
    "bamboogle": CatalogEntry(
        title="Bamboogle",
        homepage="https://github.com/ofirpress/self-ask",
        repository="chiayewken/bamboogle",
        official_files={"validation": ("Bamboogle Prerelease - Sheet1.csv",)},
        parse=parse_bamboogle,
        held_out="test",
    ),
    "nq": CatalogEntry(
        title="NQ-open",
        homepage="https://github.com/google-research-datasets/natural-questions/tree/master/nq_open",
        repository="google-research-datasets/nq_open",
        official_files={"train": ("NQ-open.train.jsonl",), "validation": ("NQ-open.dev.jsonl",)},
        parse=parse_nq,
    ),
    "triviaqa": CatalogEntry(
        title="TriviaQA",
        homepage="https://nlp.cs.washington.edu/triviaqa",
        repository="mandarjoshi/trivia_qa",
        # Each question once, as in open-domain work (11,313 to validate on); "rc" has a row a kind of evidence.
        configuration="unfiltered.nocontext",
        official_files={
            "train": ("unfiltered-web-train.json", "wikipedia-train.json", "qa/wikipedia-train.json"),
            "validation": ("unfiltered-web-dev.json", "wikipedia-dev.json", "qa/wikipedia-dev.json"),
        },
        parse=parse_triviaqa,
    ),
    "popqa": CatalogEntry(
        title="PopQA",
        homepage="https://github.com/AlexTMallen/adaptive-retrieval",
        repository="akariasai/PopQA",
        official_files={"validation": ("popQA.tsv",)},
        parse=parse_popqa,
        held_out="test",
    ),
    "gsm8k": CatalogEntry(
        title="GSM8K",
        homepage="https://github.com/openai/grade-school-math",
        repository="openai/gsm8k",
        configuration="main",
        official_files={"train": ("train.jsonl",), "validation": ("test.jsonl",)},
        parse=parse_gsm8k,
        flashrag="",
        held_out="test",
    ),
}
