"""Parse rows of files into questions with passages: the format of docs/own_data.md, and those of benchmarks.

HotpotQA, 2WikiMultihopQA and MuSiQue bring paragraphs. FlashRAG and Search-R1 keep those in `metadata`; verl has the question
in `extra_info` or the `prompt` and the answer in `reward_model`. TriviaQA, PopQA, SQuAD and BEIR have fields of their own.
"""

from __future__ import annotations

import contextlib
import html
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from hashlib import blake2b
from typing import Any, NamedTuple

from agent_envs.data.question import Question, Record, paragraph_key, read_list
from retrieval_index import Passage
from retrieval_index.corpus import unescape
from retrieval_index.readers import context_passages, make_passage, paragraph_passages, title_from

TRAIN = ("train", "training")
HELD_OUT = ("validation", "valid", "val", "dev", "development", "eval", "test")  # the first one found is used
_ANSWERS = ("answer", "answers", "golden_answers", "possible_answers")
_ALIASES = ("aliases", "answer_aliases")
_CONTEXTS = ("contexts", "context", "paragraphs", "passages")
_IDS = ("id", "_id", "question_id", "questionid")
_METADATA = ("type", "prop", "supporting_facts", "context", "paragraphs", "question_decomposition")


class Parsed(NamedTuple):
    """What a row holds.

    Attributes:
        question: None for the unanswerable questions of MuSiQue-Full, and for rows of another benchmark.
        passages: what to search, if the row has it.
        split: the value of the row's field ``split``.
        noted_split: the split in verl's ``extra_info``.
        supporting_ids: passages of a corpus that hold the answer.
        benchmark: the benchmark that a row of Search-R1 or verl names.
    """

    question: Question | None
    passages: list[Passage]
    split: str | None = None
    noted_split: str | None = None
    supporting_ids: Sequence[str] = ()
    benchmark: str | None = None


def parse_records(
    records: Iterable[tuple[str, Record]], parse: Callable[[Record], Parsed]
) -> Iterator[tuple[str, Parsed]]:
    """Parse pairs of place and record, and name the place in errors. Two questions with the same id are an error; repeated
    ids made from the text get a number."""
    places: dict[str, str] = {}
    made: Counter[str] = Counter()
    for where, record in records:
        try:
            parsed = parse(record)
            if question := parsed.question:
                if not any(str(name).lower() in _IDS for name in record):
                    made[question.id] += 1
                    numbered = f"{question.id}-{made[question.id]}" if made[question.id] > 1 else question.id
                    parsed = parsed._replace(question=replace(question, id=numbered))
                elif (other := places.setdefault(question.id, where)) != where:
                    raise ValueError(
                        f"the id {question.id!r:.80} is that of {other} too: give every question an id of its own"
                    )
        except KeyError as error:
            raise ValueError(f"{where} has no {error}") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{where}: {error}") from None
        yield where, parsed


def parse_row(record: Record) -> Parsed:
    """Parse one row. Raises a ValueError that names the field if one is missing or has a wrong type."""
    row = {str(name).strip().lower(): value for name, value in record.items() if not _is_absent(value)}
    row = _with_metadata(_with_question_of_verl(row))
    if "question" not in row and "_id" in row and "text" in row:  # BEIR's queries
        row["question"] = row["text"]
    if "question" not in row:
        raise ValueError(f"there is no 'question'; {_list_fields(row)}")
    passages = _contexts(row)
    if "paragraphs" in row and not row.get("answerable", True):
        return Parsed(None, passages)
    text = _text(row["question"], "question")
    if not text.strip():
        raise ValueError("'question' is empty")
    id = next((_text(row[name], name) for name in _IDS if name in row), _hash(str(row["question"])))
    answer, *aliases = dict.fromkeys(_answers(row))
    kind = row.get("type", row.get("prop"))
    kind = None if kind is None else _text(kind, "type")
    question = Question(id, text, answer, tuple(aliases), kind, *_support(row, passages))
    ids, own = _texts(row, "supporting_ids"), _ids_of_contexts(row, passages)
    if ids and own.keys() >= {*ids}:  # passages of the row itself; others are those of a corpus
        gold, ids = [own[id] for id in ids], []
        titles, keys = tuple(p.title for p in gold), tuple(paragraph_key(p.text) for p in gold)
        question = replace(question, supporting_titles=titles, supporting_paragraphs=keys)
    extra = row.get("extra_info")
    noted = str(extra.get("split")).lower() if isinstance(extra, Mapping) else None
    source = row.get("data_source") if "reward_model" in row else None
    return Parsed(
        question,
        passages,
        split=_split(row),
        noted_split=noted if noted in TRAIN + HELD_OUT else None,
        supporting_ids=ids,
        benchmark=source.lower().removeprefix("searchr1_") if isinstance(source, str) else None,
    )


