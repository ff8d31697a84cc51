"""Countdown: the reader of expressions, the puzzles and the task."""

import random
from fractions import Fraction

import pytest

from agent_envs.games import countdown
from agent_envs.generators.instances import split_of
from agent_envs.tasks.countdown import CountdownEnv


def make():
    env = CountdownEnv()
    env.reset(seed=0)
    env.puzzle = countdown.CountdownPuzzle((3, 5, 2), 4, "")
    return env


VALUES = {  # the rest of the arithmetic is that of test_calculator.py
    **{"(2+5)*3": (21, [2, 5, 3]), "-3 + 5": (2, [3, 5]), "2 - -3": (5, [2, 3]), "  8\n*\t2 ": (16, [8, 2])},
    "7 / (3 - 1/3)": (Fraction(21, 8), [7, 3, 1, 3]),
}


def test_expressions_have_their_exact_value():
    assert {text: countdown.evaluate(text) for text in VALUES} == VALUES


@pytest.mark.parametrize(
    "text", ["", "2 5", "2 ** 3", "7 // 2", "7 % 2", "+2", "(+2)", "1e9", "1.5", ".5", "2 = 2", "x", "１", "1 / 0"]
)
def test_anything_else_is_refused_in_words(text):
    with pytest.raises(ValueError) as error:
        countdown.evaluate(text)
    assert type(error.value) is ValueError and len(str(error.value)) < 120


@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_puzzle_is_solved_by_its_solution(split):
    counts = set()
    for seed in range(200):
        puzzle = countdown.generate(random.Random(seed), (3, 4), 99, split)
        value, used = countdown.evaluate(puzzle.solution)
        assert value == puzzle.target and 10 <= puzzle.target <= 99
        assert sorted(used) == sorted(puzzle.numbers) and all(1 <= number <= 99 for number in used)
        assert split_of(f"{sorted(puzzle.numbers)} {puzzle.target}") == split
        counts.add(len(puzzle.numbers))
    assert counts == {3, 4}


RIGHT = "2 + 5 - 3", "(5 - 3) * 2", "-3 + 2 + 5"
WRONG = "2 + 5 + 3", "5 / 3 * 2"
NONE = (  # the first one has the right value, and wrong numbers
    *("2 + 2", "5 - 3", "2 + 5 - 3 + 3 - 3", "3 / (5 - 5) + 2", "2 / (5 - 5)", "2 + 5 - 3 = 4", "4", "52 - 3"),
    "the target",
)


def test_rewards_to_the_number():
    for expressions, correct, format in ((RIGHT, 1.0, 0.0), (WRONG, 0.0, 0.1), (NONE, 0.0, 0.0)):
        for expression in expressions:
            action = f"<think>x</think><answer>{expression}</answer>"
            _, reward, terminated, truncated, info = make().step(action)
            assert info["reward_terms"] == {"correct": correct, "format": pytest.approx(format)}, expression
            assert reward == pytest.approx(correct + format) and terminated is True and truncated is False
            assert info["success"] == correct and bool(info["problem"]) == (correct + format == 0)
    _, reward, terminated, truncated, info = make().step("2 + 5 - 3")  # without an answer
    assert reward == 0.0 and terminated is True and truncated is False and info["correct"] == 0.0
