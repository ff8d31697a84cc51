"""The questions of a benchmark, of MiniWiki or of your own, and a searcher over their corpus."""

import html
import inspect
import os
import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, cast

import retrieval_index
from agent_envs import scoring
from agent_envs.data import Benchmark, DataUnavailable, Question, load_benchmark, own, stand_in_warning
from agent_envs.data.local import CACHE_VARIABLE, keep_dataset, open_index, stamp
from agent_envs.data.question import paragraph_key
from agent_envs.data.sources import DATA_VARIABLE
from agent_envs.generators.instances import check_choice, check_integers
from agent_envs.generators.miniwiki import World, make_question
from agent_envs.tools.search import FOUND

STAND_IN = "STAND-IN for"  # prefix of a source whose questions replace the requested ones
BENCHMARKS = ("hotpotqa", "2wikimultihopqa", "musique", "bamboogle", "nq", "triviaqa", "popqa", "miniwiki", "own")
MINIWIKI_TYPES = ("bridge", "compositional")
_READ_THROUGH = 1_000_000  # passages; larger corpora are not scanned for the gold paragraphs
_SPLITS = {"train": "train", "validation": "heldout"}


@dataclass(frozen=True)
class QATask:
    """Questions of a benchmark, a searcher over its corpus, and its metric.

    ``source`` names the origin of the questions for reports; ``warning`` is not empty if they are a stand-in. If ``drawn``,
    the first n questions are what drawing n gives; those of a file keep its order. ``training`` loads the training questions.
    """

    name: str
    questions: tuple[Question, ...]
    searcher: retrieval_index.Searcher
    source: str
    warning: str = ""
    drawn: bool = False
    normalize: Callable[[str], str] = scoring.normalize_answer
    training: Callable[[], Sequence[Question]] = field(default=tuple, compare=False)

    @cached_property
    def constant(self) -> str:
        """The best constant answer: of "yes", "no" and the most frequent training answer, the one with the highest exact match
        on these questions."""
        frequent = Counter(question.answer for question in self.training()).most_common(1)
        golds = [{self.normalize(gold) for gold in question.golds} for question in self.questions]
        candidates = ("yes", "no", *(answer for answer, _ in frequent))
        return max(candidates, key=lambda answer: sum(self.normalize(answer) in own for own in golds))

    def score(self, prediction: str, golds: Sequence[str]) -> scoring.Scores:
        """Score a prediction by the metric of the benchmark."""
        return scoring.answer_scores(prediction, golds, self.normalize)


def load(benchmark: str, *, split: str = "train", holdout: int = 0, **arguments) -> QATask:
    """Load the questions and the searcher of a benchmark, once per process.

    With ``holdout=n``, both splits are *training* questions: every n-th (of "own", a random one in n) is for ``"validation"``.

    Real benchmarks take ``data``, ``corpus`` and ``source`` (see `agent_envs.data.load_benchmark`), and ``index``: a folder
    built by ``python -m retrieval_index build``, or the URL of a server. Bamboogle, NQ, TriviaQA and PopQA have no passages
    of their own and need ``index`` or ``corpus``. With ``source="auto"``, MiniWiki replaces a benchmark that cannot be found,
    with a warning. MiniWiki takes the arguments of `miniwiki`, "own" those of `agent_envs.data.own.load_own`; its ``data`` may
    be a `datasets.Dataset` or `DatasetDict` too, see `agent_envs.data.local.keep_dataset`.

    Raises:
        ValueError: for an unknown benchmark or split, or an invalid ``holdout`` (1 is valid only for "own").
        TypeError: for an argument that the benchmark does not take.
    """
    check_choice("benchmark", benchmark, BENCHMARKS)
    check_choice("split", split)
    check_integers(0, holdout=holdout, split_seed=arguments.get("split_seed", 0))
    if holdout == 1 and benchmark != "own":
        raise ValueError("holdout must be 0, or at least 2, got 1")
    if "data" in arguments:
        arguments["data"] = keep_dataset(arguments["data"])
    frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items()}
    data, corpus = arguments.get("data"), arguments.get("corpus")
    changes = own.stamps(data, corpus) if benchmark == "own" else stamp_places(benchmark, data, corpus)
    task = _load(benchmark, split, (*changes, stamp(arguments.get("index"))), holdout, **frozen)
    if task.warning:
        warnings.warn(task.warning, stacklevel=2)
    if benchmark != "own" and not holdout and split == "train":
        warn_of_shared(data, ", or holdout=n to keep each n-th question aside")
    return task


