"""The places that the questions and the corpus of a benchmark may come from, in order, and the errors if none has them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_envs.data.catalog import CATALOG, SPLITS
from agent_envs.data.hub import download, find_cached
from agent_envs.data.local import NotHere, cache_folder, find_faults, find_file, load, questions_file, shorten_path
from agent_envs.data.question import Question
from retrieval_index import Passage

DATA_VARIABLE = "AGENT_ENVS_DATA"
Look = Callable[[], tuple[Path, str | None]]
SOURCES = ("auto", "local", "hub")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A split of a benchmark, with the corpus to search.

    `source` names the origin of the data for reports, such as "hub:hotpotqa/hotpot_qa@1908d6a", and in brackets what it lacks
    (see `agent_envs.data.local.find_faults`).
    """

    name: str
    split: str
    questions: tuple[Question, ...]
    passages: Sequence[Passage]
    source: str


class DataUnavailable(LookupError):
    """No source has the benchmark.

    `tried` holds (source, reason) for each source. Raised only with `source="auto"`. A caller that continues with a stand-in
    must show `stand_in_warning(error)`.
    """

    def __init__(self, name: str, split: str, tried: tuple[tuple[str, str], ...]):
        super().__init__(name, split, tried)
        self.name, self.split, self.tried = name, split, tried

    def __str__(self) -> str:
        return _no_data(self.name, self.split, self.tried)


def load_benchmark(
    name: str,
    *,
    split: str,
    data: str | Path | None = None,
    corpus: str | Path | None = None,
    questions_only: bool = False,
    source: str = "auto",
) -> Benchmark:
    """Load a split of a benchmark from the first source that has it.

    Args:
        name: "hotpotqa", "2wikimultihopqa" or "musique", whose questions come with paragraphs to search in; or
            "bamboogle", "nq" (NQ-open), "triviaqa", "popqa" or "gsm8k", whose questions come without.
        split: "train", which Bamboogle and PopQA lack, or "validation", the split that papers report: test for Bamboogle,
            PopQA and GSM8K, dev for the others.
        data: a folder (`<name>.<split>.jsonl` and `passages.jsonl`, or the official files, or FlashRAG's folders, such as
            `nq/test.jsonl`, or Search-R1's `train.parquet` and `test.parquet`) or a file of questions, for any split.
            By default the folder `$AGENT_ENVS_DATA`, then the cache, `~/.cache/agent_envs` or `$AGENT_ENVS_CACHE`, then
            the hub.
        corpus: the folder of a `passages.jsonl` or anything that `retrieval_index.readers.read_passages` takes, instead of
            the passages of the questions.
        questions_only: load no passages.
        source: "auto" tries all places, "local" all but the hub, "hub" all but `$AGENT_ENVS_DATA`.

    Warns of faults in the data, such as missing gold paragraphs or aliases, and notes them in `source`.

    Raises:
        DataUnavailable: with `source="auto"`, no place has it and neither `data` nor `corpus` was given.
        FileNotFoundError: otherwise, no place has it; or `data`, `corpus`, `$AGENT_ENVS_DATA` or passages do not exist.
        ValueError: unknown or contradicting arguments, or an invalid file; the message names file, line and field.
    """
    _check("name", name, tuple(CATALOG))
    _check("split", split, SPLITS)
    _check("source", source, SOURCES)
    if split not in CATALOG[name].official_files:
        raise ValueError(f'{CATALOG[name].title} has only a test split, which is split="validation": no {split!r}')
    if data is not None and source == "hub":
        raise ValueError('data= names local files, so it cannot go with source="hub"')
    if corpus is not None and questions_only:
        raise ValueError("corpus= names passages, so it cannot go with questions_only=True")
    tried = []
    for place, look in _places(name, split, data, source):
        try:
            path, origin = look()
            file = find_file(path, name, split)
        except NotHere as error:
            tried.append((place, str(error)))
            continue
        questions, passages, searched = load(name, file, corpus, questions_only)
        origin = origin or f"local:{shorten_path(file)}"
        origin += f" + corpus {shorten_path(searched)}" if corpus and searched else ""
        described = origin
        for short, long in find_faults(name, questions, passages):
            warnings.warn(f"{CATALOG[name].title}, {origin}: {long}", stacklevel=2)
            described += f" ({short})"
        return Benchmark(name, split, questions, passages, described)
    if source == "auto" and data is None and corpus is None:
        raise DataUnavailable(name, split, tuple(tried))
    raise FileNotFoundError(_no_data(name, split, tried))


def stand_in_warning(error: DataUnavailable) -> str:
    """The warning before a fictional stand-in is used instead of a benchmark."""
    entry = CATALOG[error.name]
    lacking = "" if entry.own_passages else f"{entry.title} has no passages of its own: name them, or an index, too.\n"
    return (
        f"THIS IS NOT {entry.title.upper()}. {error}\n"
        f"The environment goes on with MiniWiki, a fictional stand-in made in memory: a score on it is NOT a score on "
        f"{entry.title} and must not be reported as one.\n"
        f"To get the real {entry.title}, any one of:\n"
        f"  - run it where huggingface.co can be reached: {entry.repository} is then downloaded, once;\n"
        f"  - take {' or '.join(entry.official_files[error.split])} from {entry.homepage} and pass its folder as "
        f"data=FOLDER, or set {DATA_VARIABLE}=FOLDER;\n"
        f"  - the same with a folder of {questions_file(error.name, error.split)} and passages.jsonl.\n"
        f'{lacking}With source="local" or source="hub", missing data is an error instead.'
    )


def _places(name: str, split: str, data: str | Path | None, source: str) -> Iterator[tuple[str, Look]]:
    """The name of each place, in order, and a function that returns its path and the origin of a download."""
    if data is not None:
        yield "data=", lambda: (Path(data).expanduser().resolve(), None)
        return
    if source != "hub":
        yield f"${DATA_VARIABLE}", _from_environment
    yield f"the cache {cache_folder()}", lambda: find_cached(name, split)
    if source != "local":
        yield f"the hub ({CATALOG[name].repository})", lambda: download(name, split)


def _from_environment() -> tuple[Path, None]:
    value = os.environ.get(DATA_VARIABLE)
    if not value:
        raise NotHere("it is not set")
    path = Path(value).expanduser().resolve()
    if not path.is_dir():
        raise FileNotFoundError(f"${DATA_VARIABLE} must name a folder, and {path} is none")
    return path, None


def _check(argument: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{argument} must be one of {', '.join(known)}, got {value!r}")


def _no_data(name: str, split: str, tried: Iterable[tuple[str, str]]) -> str:
    reasons = "".join(f"\n  - {place}: {reason}" for place, reason in tried)
    return f"The {split} split of {CATALOG[name].title} was found nowhere:{reasons}"
