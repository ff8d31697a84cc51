"""Countdown: puzzles with a known solution, and a strict evaluator of arithmetic with exact fractions."""

import random
import re
from dataclasses import dataclass
from fractions import Fraction

from agent_envs.generators import arithmetic
from agent_envs.generators.instances import split_of

TARGETS = range(10, 100)
TRIES = 20_000


@dataclass(frozen=True, slots=True)
class CountdownPuzzle:
    """Reach ``target`` with all of ``numbers``, each used once; ``solution`` is one way."""

    numbers: tuple[int, ...]
    target: int
    solution: str


def generate(rng: random.Random, counts: tuple[int, int], largest: int, split: str) -> CountdownPuzzle:
    """A puzzle with ``counts[0]`` to ``counts[1]`` numbers from 1 to ``largest`` and a target in ``TARGETS``, made by
    joining numbers two by two. A digest of the numbers, in ascending order, and the target decides on the split."""
    for _ in range(TRIES):
        numbers = tuple(rng.randint(1, largest) for _ in range(rng.randint(*counts)))
        target, solution = _build(rng, numbers)
        if target in TARGETS and split_of(f"{sorted(numbers)} {target}") == split:
            return CountdownPuzzle(numbers, target, solution)
    raise ValueError(f"found no puzzle with {counts} numbers up to {largest}, and a target of 10 to 99: change either")


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """The exact value of an expression of integers, + - * /, unary minus and brackets; and its integers in order.
    Raises ValueError: for any other string."""
    if not re.fullmatch(r"[0-9+\-*/()\s]*", text) or re.search(r"//|\*\*|(?:^|[(+\-*/])\s*\+", text):
        raise ValueError("an expression may hold whole numbers, + - * / and brackets only")
    return arithmetic.evaluate(text), [int(number) for number in re.findall(r"\d+", text)]


def _build(rng: random.Random, numbers: tuple[int, ...]) -> tuple[int, str]:
    """Join ``numbers`` at random into one expression: its value and its text."""
    terms = [(n, str(n)) for n in numbers]
    while len(terms) > 1:
        a, x = terms.pop(rng.randrange(len(terms)))
        b, y = terms.pop(rng.randrange(len(terms)))
        results = {"+": a + b, "-": a - b, "*": a * b}
        if b and a % b == 0:
            results["/"] = a // b
        sign = rng.choice(list(results))
        terms.append((results[sign], f"({x} {sign} {y})"))
    value, text = terms[0]
    return value, text[1:-1] if len(numbers) > 1 else text
