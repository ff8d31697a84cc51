"""Countdown: puzzles with a known solution, and a strict evaluator of arithmetic with exact fractions."""

import ast
import operator
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from agent_envs.games.split import check_split, split_of

MAX_LENGTH = 200  # characters of an expression; it bounds depth and the size of every number in it
TARGETS = range(10, 100)
TRIES = 20_000

_ALLOWED = re.compile(r"[0-9+\-*/() ]*")
_OPERATORS: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True, slots=True)
class CountdownPuzzle:
    """Reach ``target`` with all of ``numbers``, each used once; ``solution`` is one way."""

    numbers: tuple[int, ...]
    target: int
    solution: str


def generate(rng: random.Random, counts: tuple[int, int], largest: int, split: str) -> CountdownPuzzle:
    """A puzzle with ``counts[0]`` to ``counts[1]`` numbers from 1 to ``largest`` and a target in ``TARGETS``.

    Numbers are joined two by two with an operation that keeps them whole; what comes out is the target. The split goes
    by a digest of the numbers, in ascending order, and the target.
    """
    check_split(split)
    for _ in range(TRIES):
        numbers = tuple(rng.randint(1, largest) for _ in range(rng.randint(*counts)))
        target, solution = _build(rng, numbers)
        if target in TARGETS and split_of(f"{sorted(numbers)} {target}") == split:
            return CountdownPuzzle(numbers, target, solution)
    raise ValueError(f"found no puzzle with {counts} numbers up to {largest}; allow larger numbers, or more of them")


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """The exact value of an arithmetic expression and the numbers in it, in the order written.

    Whole numbers, + - * /, a minus in front, and brackets; nothing else.

    Raises:
        ValueError: saying what is wrong, for any other string.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"an expression may have {MAX_LENGTH} characters at most, this one has {len(text)}")
    text = " ".join(text.split())
    if not _ALLOWED.fullmatch(text):
        raise ValueError("an expression may hold whole numbers, + - * / and brackets only")
    numbers: list[int] = []
    try:
        return _value(ast.parse(text, mode="eval").body, numbers), numbers
    except ZeroDivisionError:
        raise ValueError("the expression divides by zero") from None
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError("this is not a well-formed expression") from None


def _value(node: ast.expr, numbers: list[int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        numbers.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, numbers)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left = _value(node.left, numbers)
        return _OPERATORS[type(node.op)](left, _value(node.right, numbers))
    raise ValueError("an expression may hold whole numbers, + - * / and brackets only")


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
