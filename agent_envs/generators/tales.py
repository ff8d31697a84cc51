"""Construction of a word problem: its sentences, and the calculation that solves it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from agent_envs.generators.arithmetic import decimals, evaluate, number_text
from agent_envs.generators.instances import Redraw
from agent_envs.generators.people import GIVEN_NAMES

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
    """A word problem. ``steps`` is its calculation, an expression for each step; the last one has the value ``answer``."""

    text: str
    answer: Fraction
    steps: tuple[str, ...]
    kind: str

    @property
    def values(self) -> tuple[Fraction, ...]:
        """The value of each step."""
        return tuple(map(evaluate, self.steps))


class Told(Exception):
    """Raised when the story has asked its question."""


class Tale:
    """A word problem of ``length`` steps under construction: its sentences and its calculation."""

    def __init__(self, rng: random.Random, length: int):
        self.rng, self.length = rng, length
        self.name, self.other, self.third = rng.sample(GIVEN_NAMES, 3)
        self.sentences: list[str] = []
        self.steps: list[str] = []

    @property
    def left(self) -> int:
        """Steps that are still to be told."""
        return self.length - len(self.steps)

    def say(self, *wordings: str) -> None:
        """Append a sentence: one of several wordings, chosen at random."""
        self.sentences.append(self.rng.choice(wordings))

    def step(self, expression: str, *, whole: bool = False) -> str:
        """Append a step to the calculation; returns its value as text.
        Raises Redraw if the value is not positive, too large, or has more than two decimals (any, with ``whole``)."""
        value = evaluate(expression)
        places = decimals(value)
        if value <= 0 or places is None or places > (0 if whole else 2) or value >= 10**7:
            raise Redraw
        self.steps.append(expression)
        return number_text(value)

    def take_off(self, value: str, low: int, high: int, step: int, *wordings: str, whole: bool = False) -> str:
        """Take a random percentage off a value; the wordings tell it and contain ``{percent}``."""
        percent = self.amount(low, high, step)
        self.say(*(wording.format(percent=percent) for wording in wordings))
        return self.step(f"{value} * (100 - {percent}) / 100", whole=whole)

    def end(self, *wordings: str) -> None:
        """Ask the question and raise Told if no step is left."""
        if not self.left:
            self.say(*wordings)
            raise Told

    def pick(self, options: Sequence):
        """One of `options`, chosen at random."""
        return self.rng.choice(options)

    def amount(self, low: int, high: int, step: int = 1) -> int:
        """A random integer in low..high."""
        return self.rng.randrange(low, high + 1, step)

    def price(self, low: int, high: int) -> str:
        """A random price in dollars, a multiple of five cents, as text for an expression: ``"3.5"``."""
        step = self.rng.choice((5, 25, 50, 100))
        return number_text(Fraction(self.rng.randrange(low * 100, high * 100 + 1, step), 100))

    def distract(self, count: int) -> None:
        """Insert ``count`` irrelevant sentences at random places before the question, but not first."""
        for wording in self.rng.sample(_BESIDE_THE_POINT, count):
            tiny, tiny2 = self.rng.sample(range(2, 12), 2)
            small, big = self.amount(12, 60), self.amount(13, 299)
            filled = wording.format(name=self.name, tiny=tiny, tiny2=tiny2, small=small, big=big)
            self.sentences.insert(self.amount(1, len(self.sentences) - 1), filled)


def dollars(text: str) -> str:
    """Write an amount such as ``"3.5"`` as ``"$3.50"``."""
    whole, _, cents = text.partition(".")
    return f"${int(whole):,}" + (f".{cents:0<2}" if cents else "")
