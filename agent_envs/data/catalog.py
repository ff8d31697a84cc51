"""The benchmarks that can be loaded by name: their places, the names of their files, and what is odd about their rows.

The copies on the hub hold the same records as the official files, with columns instead of pairs, and names such as
`question_id`. FlashRAG (https://huggingface.co/datasets/RUC-NLPIR/FlashRAG_datasets) and Search-R1
(https://github.com/PeterGriffinJin/Search-R1) publish rows of their own; Search-R1's files hold several benchmarks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_envs.data.question import Record
from agent_envs.data.rows import Parsed, parse_row
from retrieval_index.formats import iter_records

ALIASES_FILE = "id_aliases.json"
SPLITS = ("train", "validation")
_STATED = re.compile(r"#### ?(-?[.,]*[0-9][0-9.,]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One benchmark."""

    title: str
    homepage: str
    repository: str  # on the hub
    configuration: str | None = None
    official_files: Mapping[str, tuple[str, ...]]  # by split, the preferred file first; no key for a split it lacks
    flashrag: str = "test.jsonl"  # FlashRAG's file of the held-out questions; "" where it has none
    held_out: str = "validation"  # what "validation" is called on the hub
    own_passages: bool = False  # whether questions come with paragraphs to search in


def parser_of(name: str, folder: Path | None) -> Callable[[Record], Parsed]:
    """The function that parses a benchmark's rows; a row of another benchmark gives no question. ``folder`` may have
    2WikiMultihopQA's file of aliases."""
    file = folder / ALIASES_FILE if folder and name == "2wikimultihopqa" else None
    aliases = read_aliases(file) if file and file.is_file() else {}

    def parse(record: Record) -> Parsed:
        if name == "gsm8k" and "id" not in record:
            record = {**record, "answer": _stated_number(record["answer"])}
        if also := aliases.get(record.get("answer_id") or ""):
            record = {**record, "aliases": [*(record.get("aliases") or ()), *also]}
        parsed = parse_row(record)
        return parsed if parsed.benchmark in (None, name) else Parsed(None, [])

    return parse


def _stated_number(answer: str) -> str:
    """The number after #### in an answer of GSM8K, without commas."""
    stated = _STATED.search(answer)
    if not stated:
        raise ValueError(f"'answer': there is no number after #### in {answer[-80:]!r}")
    return stated[1].replace(",", "")


def read_aliases(path: Path) -> dict[str, tuple[str, ...]]:
    """Read 2WikiMultihopQA's `id_aliases.json`: names and demonyms by Wikidata id."""
    aliases: dict[str, tuple[str, ...]] = {}
    for number, row in enumerate(iter_records(path), start=1):
        names: list[Any] = [row.get(field) or [] for field in ("aliases", "demonyms")]
        if not isinstance(row.get("Q_id"), str) or not all(isinstance(each, list) for each in names):
            raise ValueError(f"{path}: record {number}: expected an object with Q_id, aliases and demonyms")
        aliases[row["Q_id"]] = (*names[0], *names[1])
    return aliases


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
        flashrag="dev.jsonl",
        own_passages=True,
    ),
    "2wikimultihopqa": CatalogEntry(
        title="2WikiMultihopQA",
        homepage="https://github.com/Alab-NII/2wikimultihop",
        # The authors' own copy, xanhho/2WikiMultihopQA, is a loading script, which `datasets` has not supported since 4.0.
        repository="framolfese/2WikiMultihopQA",
        official_files={"train": ("train.json",), "validation": ("dev.json",)},
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
        flashrag="dev.jsonl",
        own_passages=True,
    ),
    "bamboogle": CatalogEntry(
        title="Bamboogle",
        homepage="https://github.com/ofirpress/self-ask",
        repository="chiayewken/bamboogle",
        official_files={"validation": ("Bamboogle Prerelease - Sheet1.csv",)},
        held_out="test",
    ),
    "nq": CatalogEntry(
        title="NQ-open",
        homepage="https://github.com/google-research-datasets/natural-questions/tree/master/nq_open",
        repository="google-research-datasets/nq_open",
        official_files={"train": ("NQ-open.train.jsonl",), "validation": ("NQ-open.dev.jsonl",)},
    ),
    "triviaqa": CatalogEntry(
        title="TriviaQA",
        homepage="https://nlp.cs.washington.edu/triviaqa",
        repository="mandarjoshi/trivia_qa",
        # Each question once, as in open-domain work (11,313 to validate on); "rc" has a row for each kind of evidence.
        configuration="unfiltered.nocontext",
        official_files={
            "train": ("unfiltered-web-train.json", "wikipedia-train.json", "qa/wikipedia-train.json"),
            "validation": ("unfiltered-web-dev.json", "wikipedia-dev.json", "qa/wikipedia-dev.json"),
        },
    ),
    "popqa": CatalogEntry(
        title="PopQA",
        homepage="https://github.com/AlexTMallen/adaptive-retrieval",
        repository="akariasai/PopQA",
        official_files={"validation": ("popQA.tsv",)},
        held_out="test",
    ),
    "gsm8k": CatalogEntry(
        title="GSM8K",
        homepage="https://github.com/openai/grade-school-math",
        repository="openai/gsm8k",
        configuration="main",
        official_files={"train": ("train.jsonl",), "validation": ("test.jsonl",)},
        flashrag="",
        held_out="test",
    ),
}
