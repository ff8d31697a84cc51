"""Word problems of several steps, made from a seed, with the calculation that solves each.

A story tells what happened in sentences and works out the numbers on the way. Numbers are drawn until every
intermediate value is positive and has at most two decimals (or is whole, where the story counts things).
"""

import random
from dataclasses import dataclass
from fractions import Fraction

from agent_envs.generators import Redraw
from agent_envs.generators.arithmetic import evaluate
from agent_envs.generators.stories import measures, money, things
from agent_envs.generators.stories.tale import Tale

STEPS = {"easy": (2, 2), "normal": (3, 4), "hard": (5, 6)}
DISTRACTORS = {"easy": (0, 0), "normal": (0, 1), "hard": (1, 2)}
DIFFICULTIES = tuple(STEPS)
STORIES = {**money.STORIES, **things.STORIES, **measures.STORIES}
_BESIDE_THE_POINT = (
    "{name} is {small} years old.",
    "It is a walk of {small} minutes from there to the station.",
    "The day before, it had rained for {tiny} hours.",
    "A friend of {name} has lived in house number {big} for {tiny} years.",
    "Bus number {big} stops there every {small} minutes.",
    "{name} has {tiny} cousins in another town.",
    "The clock on the wall had stopped at {tiny} minutes past {tiny2}.",
)


@dataclass(frozen=True, slots=True)
class Problem:
    """``steps``: the calculation, one expression a step; the value of the last is the ``answer``."""

    text: str
    answer: Fraction
    steps: tuple[str, ...]
    kind: str

    @property
    def values(self) -> tuple[Fraction, ...]:
        """The value of each step."""
        return tuple(map(evaluate, self.steps))


def make_problem(rng: random.Random, difficulty: str = "normal") -> Problem:
    """A random word problem: two steps when easy, three or four when normal, five or six when hard.

    Normal and hard ones may hold sentences with numbers that have nothing to do with the question.
    """
    length = rng.randint(*STEPS[difficulty])
    kind = rng.choice(tuple(STORIES))
    while True:
        tale = Tale(rng, length)
        try:
            STORIES[kind](tale)
        except Redraw:
            continue
        assert not tale.left, f"the story {kind} of {length} steps has {len(tale.steps)}"
        _distract(tale, rng.randint(*DISTRACTORS[difficulty]))
        return Problem(" ".join(tale.sentences), evaluate(tale.steps[-1]), tuple(tale.steps), kind)


def _distract(tale: Tale, count: int) -> None:
    """Put sentences that are beside the point anywhere before the question, but not first."""
    for wording in tale.rng.sample(_BESIDE_THE_POINT, count):
        tiny, tiny2 = tale.rng.sample(range(2, 12), 2)
        filled = wording.format(
            name=tale.name, tiny=tiny, tiny2=tiny2, small=tale.amount(12, 60), big=tale.amount(13, 299)
        )
        tale.sentences.insert(tale.amount(1, len(tale.sentences) - 1), filled)
