"""The cold start: a tiny policy made from nothing learns the tools by imitation (supervised fine-tuning).

Its demonstrations show how to copy, how to find a fact in an article, and how an *early-stopping* demonstrator answers
questions: it mostly stops searching too early (`agent_envs.tasks.qa_scripts.early_stopping`). So the policy ends up knowing
the tools but not the task, as a pretrained model does; what to look for and when to stop is left for reinforcement learning.
Worlds are freshly made and from the training split: held-out worlds share no entity with anything seen here. In tasks without
a corpus the policy imitates a noisy expert, which plays at random in a share of its episodes
(`trainers.imitation.scripted.noisy_expert`).
"""

import contextlib
import hashlib
import inspect
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import gymnasium
import torch

from agent_envs.generators.miniwiki import World, questions, vocabulary
from agent_envs.tasks import qa_scripts
from agent_envs.tasks.qa import QAEnv
from agent_envs.tools import SearchTool
from agent_envs.utils.scripts import Script
from agent_envs.vector import ToolVectorEnv
from trainers.algorithms.losses import aggregate
from trainers.checkpoints import checkpoint, lock
from trainers.checkpoints.lock import check_writable
from trainers.config import DEMONSTRATOR, STEPS, STEPS_OF_DECISIONS, Demonstrator
from trainers.evaluation import evaluator
from trainers.factory import make_envs
from trainers.imitation import scripted
from trainers.models.loading import default_device, load_policy
from trainers.models.policy import Policy
from trainers.runtime import retry
from trainers.runtime.errors import UserError
from trainers.tiny import model as tiny
from trainers.tiny import muon
from trainers.tiny.muon import Muon
from trainers.trajectory import Sequence, collate_sequences

