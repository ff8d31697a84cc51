"""The builder of a word problem: its sentences, and the steps of the calculation behind them."""

import random
from collections.abc import Sequence
from fractions import Fraction

from agent_envs.generators import Redraw
from agent_envs.generators.arithmetic import decimals, evaluate, number_text
from agent_envs.generators.people import GIVEN_NAMES


class Tale:
    """A word problem that is being built: sentences, and the steps of the calculation behind them.

    Args:
        rng: makes every choice.
        length: number of steps that the finished problem has.
    """

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
        """Append a step to the calculation.

        Args:
            expression: see `agent_envs.generators.arithmetic.evaluate`.
            whole: the value must be a whole number; otherwise it may have two decimals.

        Returns:
            Its value as text, for the steps after it.

        Raises:
            Redraw: the value is not positive, has too many decimals or is too large.
        """
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