def stamp_places(benchmark: str, data: str | None, corpus: str | None = None) -> tuple:
    """The part of a cache key that changes when the place of a benchmark changes, or its files do."""
    place = data or os.environ.get(DATA_VARIABLE)
    path = Path(place).expanduser() if place else None
    folder = path.parent if path and path.is_file() else path  # where its passages and aliases are
    inside = folder / benchmark if folder else None  # where FlashRAG has its files
    variables = map(os.environ.get, (DATA_VARIABLE, CACHE_VARIABLE))
    return *variables, os.getcwd(), stamp(folder), stamp(inside), stamp(corpus, deep=True)


def warn_of_shared(data: str | None, advice: str = "") -> None:
    """Warn if ``data`` is a single file, which is used for both splits."""
    if data and Path(data).expanduser().is_file():
        both = "has the questions of both splits: what is trained on is evaluated on too"
        warnings.warn(f"{data} is a file, and so {both}. Give a folder with a file per split{advice}", stacklevel=3)


def source_parameters(benchmark: str) -> list[str]:
    """Names of the arguments that `load` takes for this benchmark only, besides ``holdout``."""
    check_choice("benchmark", benchmark, BENCHMARKS)
    loaders: dict[str, Callable] = {"miniwiki": miniwiki, "own": _load_own}
    parameters = inspect.signature(loaders.get(benchmark, _load_real)).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


@lru_cache(maxsize=16)
def _load(benchmark: str, split: str, places: tuple, holdout: int, **arguments) -> QATask:
    """Load and cache a task; ``places`` is only part of the cache key."""
    task = _load_split(benchmark, split, places, holdout, **arguments)
    return replace(task, training=partial(_load_training_questions, benchmark, places, holdout, **arguments))


def _load_training_questions(benchmark: str, places: tuple, holdout: int, **arguments) -> Sequence[Question]:
    """Load the training questions, for a real benchmark without passages. Returns () if they cannot be loaded."""
    where = {name: arguments[name] for name in ("data", "source") if name in arguments}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if holdout or benchmark in ("miniwiki", "own"):
                return _load(benchmark, "train", places, holdout, **arguments).questions
            return load_benchmark(benchmark, split="train", questions_only=True, **where).questions
        except (OSError, ValueError, LookupError):
            return ()


def _load_split(benchmark: str, split: str, places: tuple, holdout: int, **arguments) -> QATask:
    if benchmark == "own":
        return _load_own(split, holdout, **arguments)
    if holdout:
        task, aside = _load(benchmark, "train", places, 0, **arguments), split == "validation"
        numbers: dict[Any, int] = {}  # the same facts in other words are one question
        asked = [numbers.setdefault(_facts(q), len(numbers)) for q in task.questions]
        questions = tuple(q for q, i in zip(task.questions, asked, strict=True) if (i % holdout == 0) == aside)
        if not questions:
            count = f"the {len(task.questions)} in {task.source}"
            raise ValueError(f"holdout={holdout} leaves no {split} question of {count}: give more questions")
        source = f"{task.source}, {'only' if aside else 'without'} each {holdout}th question"
        return replace(task, questions=questions, source=source)
    if benchmark == "miniwiki":
        return miniwiki(split, **arguments)
    return _load_real(benchmark, split, **arguments)


def _facts(question: Question) -> Any:
    """What a question asks for, in whatever words: its steps if they are known, else its text."""
    steps = [(step.get("question"), step.get("title")) for step in question.decomposition or ()]
    return tuple(steps) or question.question


def _load_real(benchmark, split, *, data=None, corpus=None, source="auto", index=None) -> QATask:
    if corpus and index:
        raise ValueError(f"give corpus= or index=, not both: got {str(corpus)!r} and {str(index)!r}")
    try:
        places = {"data": data, "corpus": corpus, "source": source}
        found = load_benchmark(benchmark, split=split, questions_only=bool(index), **places)
    except DataUnavailable as reason:
        task = miniwiki(split)
        source = f"{STAND_IN} {benchmark}: {task.source}"
        return QATask(benchmark, task.questions, task.searcher, source, stand_in_warning(reason), drawn=True)
    return _with_searcher(benchmark, found, index)


def _load_own(split, holdout, *, data=None, corpus=None, index=None, name="", split_seed=0) -> QATask:
    where = {"corpus": corpus, "index": index}
    draw = {"holdout": holdout, "split_seed": split_seed}

    def indexed() -> Sequence[retrieval_index.Passage] | None:
        return getattr(_open(str(index), stamp(index)), "corpus", None)

    found = own.load_own(data, split=split, name=name, indexed=indexed, **where, **draw)
    return _with_searcher("own", found, index)


def _with_searcher(benchmark: str, found: Benchmark, index) -> QATask:
    searcher = _open(str(index), stamp(index)) if index else _build(found.passages)
    source = f"{found.source}, searched in {index}" if index else found.source
    if duplicates := getattr(getattr(searcher, "corpus", None), "duplicates_left_out", 0):  # a server has no corpus
        source += f", {duplicates:,} duplicate passages left out"
    questions = _with_known_paragraphs(found.questions, searcher)
    return QATask(benchmark, questions, searcher, source, normalize=scoring.normalizer(benchmark))


