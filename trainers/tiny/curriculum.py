"""The lessons of the tiny policy's cold start, their order, and the demonstrator.

The policy learns to copy, to find a fact in an article, and to act as an *early-stopping* demonstrator, which mostly stops
searching too early (`agent_envs.tasks.qa_scripts.early_stopping`). It learns the tools, not the task. Without a corpus it
imitates a noisy expert (`lessons.noisy_expert`). Worlds are fresh training worlds; held-out worlds share no entity with them.
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
NUM_ENVS = 64  # environments in which demonstrations are made, except in a fresh world


@dataclass(frozen=True)
class Curriculum:
    """A cold start: its lessons, the size of the policy, and its length."""

    # For each phase, its share of the gradient steps, and the lessons (methods of `Teacher`) that batches are drawn from.
    phases: tuple[tuple[float, tuple[str, ...]], ...]
    demonstrator: Callable[..., Script]  # the script of whole episodes
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
# For worlds whose questions also compare: comparing facts needs one more layer. It is taught first and by itself: whether two
# names are equal is then learned in a hundred steps. Among episodes, one seed of two does not learn it in a thousand steps. With
# half of the tokens per step, names are copied wrong even after the same number of tokens: the gradient is too noisy.
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
    """Whether the task is questions about a corpus; False for a mixture, whose tasks have separate corpora."""
    return isinstance(envs.envs[0], QAEnv)


def choose_curriculum(envs: ToolVectorEnv) -> Curriculum:
    """Choose the cold start for ``envs``."""
    if not has_corpus(envs):
        return WITHOUT_CORPUS
    return IN_VARIED_WORLDS if difficulty_of(envs) == "varied" else WITH_CORPUS


def difficulty_of(envs: ToolVectorEnv) -> str:
    """Difficulty of the MiniWiki worlds that the policy learns in."""
    assert envs.spec is not None
    return envs.spec.kwargs.get("difficulty", "normal")


def choose_script(envs: ToolVectorEnv, demonstrator: Demonstrator) -> partial[Script]:
    """Choose the script of the cold start in ``envs``, with the settings of ``demonstrator``. Raises a UserError if a setting
    that has no effect there differs from its default."""
    script, reads = choose_curriculum(envs).demonstrator, has_corpus(envs)
    for name in ("skill", "env_kwargs") if reads else ("continue_probability",):
        if getattr(demonstrator, name) != getattr(DEMONSTRATOR, name):
            raise UserError(
                f"cold_start_{name} has no effect here, as the cold start imitates {script.__name__}: remove it"
            )
    if reads:
        return partial(script, continue_probability=demonstrator.continue_probability)
    return partial(script, skill=demonstrator.skill)


@dataclass(frozen=True)
class Teacher:
    """Makes lessons, a pool of rows at a time. ``demonstrator`` acts in whole episodes. While a tool fails, they are rolled out
    again for at most ``outage_minutes``."""

    policy: Policy
    envs: ToolVectorEnv
    rng: random.Random
    demonstrator: Demonstrator = DEMONSTRATOR
    outage_minutes: float = retry.MINUTES

    def repetition(self) -> list[BatchRow]:
        """Make copies of random strings of whole words."""
        vocabulary = self.policy.tokenizer.get_vocab()
        words = sorted(i for token, i in vocabulary.items() if token.startswith("▁") and len(token) > 2)
        return lessons.repetition(POOL, words, self.rng)

    def browsing(self) -> list[BatchRow]:
        """Make questions on facts in search results, in a new world per pool; in one world, the policy memorises the facts."""
        world = World(600, self.rng.getrandbits(32), difficulty=difficulty_of(self.envs))
        own = cast(SearchTool, self.envs.envs[0].tools["search"])
        tool = SearchTool(world.build_index(), own.k, own.max_chars)
        return lessons.browsing(POOL, world, tool, self.policy, self.rng)

    def pairs(self) -> list[BatchRow]:
        """Make pairs of things and how they compare."""
        return lessons.pairs(4 * POOL, self._make_world(), self.policy, self.rng)

    def comparing(self) -> list[BatchRow]:
        """Make questions that compare, without the articles."""
        return lessons.comparing(4 * POOL, self._make_world(), self.policy, self.rng)

    def _make_world(self) -> World:
        return World(600, self.rng.getrandbits(32), difficulty="varied")

    def guided(self) -> list[BatchRow]:
        """Make an episode without mistakes for each question of a fresh world, without its decisions."""
        stage = self._make_fresh_envs()
        numbers = list(range(len(cast(QAEnv, stage.envs[0]).questions)))
        script = partial(qa_scripts.careless, continue_probability=1.0, mistake_probability=0.0)
        seed = self.rng.getrandbits(32)
        return lessons.guided_episodes(stage, self.policy, numbers, script, seed, self.outage_minutes)

    def episodes(self) -> list[BatchRow]:
        """Make whole episodes of the demonstrator, in a fresh world if the corpus is MiniWiki."""
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
        """Make the same kind of environments in a fresh world."""
        assert self.envs.spec is not None
        entities = max(600, self.envs.spec.kwargs.get("entities", 0))
        questions = min(POOL, len(cast(QAEnv, self.envs.envs[0]).questions))
        seed = self.rng.getrandbits(32)
        return remake(self.envs, num_envs=POOL, entities=entities, world_seed=seed, questions=questions)


def remake(envs: ToolVectorEnv, **changes: object) -> ToolVectorEnv:
    """Make environments like ``envs``, with some of their arguments changed."""
    assert envs.spec is not None
    return cast(ToolVectorEnv, gymnasium.make_vec(envs.spec.id, **{**envs.spec.kwargs, **changes}))


@contextlib.contextmanager
def open_demonstration_envs(envs: ToolVectorEnv, demonstrator: Demonstrator) -> Iterator[ToolVectorEnv]:
    """Open the environments of a noisy expert: ``envs``, or such environments with the ``env_kwargs`` of ``demonstrator``."""
    if not (changes := json.loads(demonstrator.env_kwargs)):
        yield envs
        return
    assert envs.spec is not None
    own = {name: value for name, value in envs.spec.kwargs.items() if name not in ("split", "num_envs")}
    with contextlib.closing(make_envs(envs.spec.id, json.dumps(own | changes), "train", NUM_ENVS)) as stage:
        yield stage


def make_batches(teacher: Teacher, steps: int) -> Iterator[tuple[str, list[BatchRow]]]:
    """Yield the lesson and the rows of each gradient step of a cold start of ``steps`` steps."""
    curriculum, rng = choose_curriculum(teacher.envs), teacher.rng
    kinds = {kind for _, kinds in curriculum.phases for kind in kinds}
    batches = {kind: batch_by_length(getattr(teacher, kind), rng, curriculum.tokens_per_step) for kind in kinds}
    for share, kinds_of_phase in curriculum.phases:
        for _ in range(int(share * steps) + 1):
            kind = rng.choice(kinds_of_phase)
            yield kind, next(batches[kind])


def batch_by_length(make: Callable[[], list[BatchRow]], rng: random.Random, tokens: int) -> Iterator[list[BatchRow]]:
    """Yield endless batches of about ``tokens`` tokens, each of rows of about equal length."""
    while True:
        batches = split_by_length(make(), tokens)
        rng.shuffle(batches)
        yield from batches