def _with_metadata(row: dict[str, Any]) -> dict[str, Any]:
    """Add to a row what FlashRAG and Search-R1 keep in its ``metadata``, which some files nest in itself."""
    metadata = row.get("metadata")
    if isinstance(metadata, Mapping) and isinstance(metadata.get("metadata"), Mapping):
        metadata = metadata["metadata"]
    if not isinstance(metadata, Mapping) or not {"golden_answers", "reward_model"} & row.keys():
        return row
    return {name: metadata[name] for name in _METADATA if not _is_absent(metadata.get(name))} | row


def _with_question_of_verl(row: dict[str, Any]) -> dict[str, Any]:
    """Add to a row of verl an id and its question: from ``extra_info``, else the prompt or its last message of the user."""
    if "question" in row or "reward_model" not in row:
        return row
    extra = _object(row.get("extra_info", {}), "extra_info")
    question = extra.get("question") or _read_prompt(row.get("prompt", ""))
    if not isinstance(question, str) or not question.strip():
        raise ValueError(
            "a row of verl needs a 'question' in its 'extra_info', or a message of the user in its 'prompt'"
        )
    numbered = f"{extra.get('split', '')}/{extra['index']}".strip("/") if "index" in extra else _hash(question)
    return {"id": numbered, **row, "question": question}


def _read_prompt(prompt: object) -> str:
    """The question in a prompt: a text, or messages, perhaps written as JSON, with a text or a list of parts as content."""
    if isinstance(prompt, str):
        with contextlib.suppress(ValueError):  # a text that only begins like messages
            prompt = json.loads(prompt) if prompt.lstrip().startswith("[{") else prompt
    if isinstance(prompt, str):
        return prompt
    messages = [_object(message, "prompt") for message in _list(prompt, "prompt")]
    content = next((m.get("content") for m in reversed(messages) if m.get("role") == "user"), "")
    if isinstance(content, str):
        return content
    parts = [_object(part, "content") for part in _list(content, "content")]
    if odd := [part for part in parts if not isinstance(part.get("text"), str)]:
        raise ValueError(f"'prompt': a question is text, got a part {odd[0]!r:.80}")
    return "".join(part["text"] for part in parts)


def _answers(row: Mapping[str, Any]) -> list[str]:
    names = [name for name in _ANSWERS if name in row]
    if not names and "reward_model" in row:  # verl's
        truth = _object(row["reward_model"], "reward_model").get("ground_truth")
        row, names = {"answer": truth.get("target") if isinstance(truth, Mapping) else truth}, ["answer"]
    if not names:
        raise ValueError(f"there is no 'answer' and no 'answers'; {_list_fields(row)}")
    golds: list[str] = []
    for name in names:
        value = _answers_in(row[name]) if isinstance(row[name], Mapping) else row[name]
        is_one = name == "answer" and isinstance(value, str)  # "|" may be in an answer
        golds += [_text(gold, name) for gold in ([value] if is_one else _listed(value)) if not _is_absent(gold)]
    if not any(gold.strip() for gold in golds):
        raise ValueError(f"{names[0]!r} holds no answer: a question without one can be neither trained on nor scored")
    golds += [alias for name in _ALIASES for alias in _texts(row, name)]
    return [gold for gold in golds if gold.strip()]


def _list_fields(row: Mapping[str, Any]) -> str:
    return f"the fields that hold anything are {', '.join(map(repr, row))}" if row else "no field holds anything"


def _answers_in(value: Mapping[str, Any]) -> object:
    """The answers in an object: SQuAD's ``text``, or those that TriviaQA's evaluation script compares with."""
    if "text" in value:
        return value["text"]
    folded = {name.lower().replace("_", ""): held for name, held in value.items()}
    if not {"value", "normalizedaliases"} & folded.keys():
        raise ValueError(f"'answer': expected text, a number or a list, got {value!r:.80}")
    return [folded["value"], *folded["normalizedaliases"], *(folded.get("humananswers") or ())]


def _contexts(row: Mapping[str, Any]) -> list[Passage]:
    """The passages in a row: texts, objects with title and text, or HotpotQA's and MuSiQue's pairs."""
    name = next((name for name in _CONTEXTS if name in row), "")
    value = row.get(name)
    if isinstance(value, str):
        value = read_list(value) or [value]  # in a cell of a table
    if value is None or (isinstance(value, Mapping) and not any(value.values())):
        return []
    first = value[0] if isinstance(value, list | tuple) and value else value
    if isinstance(first, str):
        texts = [_text(text, name) for text in value]
        return [make_passage(str(row.get("title", "")) or title_from(text), text) for text in texts]
    if isinstance(first, Mapping) and "text" in first:
        if odd := [item for item in value if not isinstance(item, Mapping) or "text" not in item]:
            raise ValueError(f"{name!r}: expected objects with title and text, got {odd[0]!r:.80}")
        pairs = [(str(item.get("title") or ""), _text(item["text"], name)) for item in value]
        return [make_passage(title or title_from(text), text) for title, text in pairs]
    if name == "paragraphs":
        return paragraph_passages({name: value})
    try:
        return context_passages({"context": value})
    except ValueError:
        if name == "context":
            raise
        raise ValueError(f"{name!r}: expected texts, or objects with title and text, got {first!r:.80}") from None


