"""A benchmark ready to play: its questions, and a searcher over its corpus."""

import random
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import retrieval_index
from agent_envs.data import DataUnavailable, Question, load_benchmark, stand_in_warning
from agent_envs.miniwiki import World, make_question

BENCHMARKS = ("hotpotqa", "2wikimultihopqa", "musique", "miniwiki")
MINIWIKI_TYPES = ("bridge", "compositional")
_SPLITS = {"train": "train", "validation": "heldout"}


@dataclass(frozen=True, slots=True)
class Task:
    """``source`` says where the questions come from, in words fit for a report."""

    name: str
    split: str
    questions: list[Question]
    searcher: retrieval_index.Searcher
    source: str


def load(benchmark: str, *, split: str = "train", **arguments) -> Task:
    """Questions and searcher of a benchmark. Loaded once a process: environments with equal arguments share them.

    Real benchmarks take ``data``, ``corpus`` and ``source`` (see `agent_envs.data.load_benchmark`), and ``index``: a
    folder built by ``python -m retrieval_index build`` to search in place of an index made in memory. With
    ``source="auto"``, a benchmark that is nowhere to be had is replaced by MiniWiki, loudly.

    MiniWiki takes the arguments of `miniwiki`.

    Raises:
        ValueError: for an unknown benchmark or split.
    """
    if benchmark not in BENCHMARKS:
        raise ValueError(f"benchmark must be one of {BENCHMARKS}, got {benchmark!r}")
    if split not in _SPLITS:
        raise ValueError(f"split must be one of {tuple(_SPLITS)}, got {split!r}")
    frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items()}
    return _load(benchmark, split, **frozen)


@lru_cache(maxsize=16)
def _load(benchmark: str, split: str, **arguments) -> Task:
    if benchmark == "miniwiki":
        return miniwiki(split, **arguments)
    return _real(benchmark, split, **arguments)


def _real(benchmark, split, *, data=None, corpus=None, source="auto", index=None) -> Task:
    try:
        found = load_benchmark(benchmark, split=split, data=data, corpus=corpus, source=source)
    except DataUnavailable as reason:
        if source != "auto":
            raise
        warnings.warn(stand_in_warning(benchmark, reason), stacklevel=2)
        task = miniwiki(split)
        return Task(benchmark, split, task.questions, task.searcher, f"STAND-IN for {benchmark}: {task.source}")
    searcher = retrieval_index.load(Path(index)) if index else _build(found.passages)
    return Task(benchmark, split, list(found.questions), searcher, found.source)


def _build(passages) -> retrieval_index.Searcher:
    passages = list(passages)
    return retrieval_index.build(passages, progress=len(passages) > 20_000)


def miniwiki(
    split: str,
    *,
    entities: int = 1000,
    types: tuple[str, ...] = MINIWIKI_TYPES,
    hops: int = 2,
    difficulty: str = "normal",
    world_seed: int = 0,
    questions: int = 5000,
) -> Task:
    """The embedded benchmark: a fictional world and questions about it.

    Args:
        split: ``"train"``, or ``"validation"`` for a held-out world that shares no entity name with any training world.
        entities: size of the world, in articles.
        types: question types, drawn in equal shares.
        hops: length of the chain in bridge and compositional questions, 2 to 4.
        difficulty: see `agent_envs.miniwiki.World`.
        world_seed: another seed gives another world of the same split.
        questions: how many questions to draw.
    """
    if not types:
        raise ValueError("types must name at least one question type")
    world = World(entities, world_seed, _SPLITS[split], difficulty)
    rng = random.Random(f"questions:{world_seed}:{split}")
    asked = [make_question(world, types[i % len(types)], rng, hops) for i in range(questions)]
    source = f"miniwiki:{split}-{world_seed} ({entities} articles, {difficulty}, {hops} hops)"
    return Task("miniwiki", split, asked, retrieval_index.build(world.passages()), source)
