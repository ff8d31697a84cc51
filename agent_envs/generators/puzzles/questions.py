"""Questions whose answers need computing, made from a seed."""

import random
from dataclasses import replace

from agent_envs.generators.arithmetic import parse_number, same_number, same_text
from agent_envs.generators.puzzles import data, numbers, rules
from agent_envs.generators.puzzles.puzzle import Puzzle

KINDS = {**numbers.KINDS, **data.KINDS, **rules.KINDS}


def make_puzzle(rng: random.Random, kinds: tuple[str, ...] = tuple(KINDS)) -> Puzzle:
    """A puzzle of one of ``kinds``, see `KINDS`."""
    kind = rng.choice(kinds)
    return replace(KINDS[kind](rng), kind=kind)


def is_right(puzzle: Puzzle, answer: str) -> bool:
    """Whether an answer is the gold one: as a number where it is one, as text otherwise."""
    gold = parse_number(puzzle.answer)
    return same_text(answer, puzzle.answer) if gold is None else same_number(answer, gold)
