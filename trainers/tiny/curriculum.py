"""The lessons of the tiny policy's cold start, their order, and the demonstrator.

It learns to copy, to find a fact in an article, and to answer as an *early-stopping* demonstrator, which mostly stops searching
too early (`agent_envs.tasks.qa_scripts.early_stopping`): the tools, not the task. Without a corpus it imitates a noisy expert
(`lessons.noisy_expert`). Worlds are fresh and of the training split: held-out worlds share no entity with them.
"""

import contextlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import gymnasium

from agent_envs.generators.miniwiki import World
from agent_envs.tasks import qa_scripts
from agent_envs.tasks.qa import QAEnv
from agent_envs.tools import SearchTool
from agent_envs.utils.scripts import Script
from agent_envs.vector import ToolVectorEnv
from trainers.config import DEMONSTRATOR, STEPS, STEPS_OF_DECISIONS, Demonstrator
from trainers.factory import make_envs
from trainers.imitation.demonstrations import split_by_length
from trainers.models.policy import Policy
from trainers.runtime import retry
from trainers.runtime.errors import UserError
from trainers.tiny import lessons
from trainers.trajectory import BatchRow

POOL = 256  # demonstrations made at a time, from one fresh world
NUM_ENVS = 64  # that demonstrations are made in, other than those in a fresh world


@dataclass(frozen=True)
class Curriculum:
    """A cold start: its lessons, the size of the policy, and its length."""

    # Of each the share of the gradient steps, and the lessons (methods of `Teacher`) that batches are drawn from.
    phases: tuple[tuple[float, tuple[str, ...]], ...]
    demonstrator: Callable[..., Script]  # the script that whole episodes are of
    steps: int = STEPS
    tokens_per_step: int = 1250
    size: Mapping[str, int] = field(
        default_factory=dict
    )  # of the policy: arguments of `trainers.tiny.model.make_model`
    orders_numbers: bool = False