def _with_known_paragraphs(questions: Sequence[Question], searcher: retrieval_index.Searcher) -> tuple[Question, ...]:
    """Drop the gold paragraphs of a question if the corpus lacks one, as another edition of Wikipedia may: its titles count
    then. The corpus of a server, or of more than a million passages, is not read, and titles count for all questions."""
    if not any(question.supporting_paragraphs for question in questions):
        return tuple(questions)
    corpus, known = getattr(searcher, "corpus", ()), set()
    if len(corpus) <= _READ_THROUGH:
        titles = {html.unescape(title) for question in questions for title in question.supporting_titles}
        known = {paragraph_key(passage.text) for passage in corpus if html.unescape(passage.title) in titles}
    return tuple(
        question if known.issuperset(question.supporting_paragraphs) else replace(question, supporting_paragraphs=())
        for question in questions
    )


@lru_cache(maxsize=4)
def _open(index: str, stamps: tuple) -> retrieval_index.Searcher:
    """Open an index folder or a server. Benchmarks and splits share the searcher until the folder is built again."""
    if index.startswith(("http://", "https://")):
        remote = retrieval_index.RemoteSearcher(index)
        try:
            remote.search(["Wikipedia"], 1)  # report a wrong address before an episode begins
        except (retrieval_index.SearchFailed, ValueError) as error:
            advice = "start its server (python -m retrieval_index serve --index FOLDER), or correct the URL"
            raise retrieval_index.SearchFailed(f"index: {error}: {advice}") from error
        return cast(retrieval_index.Searcher, remote)  # an environment only needs `search`
    return retrieval_index.load(Path(index).expanduser())


@lru_cache(maxsize=16)
def check_depth(server: retrieval_index.RemoteSearcher, passages: int) -> None:
    """Raise a ValueError if a server does not allow this number of passages per query, as every call would fail."""
    try:
        server.search(["Wikipedia"], passages)
    except ValueError as error:
        advice = f"start its server with --max-topk {passages}, or lower k (read=True asks for {FOUND})"
        raise ValueError(f"index: {error}: {advice}") from None


@lru_cache(maxsize=4)
def _build(passages: Sequence[retrieval_index.Passage]) -> retrieval_index.Searcher:
    if isinstance(passages, retrieval_index.Corpus) and passages.folder:
        return open_index(passages.folder)
    return retrieval_index.build(passages)


def miniwiki(
    split: str,
    *,
    entities: int = 1000,
    types: tuple[str, ...] = MINIWIKI_TYPES,
    hops: int | tuple[int, ...] = 2,
    difficulty: str = "normal",
    world_seed: int = 0,
    questions: int = 5000,
) -> QATask:
    """The embedded benchmark: a fictional world and questions about it.

    Args:
        split: ``"train"``, or ``"validation"`` for a world that shares no entity name with any training world.
        entities: size of the world, in articles.
        types: question types, drawn in turn. Questions that a world has few of, such as those with the answer "yes", come less
            often, and rarer towards the end.
        hops: length of the chain in bridge and compositional questions, 2 to 4; several lengths are drawn in turn.
        difficulty: see `agent_envs.generators.miniwiki.World`.
        world_seed: another seed gives another world of the same split.
        questions: how many different questions to draw.

    Raises:
        ValueError: for arguments outside these ranges, or more questions than the world has.
    """
    if not types or isinstance(types, str):
        raise ValueError(f"types must be a list of question types, got {types!r}")
    check_integers(questions=questions)
    lengths = hops if isinstance(hops, tuple) else (hops,)
    if not lengths:
        raise ValueError("hops must be a number or a list of numbers, got an empty list")
    for length in lengths:
        check_integers(hops=length)
    world = World(entities, world_seed, _SPLITS[split], difficulty)
    rng = random.Random(f"questions:{world_seed}:{split}")
    drawn: dict[str, Question] = {}
    attempts = last_new = 0
    while len(drawn) < questions:
        length = lengths[attempts // len(types) % len(lengths)]
        question = make_question(world, types[attempts % len(types)], rng, length)
        attempts += 1
        if drawn.setdefault(question.question, question) is question:
            last_new = attempts
        elif attempts - last_new > 1000:
            raise ValueError(f"a world of {entities} entities has no {questions} different questions: make it larger")
    source = f"miniwiki:{split}-{world_seed} ({entities} articles, {difficulty}, {' or '.join(map(str, lengths))} hops)"
    return QATask("miniwiki", tuple(drawn.values()), world.build_index(), source, drawn=True)