def _ids_of_contexts(row: Mapping[str, Any], passages: Sequence[Passage]) -> dict[str, Passage]:
    """The passages in a row by the ids that it gives them."""
    value: Any = next((row[name] for name in _CONTEXTS if name in row), [])
    if not isinstance(value, list | tuple) or len(value) != len(passages):
        return {}
    pairs = [
        (item.get("id"), passage) for item, passage in zip(value, passages, strict=True) if isinstance(item, Mapping)
    ]
    return {_text(id, "id"): passage for id, passage in pairs if not _is_absent(id)}


def _support(row: Mapping[str, Any], passages: Iterable[Passage]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The titles of the gold paragraphs, and the keys of their texts; no keys if one of them is not known."""
    titles = _texts(row, "supporting_titles") or _titles_of_facts(row.get("supporting_facts", []))
    if not titles:  # MuSiQue
        name = "question_decomposition"
        found = [_object(step, name).get("support_paragraph") for step in _list(row.get(name, []), name)]
        steps = [_object(paragraph, "support_paragraph") for paragraph in found if paragraph]
        paragraphs = [one for one in row.get("paragraphs", []) if isinstance(one, Mapping) and one.get("is_supporting")]
        gold = steps or paragraphs
        keys = [paragraph_key(one["paragraph_text"]) for one in gold if one.get("paragraph_text")]
        return tuple(_text(one["title"], "paragraphs") for one in gold), tuple(keys if len(keys) == len(gold) else ())
    if "supporting_paragraphs" not in row:
        return tuple(titles), tuple(_keys_of_titles(titles, passages))
    keys = _texts(row, "supporting_paragraphs")
    if keys and len(keys) != len(titles):
        got = f"got {len(keys)} for {len(titles)}; repeat a title that two paragraphs share"
        raise ValueError(f"'supporting_paragraphs': give one for each of supporting_titles, {got}")
    return tuple(titles), tuple(keys)


def _titles_of_facts(facts: Any) -> list[str]:
    """The titles in HotpotQA's pairs of title and sentence number, which are two columns in copies on the hub."""
    facts = read_list(facts) or facts if isinstance(facts, str) else facts
    try:
        rows = zip(facts["title"], facts["sent_id"], strict=True) if isinstance(facts, Mapping) else facts
        pairs = [(row["title"], row["sent_id"]) if isinstance(row, Mapping) else row for row in rows]
        return [*dict.fromkeys(_text(title, "supporting_facts") for title, _ in pairs)]
    except (ValueError, TypeError, LookupError):
        expected = "expected pairs of a title and a sentence's number"
        raise ValueError(f"'supporting_facts': {expected}, got {facts!r:.80}") from None


def _keys_of_titles(titles: Sequence[str], passages: Iterable[Passage]) -> list[str]:
    """The keys of the paragraphs with these titles; [] if one of them is the title of no passage, or of several."""
    keys: dict[str, set[str]] = {html.unescape(title): set() for title in titles}
    for passage in passages:
        if (title := html.unescape(passage.title)) in keys:
            keys[title].add(paragraph_key(passage.text))
    if any(len(found) != 1 for found in keys.values()):
        return []
    return [min(keys[html.unescape(title)]) for title in titles]  # a title may come twice


def _split(row: Mapping[str, Any]) -> str | None:
    word = str(row["split"]).strip().lower() if "split" in row else None
    if word is not None and word not in TRAIN + HELD_OUT:
        raise ValueError(f"'split' must be one of {', '.join(TRAIN + HELD_OUT)}, got {row['split']!r:.80}")
    return word


def _hash(question: str) -> str:
    """The id of a question that has none: a hash of its text, 16 hexadecimal digits."""
    return blake2b(question.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _texts(row: Mapping[str, Any], name: str) -> list[str]:
    return [_text(one, name) for one in _listed(row.get(name, [])) if not _is_absent(one)]


def _listed(value: object) -> list:
    """A value as a list; a text, as a table holds it, is a written list or has | between its parts."""
    if isinstance(value, str):
        return parts if (parts := read_list(value)) is not None else [part.strip() for part in value.split("|")]
    return list(value) if isinstance(value, list | tuple) else [value]


def _text(value: object, name: str) -> str:
    if isinstance(value, bool) and name in _ANSWERS:  # StrategyQA's
        return "yes" if value else "no"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{name!r}: expected text or a number, got {value!r:.80}")
    text = str(value)
    if isinstance(value, float) and math.isfinite(value):
        text = f"{Decimal(f'{value:.15g}'):f}"  # 0.00005, and not 5e-05
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name!r}: a lone surrogate is no text: {text!a:.80}") from None
    return unescape(text)


def _list(value: object, name: str) -> Sequence:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name!r}: expected a list, got {value!r:.80}")
    return value


def _object(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name!r}: expected an object, got {value!r:.80}")
    return value


def _is_absent(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))