WITH_CORPUS = Curriculum(
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
IN_VARIED_WORLDS = Curriculum(
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
WITHOUT_CORPUS = Curriculum(
    (
        (0.15, ("repetition",)),
        (0.85, ("episodes",) * 4 + ("repetition",)),
    ),
    lessons.noisy_expert,
)


def has_corpus(envs: ToolVectorEnv) -> bool:
    """Whether the task is to read; not a mixture of such tasks, each of which has a corpus of its own."""
    return isinstance(envs.envs[0], QAEnv)


def choose_curriculum(envs: ToolVectorEnv) -> Curriculum:
    """The cold start that ``envs`` need."""
    if not has_corpus(envs):
        return WITHOUT_CORPUS
    return IN_VARIED_WORLDS if difficulty_of(envs) == "varied" else WITH_CORPUS


def difficulty_of(envs: ToolVectorEnv) -> str:
    """Difficulty of the MiniWiki worlds that the policy learns in."""
    assert envs.spec is not None
    return envs.spec.kwargs.get("difficulty", "normal")


def choose_script(envs: ToolVectorEnv, demonstrator: Demonstrator) -> partial[Script]:
    """The demonstrations of the cold start in ``envs``, with the skill of ``demonstrator``. Raises a UserError if that differs
    from the usual one in what makes no difference there."""
    script, reads = choose_curriculum(envs).demonstrator, has_corpus(envs)
    for name in ("skill", "env_kwargs") if reads else ("continue_probability",):
        if getattr(demonstrator, name) != getattr(DEMONSTRATOR, name):
            raise UserError(
                f"cold_start_{name} makes no difference here, where the cold start imitates {script.__name__}: leave it out"
            )
    if reads:
        return partial(script, continue_probability=demonstrator.continue_probability)
    return partial(script, skill=demonstrator.skill)


@dataclass(frozen=True)
class Teacher:
    """Makes lessons, a pool of rows at a time. ``demonstrator`` acts in whole episodes, which are rolled out again for
    ``outage_minutes`` while a tool fails."""

    policy: Policy
    envs: ToolVectorEnv
    rng: random.Random
    demonstrator: Demonstrator = DEMONSTRATOR
    outage_minutes: float = retry.MINUTES

    def repetition(self) -> list[BatchRow]:
        """Copies of random strings of whole words."""
        vocabulary = self.policy.tokenizer.get_vocab()
        words = sorted(i for token, i in vocabulary.items() if token.startswith("▁") and len(token) > 2)
        return lessons.repetition(POOL, words, self.rng)

    def browsing(self) -> list[BatchRow]:
        """Facts in search results; in one world for all pools, a policy memorises its facts instead of reading."""
        world = World(600, self.rng.getrandbits(32), difficulty=difficulty_of(self.envs))
        own = cast(SearchTool, self.envs.envs[0].tools["search"])
        tool = SearchTool(world.build_index(), own.k, own.max_chars)
        return lessons.browsing(POOL, world, tool, self.policy, self.rng)

    def pairs(self) -> list[BatchRow]:
        """How two things compare."""
        return lessons.pairs(4 * POOL, self._make_world(), self.policy, self.rng)

    def comparing(self) -> list[BatchRow]:
        """Questions that compare, without what is read."""
        return lessons.comparing(4 * POOL, self._make_world(), self.policy, self.rng)

    def _make_world(self) -> World:
        return World(600, self.rng.getrandbits(32), difficulty="varied")

    def guided(self) -> list[BatchRow]:
        """An episode without a mistake about each question of a fresh world, less what there is to decide."""
        stage = self._make_fresh_envs()
        numbers = list(range(len(cast(QAEnv, stage.envs[0]).questions)))
        script = partial(qa_scripts.careless, continue_probability=1.0, mistake_probability=0.0)
        seed = self.rng.getrandbits(32)
        return lessons.guided_episodes(stage, self.policy, numbers, script, seed, self.outage_minutes)

    def episodes(self) -> list[BatchRow]:
        """Whole episodes of the demonstrator: in a fresh world where there is one to make."""
        if has_corpus(self.envs):
            is_made = cast(QAEnv, self.envs.envs[0]).task.name == "miniwiki"
            stage = self._make_fresh_envs() if is_made else self.envs
            count = len(cast(QAEnv, stage.envs[0]).questions)
            return self._run_script(stage, self.rng.choices(range(count), k=POOL))
        with open_demonstration_envs(self.envs, self.demonstrator) as stage:
            own, rng = stage.envs[0].questions, self.rng
            numbers = [rng.getrandbits(31) if own is None else rng.randrange(len(own)) for _ in range(POOL)]
            return self._run_script(stage, numbers)

    def _run_script(self, stage: ToolVectorEnv, numbers: list[int]) -> list[BatchRow]:
        script, seed = choose_script(self.envs, self.demonstrator), self.rng.getrandbits(32)
        return lessons.scripted_episodes(stage, self.policy, numbers, script, seed, self.outage_minutes)

    def _make_fresh_envs(self) -> ToolVectorEnv:
        """The same kind of environments in a fresh world."""
        assert self.envs.spec is not None
        entities = max(600, self.envs.spec.kwargs.get("entities", 0))
        questions = min(POOL, len(cast(QAEnv, self.envs.envs[0]).questions))
        seed = self.rng.getrandbits(32)
        return remake(self.envs, num_envs=POOL, entities=entities, world_seed=seed, questions=questions)


def remake(envs: ToolVectorEnv, **changes: object) -> ToolVectorEnv:
    """Environments as ``envs``, except some of the arguments that they were made with."""
    assert envs.spec is not None
    return cast(ToolVectorEnv, gymnasium.make_vec(envs.spec.id, **{**envs.spec.kwargs, **changes}))


@contextlib.contextmanager
def open_demonstration_envs(envs: ToolVectorEnv, demonstrator: Demonstrator) -> Iterator[ToolVectorEnv]:
    """Where a noisy expert acts: ``envs``, or such environments with the arguments that ``demonstrator`` has for them."""
    if not (changes := json.loads(demonstrator.env_kwargs)):
        yield envs
        return
    assert envs.spec is not None
    own = {name: value for name, value in envs.spec.kwargs.items() if name not in ("split", "num_envs")}
    with contextlib.closing(make_envs(envs.spec.id, json.dumps(own | changes), "train", NUM_ENVS)) as stage:
        yield stage


def make_batches(teacher: Teacher, steps: int) -> Iterator[tuple[str, list[BatchRow]]]:
    """Lesson and rows of each gradient step of a cold start of so many."""
    curriculum, rng = choose_curriculum(teacher.envs), teacher.rng
    kinds = {kind for _, kinds in curriculum.phases for kind in kinds}
    batches = {kind: batch_by_length(getattr(teacher, kind), rng, curriculum.tokens_per_step) for kind in kinds}
    for share, kinds_of_phase in curriculum.phases:
        for _ in range(int(share * steps) + 1):
            kind = rng.choice(kinds_of_phase)
            yield kind, next(batches[kind])


def batch_by_length(make: Callable[[], list[BatchRow]], rng: random.Random, tokens: int) -> Iterator[list[BatchRow]]:
    """Endless batches of about so many tokens, each of rows of about the same length."""
    while True:
        batches = split_by_length(make(), tokens)
        rng.shuffle(batches)
        yield from batches
