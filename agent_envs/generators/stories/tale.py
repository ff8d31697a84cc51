"""A word problem while it is being told: its sentences, and the steps of the calculation behind them."""

import random
from collections.abc import Sequence
from fractions import Fraction

from agent_envs.generators import Redraw
from agent_envs.generators.arithmetic import decimals, evaluate, number_text
from agent_envs.generators.people import GIVEN_NAMES


class Tale:
    """A word problem while it is being told: sentences, and the steps of the calculation behind them."""

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
        """One of several ways to say the same."""
        self.sentences.append(self.rng.choice(wordings))

    def step(self, expression: str, *, whole: bool = False) -> str:
        """Work out the next step; its value, as text for the steps after it."""
        value = evaluate(expression)
        places = decimals(value)
        if value <= 0 or places is None or places > (0 if whole else 2) or value >= 10**7:
            raise Redraw
        self.steps.append(expression)
        return number_text(value)

    def pick(self, options: Sequence):
        """One of `options`, chosen at random."""
        return self.rng.choice(options)

    def amount(self, low: int, high: int, step: int = 1) -> int:
        """A whole number in low..high."""
        return self.rng.randrange(low, high + 1, step)

    def price(self, low: int, high: int) -> str:
        """Dollars and cents, in steps of five cents, as text for an expression: ``"3.5"``."""
        return number_text(
            Fraction(self.rng.randrange(low * 100, high * 100 + 1, self.rng.choice((5, 25, 50, 100))), 100)
        )


def dollars(text: str) -> str:
    """``"3.5"`` as ``"$3.50"``."""
    whole, _, cents = text.partition(".")
    return f"${int(whole):,}" + (f".{cents:0<2}" if cents else "")