# (share of the gradient steps, kinds of demonstrations that batches are drawn from)
Curriculum = tuple[tuple[float, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Lessons:
    """What a cold start teaches, to how large a policy, for how long."""

    curriculum: Curriculum
    demonstrator: Callable[..., Script]
    steps: int = STEPS
    tokens_per_step: int = 1250
    size: Mapping[str, int] = field(default_factory=dict)  # of the policy (`tiny.make_model`)
    orders_numbers: bool = False


WITH_CORPUS = Lessons(
    (
        (0.04, ("repetition",)),
        (0.46, ("browsing",) * 9 + ("repetition",)),
        (0.50, ("episodes",) * 4 + ("browsing",)),
    ),
    qa_scripts.early_stopping,
)
# Where questions compare as well: as many layers as it takes to compare what was read. That comes first and by itself: whether
# two names are the same is learned in a hundred steps of nothing else, or, amid episodes, not in a thousand in one seed of two.
# With half of the tokens a step names are copied wrong after as many tokens: the gradient is too noisy.
IN_VARIED_WORLDS = Lessons(
    (
        (0.04, ("repetition",)),
        (0.10, ("pairs",) * 4 + ("repetition",)),
        (0.30, ("guided",) * 5 + ("comparing",) * 2 + ("pairs",) * 2 + ("repetition",)),
        (0.56, ("guided",) * 6 + ("episodes",) * 2 + ("comparing",) * 2 + ("pairs",) * 2),
    ),
    qa_scripts.careless,
    STEPS_OF_DECISIONS,
    2500,
    {"layers": 4, "intermediate_size": 256},
    orders_numbers=True,
)
WITHOUT_CORPUS = Lessons(
    (
        (0.15, ("repetition",)),
        (0.85, ("episodes",) * 4 + ("repetition",)),
    ),
    scripted.noisy_expert,
)
POOL = 256  # demonstrations made at a time, from one fresh world
NUM_ENVS = 64  # that demonstrations are played in, other than those in a fresh world


def make_optimizers(
    model: torch.nn.Module, matrix_lr: float = 0.01, other_lr: float = 8e-3
) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the matrices, AdamW for embeddings, norms and biases."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if not (p.ndim == 2 and "embed" not in name)]
    return [
        Muon(matrices, lr=matrix_lr),
        torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def fit(
    policy: Policy,
    batches: Iterator[tuple[str, list[Sequence]]],
    share_done: Callable[[int], float],
    report: Callable[[int, str, float], None],
) -> None:
    """Gradient steps of token-level cross-entropy on the taught tokens, the learning rate falling to zero.

    Args:
        batches: kind and sequences of each batch, as many as there are steps.
        share_done: of the training, in [0, 1], after so many steps; at 1 it ends.
        report: called as ``report(step, kind, loss)`` after each gradient step.
    """
    model = policy.model.train()
    optimizers = make_optimizers(model)
    base = [o.param_groups[0]["lr"] for o in optimizers]
    for step in itertools.count():
        if (done := share_done(step)) >= 1:
            break
        factor = min(1.0, (step + 1) / 30, max(0.02, 2 * (1 - done)))
        for optimizer, lr in zip(optimizers, base, strict=True):
            optimizer.param_groups[0]["lr"] = lr * factor
        kind, sequences = next(batches)
        batch = collate_sequences(sequences, list(range(len(sequences))), policy.pad_id).to(policy.device)
        logprobs, _ = policy.logprobs(batch)
        loss = aggregate(-logprobs, batch.mask, batch.mask.sum())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        report(step + 1, kind, loss.item())
    model.eval()


def default_steps(envs: ToolVectorEnv) -> int:
    """Gradient steps of a cold start in ``envs``."""
    return choose_lessons(envs).steps


def _has_corpus(envs: ToolVectorEnv) -> bool:
    """Whether the task is to read; of a mixture of such tasks, each has a corpus of its own, and there is none to teach in."""
    return isinstance(envs.envs[0], QAEnv)


def choose_lessons(envs: ToolVectorEnv) -> Lessons:
    """The cold start that ``envs`` need."""
    if not _has_corpus(envs):
        return WITHOUT_CORPUS
    return IN_VARIED_WORLDS if _difficulty(envs) == "varied" else WITH_CORPUS


def choose_script(envs: ToolVectorEnv, demonstrator: Demonstrator) -> partial[Script]:
    """What the cold start imitates in ``envs``, playing as well as ``demonstrator`` says.

    Raises:
        ValueError: it differs from the usual one in what makes no difference there.
    """
    script = choose_lessons(envs).demonstrator
    takes = {*inspect.signature(script).parameters, *(() if _has_corpus(envs) else ("env_kwargs",))}
    given = asdict(demonstrator)
    for name, value in given.items():
        if name not in takes and value != getattr(DEMONSTRATOR, name):
            raise UserError(
                f"cold_start_{name} makes no difference here, where the cold start imitates {script.__name__}: leave it out"
            )
    given.pop("env_kwargs")  # where, not how
    return partial(script, **{name: value for name, value in given.items() if name in takes})


def cold_start(
    envs: ToolVectorEnv, seed: int, steps: int, report: Callable[[int, str, float], None],
    demonstrator: Demonstrator = DEMONSTRATOR, outage_minutes: float = retry.MINUTES,
) -> tuple[Policy, float]:  # fmt: skip
    """Make the tiny policy and teach it the tools; a second call with the same arguments loads it from the cache.

    Args:
        envs: training environments, where the demonstrations are played.
        report: called as ``report(step, kind, loss)`` after each gradient step.
        demonstrator: how well it plays.
        outage_minutes: how long demonstrations are played again where a tool breaks in one.

    Returns:
        The policy, and the seconds that teaching it took, also where that was in an earlier run. The random state is
        the same in both cases.
    """
    if envs.num_envs != NUM_ENVS:  # which decides who plays what: runs with batches of other shapes have the same start
        same = _remake(envs, {"num_envs": NUM_ENVS})
        with contextlib.closing(same):
            return cold_start(same, seed, steps, report, demonstrator, outage_minutes)
    torch.manual_seed(seed)
    folder = _cache_folder(envs, seed, steps, demonstrator, outage_minutes)
    check_writable(folder.parent, "set AGENT_ENVS_CACHE to another folder")  # before minutes are spent
    with lock.wait_for(folder, "the same cold start"):
        if (kept := read(folder)) is not None:
            print(f"The cold start is that of an earlier run: {folder}", file=sys.stderr)
            return kept
        begin = time.monotonic()
        policy = make_policy(envs, seed)
        batches = make_batches(policy, envs, seed, steps, demonstrator, outage_minutes)
        fit(policy, batches, lambda step: step / steps, report)
        seconds = time.monotonic() - begin
        save(folder, policy, seconds)
    return policy, seconds


def save(folder: Path, policy: Policy, seconds: float) -> None:
    """Write a policy after its cold start, the seconds that it took, and the random state."""
    extra = {"seconds": seconds}
    checkpoint.save(folder, model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=0, extra=extra)


def read(folder: Path) -> tuple[Policy, float] | None:
    """What `save` wrote, with its random state; None where there is none, or where it is damaged, which is said."""
    if not checkpoint.is_checkpoint(folder):
        return None
    try:
        _, extra = checkpoint.load_state(folder, [])
        return load_policy(folder), extra["seconds"]
    except checkpoint.CheckpointDamaged as error:
        print(f"Warning: {error}: the cold start is made anew", file=sys.stderr)
        return None


def make_policy(envs: ToolVectorEnv, seed: int) -> Policy:
    """The tiny policy before its cold start: random weights, of torch's own random state, and a vocabulary of the task."""
    lessons, world = choose_lessons(envs), World(3000, seed, difficulty=_difficulty(envs))
    tokenizer = tiny.make_tokenizer(list_texts(world, envs))
    numbers = tiny.number_tokens(tokenizer) if lessons.orders_numbers else None
    model = tiny.make_model(len(tokenizer), numbers=numbers, **lessons.size)
    model = model.to(default_device())  # type: ignore[arg-type]  # transformers wraps the method without its self
    return Policy(model, tokenizer)


def list_texts(world: World, envs: ToolVectorEnv) -> Iterator[str]:
    """What the vocabulary is counted on: numbers, and every MiniWiki word and the environment's own passages and
    questions; or, without a corpus, what is read and written in episodes of both splits: a word that only the held-out
    one uses has a token then, as in any pretrained tokenizer, and no meaning."""
    numbers = [str(n) for n in (*range(1000), *range(1850, 2020))] + [f"1,{n}00" for n in range(10)]
    if not _has_corpus(envs):
        yield " ".join(numbers)
        for split in ("train", "validation"):
            other = _remake(envs, {"split": split, "num_envs": envs.num_envs})
            few = list(range(500 if (asked := other.envs[0].questions) is None else min(500, len(asked))))
            played = scripted.play_unbroken(other, few, scripted.noisy_expert, seed=1)
            yield from (f"{turn['observation']} {turn['action']}" for turns in played for turn in turns)
        return
    thoughts = ["then same / earlier later"] * (world.difficulty == "varied")
    yield " ".join(vocabulary() + numbers + thoughts)
    yield from (f"{p.title} {p.text}" for p in world.passages())
    rng = random.Random(0)
    own = ("chain", "comparison", "yes_no")
    types = own if world.difficulty == "varied" else [type for type in questions.TYPES if type != "chain"]
    yield from (questions.make_question(world, type, rng).question for type in types for _ in range(500))
    task = cast(QAEnv, envs.envs[0]).task
    if task.name != "miniwiki" and hasattr(task.searcher, "corpus"):  # a server keeps its passages
        yield from (f"{p.title} {p.text}" for p in itertools.islice(task.searcher.corpus, 100_000))
    yield from (q.question for q in task.questions)


def make_batches(
    policy: Policy, envs: ToolVectorEnv, seed: int, steps: int, demonstrator: Demonstrator = DEMONSTRATOR,
    outage_minutes: float = retry.MINUTES,
) -> Iterator[tuple[str, list[Sequence]]]:  # fmt: skip
    """Kind and sequences of each gradient step of a cold start of so many."""
    rng = random.Random(f"lessons:{seed}")
    words = _words(policy)

    def browsing() -> list[Sequence]:
        # In one world for all demonstrations, a policy memorises its facts instead of reading.
        world = World(600, rng.getrandbits(32), difficulty=_difficulty(envs))
        own = cast(SearchTool, envs.envs[0].tools["search"])
        tool = SearchTool(world.build_index(), own.k, own.max_chars)
        return scripted.browsing(POOL, world, tool, policy, rng)

    def in_varied_world(lesson: Callable[..., list[Sequence]]) -> list[Sequence]:
        return lesson(4 * POOL, World(600, rng.getrandbits(32), difficulty="varied"), policy, rng)  # short ones

    make: dict[str, Callable[[], list[Sequence]]] = {
        "repetition": lambda: scripted.repetition(POOL, words, rng),
        "browsing": browsing,
        "comparing": partial(in_varied_world, scripted.comparing),
        "pairs": partial(in_varied_world, scripted.pairs),
        "episodes": lambda: episodes(policy, envs, rng, demonstrator, outage_minutes),
        "guided": lambda: guided(policy, envs, rng, outage_minutes),
    }
    lessons = choose_lessons(envs)
    batches = {kind: batch_by_length(make_pool, rng, lessons.tokens_per_step) for kind, make_pool in make.items()}
    for share, kinds in lessons.curriculum:
        for _ in range(int(share * steps) + 1):
            kind = rng.choice(kinds)
            yield kind, next(batches[kind])


def episodes(
    policy: Policy, envs: ToolVectorEnv, rng: random.Random, demonstrator: Demonstrator = DEMONSTRATOR,
    outage_minutes: float = retry.MINUTES,
) -> list[Sequence]:  # fmt: skip
    """POOL whole episodes to imitate: of the early-stopping demonstrator, in a fresh world where there is one to make; or,
    in tasks without a corpus, of the noisy expert."""
    script = choose_script(envs, demonstrator)
    if not _has_corpus(envs):
        with demonstration_envs(envs, demonstrator) as stage:
            asked = stage.envs[0].questions
            numbers = [rng.getrandbits(31) if asked is None else rng.randrange(len(asked)) for _ in range(POOL)]
            return scripted.scripted_episodes(stage, policy, numbers, script, rng.getrandbits(32), outage_minutes)
    stage = fresh_envs(envs, rng) if cast(QAEnv, envs.envs[0]).task.name == "miniwiki" else envs
    pool = range(len(cast(QAEnv, stage.envs[0]).questions))
    return scripted.scripted_episodes(
        stage, policy, rng.choices(pool, k=POOL), script, rng.getrandbits(32), outage_minutes
    )


def guided(
    policy: Policy, envs: ToolVectorEnv, rng: random.Random, outage_minutes: float = retry.MINUTES
) -> list[Sequence]:
    """An episode without a mistake about each question of a fresh world, less what there is to decide."""
    stage = fresh_envs(envs, rng)
    numbers = list(range(len(cast(QAEnv, stage.envs[0]).questions)))
    script = partial(qa_scripts.careless, continue_probability=1.0, mistake_probability=0.0)
    return scripted.guided_episodes(stage, policy, numbers, script, rng.getrandbits(32), outage_minutes)


def _difficulty(envs: ToolVectorEnv) -> str:
    """Of the MiniWiki worlds that the policy learns in."""
    assert envs.spec is not None
    return envs.spec.kwargs.get("difficulty", "normal")


def _words(policy: Policy) -> list[int]:
    """The ids of whole words, in order: the vocabulary itself comes in another order in every process."""
    return sorted(i for token, i in policy.tokenizer.get_vocab().items() if token.startswith("▁") and len(token) > 2)


@contextlib.contextmanager
def demonstration_envs(envs: ToolVectorEnv, demonstrator: Demonstrator) -> Iterator[ToolVectorEnv]:
    """Where a noisy expert plays: ``envs``, or such environments with the arguments that ``demonstrator`` has for them.

    Raises:
        ValueError: the task does not take these arguments.
    """
    if not (changes := json.loads(demonstrator.env_kwargs)):
        yield envs
        return
    assert envs.spec is not None
    own = {name: value for name, value in envs.spec.kwargs.items() if name not in ("split", "num_envs")}
    with contextlib.closing(make_envs(envs.spec.id, json.dumps(own | changes), "train", NUM_ENVS)) as stage:
        yield stage


def fresh_envs(envs: ToolVectorEnv, rng: random.Random) -> ToolVectorEnv:
    """The same kind of environments as ``envs`` in a fresh world."""
    assert envs.spec is not None
    entities = max(600, envs.spec.kwargs.get("entities", 0))
    questions = min(POOL, len(cast(QAEnv, envs.envs[0]).questions))
    fresh = {"num_envs": POOL, "entities": entities, "world_seed": rng.getrandbits(32), "questions": questions}
    return _remake(envs, fresh)


def _remake(envs: ToolVectorEnv, changes: dict[str, object]) -> ToolVectorEnv:
    """Environments as ``envs``, but for some of the arguments that they were made with."""
    assert envs.spec is not None
    return cast(ToolVectorEnv, gymnasium.make_vec(envs.spec.id, **{**envs.spec.kwargs, **changes}))


def batch_by_length(make: Callable[[], list[Sequence]], rng: random.Random, tokens: int) -> Iterator[list[Sequence]]:
    """Endless batches of about so many tokens, each of sequences of about the same length."""
    while True:
        batches = split_by_length(make(), tokens)
        rng.shuffle(batches)
        yield from batches


def split_by_length(sequences: list[Sequence], tokens: int) -> list[list[Sequence]]:
    """Sequences in batches of about the same length, the shortest first. None has more than so many tokens, padding
    included; one sequence alone may exceed them."""
    batches: list[list[Sequence]] = [[]]
    for sequence in sorted(sequences, key=lambda s: len(s.ids)):
        if batches[-1] and (len(batches[-1]) + 1) * len(sequence.ids) > tokens:
            batches.append([])
        batches[-1].append(sequence)
    return batches


def _cache_folder(
    envs: ToolVectorEnv, seed: int, steps: int, demonstrator: Demonstrator = DEMONSTRATOR,
    outage_minutes: float = retry.MINUTES,
) -> Path:  # fmt: skip
    """Named by what the result depends on: the code of the demonstrations and of the training on them, the environment,
    seed and steps."""
    assert envs.spec is not None
    code = "".join(inspect.getsource(module) for module in (sys.modules[__name__], tiny, muon, scripted, qa_scripts))
    without = {"rewards", "num_envs"}  # demonstrations are imitated whatever they are paid
    kwargs = json.dumps({n: v for n, v in envs.spec.kwargs.items() if n not in without}, sort_keys=True, default=str)
    script = choose_lessons(envs).demonstrator
    with demonstration_envs(envs, demonstrator) as stage:
        few = list(range(min(8, len(stage.envs[0].questions or range(8)))))
        episodes = scripted.play_unbroken(stage, few, script, outage_minutes=outage_minutes)
        data = evaluator.source_of(stage) + evaluator.data_digest(stage.envs[0])
    turns = [turn for played in episodes for turn in played]
    played = repr([(turn["observation"], turn["action"]) for turn in turns])
    what = f"{code}{envs.spec.id}{kwargs}{data}{played}{POOL}{seed}{steps}{demonstrator}"
    root = os.environ.get("AGENT_ENVS_CACHE") or Path.home() / ".cache" / "agent_envs"
    return Path(root) / "tiny" / hashlib.sha256(what.encode()).hexdigest()[:16]
