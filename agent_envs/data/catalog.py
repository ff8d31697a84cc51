"""The benchmarks that can be loaded by name: where they live, and what their files are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_envs.data.official import ALIASES_FILE, Parsed, parse_hotpotqa, parse_musique, read_aliases

SPLITS = ("train", "validation")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One benchmark. `parser(folder)` gives the function that reads a record of a file in that folder."""

    title: str
    homepage: str
    repository: str  # on the hub
    configuration: str | None
    official_files: Mapping[str, tuple[str, ...]]  # by split, the preferred file first
    parser: Callable[[Path | None], Callable[[Mapping], Parsed]]


def _hotpotqa_parser(folder: Path | None) -> Callable[[Mapping], Parsed]:
    return lambda record: parse_hotpotqa(record, aliases={})


def _two_wiki_parser(folder: Path | None) -> Callable[[Mapping], Parsed]:
    known = folder is not None and (folder / ALIASES_FILE).is_file()
    aliases = read_aliases(folder / ALIASES_FILE) if known else {}
    return lambda record: parse_hotpotqa(record, aliases)


def _musique_parser(folder: Path | None) -> Callable[[Mapping], Parsed]:
    return parse_musique


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
        parser=_hotpotqa_parser,
    ),
    "2wikimultihopqa": CatalogEntry(
        title="2WikiMultihopQA",
        homepage="https://github.com/Alab-NII/2wikimultihop",
        # The authors' own copy, xanhho/2WikiMultihopQA, is a loading script, which `datasets` has refused since 4.0.
        repository="framolfese/2WikiMultihopQA",
        configuration=None,
        official_files={"train": ("train.json",), "validation": ("dev.json",)},
        parser=_two_wiki_parser,
    ),
    "musique": CatalogEntry(
        title="MuSiQue",
        homepage="https://github.com/StonyBrookNLP/musique",
        repository="dgslibisey/MuSiQue",
        configuration=None,
        official_files={
            "train": ("musique_ans_v1.0_train.jsonl", "musique_full_v1.0_train.jsonl"),
            "validation": ("musique_ans_v1.0_dev.jsonl", "musique_full_v1.0_dev.jsonl"),
        },
        parser=_musique_parser,
    ),
}
