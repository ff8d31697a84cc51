"""Countdown: the reader of expressions, the puzzles and the task."""

import itertools
import pickle
import random
import re
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_envs.games import countdown
from agent_envs.games.split import split_of
from agent_envs.tasks.countdown import CountdownEnv, make_vector
from agent_envs.utils.checker import check_agent_env
from agent_envs.utils.scripts import roll_out


def make(numbers=(3, 5, 2), target=4, **arguments):
    env = CountdownEnv(**arguments)
    env.reset(seed=0)
    env.puzzle = countdown.CountdownPuzzle(tuple(numbers), target, "")
    return env


def answer(expression):
    return f"<think>x</think><answer>{expression}</answer>"


# -- the game ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("2 + 5 - 3", 4, [2, 5, 3]),
        ("(2+5)*3", 21, [2, 5, 3]),
        ("1/3 + 1/3 + 1/3", 1, [1, 3, 1, 3, 1, 3]),
        ("1 / 49 * 49", 1, [1, 49, 49]),  # 0.9999999999999999 in floating point
        ("-3 + 5", 2, [3, 5]),
        ("2 - -3", 5, [2, 3]),
        ("7 / (3 - 1/3)", Fraction(21, 8), [7, 3, 1, 3]),
        ("  8\n*\t2 ", 16, [8, 2]),
        ("0", 0, [0]),
    ],
)
def test_expressions_have_their_exact_value(text, value, numbers):
    assert countdown.evaluate(text) == (value, numbers)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "2 +", "2 5", "(2", "2)", "()", "2 ** 3", "9**9**9**9", "7 // 2", "7 % 2", "+2", "~2", "2(3)", "1_000",
        "1e9", "1.5", ".5", "0x10", "007", "2 = 2", "2, 3", "[2]", "2 if 1 else 3", "abs(2)", "__import__('os')", "x",
        "１ + ２", "٣", "²", "2×3", "6÷2", "1;2", "#", "1 #2", "lambda: 1", "True", "1 / 0", "1 / (2 - 2)", "\x00", "2\x00",
        "\ud800", "(" * 99 + "1" + ")" * 99 + "+", "1+" * 5000 + "1", "(" * 10_000, "9" * 5000, "-" * 5000 + "1",
        "1" + " " * 500 + "+ 1", "2" + "\\\n" + "+ 3", "1 + 1\n" * 3,
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_words(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError) as error:
            countdown.evaluate(text)
    assert type(error.value) is ValueError and len(str(error.value)) < 120


def test_deep_expressions_within_the_length_are_read():
    assert countdown.evaluate("(" * 90 + "1" + ")" * 90) == (1, [1])
    assert countdown.evaluate("-" * 199 + "1") == (-1, [1])


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet="0123456789+-*/() .\n_ex", max_size=30) | st.text(max_size=30))
def test_any_string_has_a_value_or_a_reason(text):
    try:
        value, numbers = countdown.evaluate(text)
    except ValueError:
        return
    assert numbers == [int(number) for number in re.findall("[0-9]+", text)]
    assert float(value) == pytest.approx(eval(" ".join(text.split())))


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


def test_splits_are_disjoint():
    def keys(split):
        puzzles = (countdown.generate(random.Random(seed), (2, 3), 9, split) for seed in range(300))
        return {(tuple(sorted(puzzle.numbers)), puzzle.target) for puzzle in puzzles}

    assert not keys("train") & keys("validation")


# -- the task ----------------------------------------------------------------------------------------------------------


def test_gymnasium_and_our_own_checker_have_nothing_to_say():
    check_agent_env(CountdownEnv(), steps=120)


@pytest.mark.parametrize(
    ("expression", "correct", "format"),
    [
        ("2 + 5 - 3", 1.0, 0.0),
        ("(5 - 3) * 2", 1.0, 0.0),
        ("-3 + 2 + 5", 1.0, 0.0),
        ("2 + 5 + 3", 0.0, 0.1),
        ("5 / 3 * 2", 0.0, 0.1),
        ("2 + 2", 0.0, 0.0),  # right value, wrong numbers
        ("5 - 3", 0.0, 0.0),
        ("2 + 5 - 3 + 3 - 3", 0.0, 0.0),
        ("3 / (5 - 5) + 2", 0.0, 0.0),
        ("2 / (5 - 5)", 0.0, 0.0),
        ("2 + 5 - 3 = 4", 0.0, 0.0),
        ("4", 0.0, 0.0),
        ("52 - 3", 0.0, 0.0),
        ("the target", 0.0, 0.0),
    ],
)
def test_rewards_to_the_number(expression, correct, format):
    _, reward, terminated, truncated, info = make().step(answer(expression))
    assert info["reward_terms"] == {"correct": correct, "format": pytest.approx(format)}
    assert reward == pytest.approx(correct + format) and terminated is True and truncated is False
    assert info["success"] == correct and bool(info["problem"]) == (correct + format == 0)


def test_division_by_zero_with_the_right_numbers_earns_nothing():
    _, reward, _, _, info = make((3, 3, 2)).step(answer("2 / (3 - 3)"))
    assert reward == 0.0 and info["problem"] == "the expression divides by zero"


def test_fractions_on_the_way_are_exact():
    assert make((1, 5, 5, 5), 24).step(answer("5 * (5 - 1 / 5)"))[1] == 1.0


def test_a_turn_without_an_answer_earns_nothing():
    _, reward, terminated, truncated, info = make().step("2 + 5 - 3")
    assert reward == 0.0 and terminated is True and truncated is False and info["correct"] == 0.0


def test_more_turns_forgive_what_cannot_be_read():
    env = make(max_turns=2)
    assert env.step("hm")[1:4] == (0.0, False, False)
    assert env.step(answer("2 + 5 - 3"))[1:4] == (1.0, True, False)


def test_observation_names_numbers_and_target_and_not_the_solution():
    env = CountdownEnv()
    for seed in range(20):
        observation, info = env.reset(seed=seed)
        assert observation == f"Numbers: {', '.join(map(str, info['numbers']))}\nTarget: {info['target']}"
        assert "solution" not in info


def test_oracle_is_always_right_and_scripts_rank():
    means = {}
    for name, script in CountdownEnv.SCRIPTS.items():
        said = [
            roll_out(CountdownEnv(split=split), script, seed)[-1]
            for split in ("train", "validation")
            for seed in range(40)
        ]
        means[name] = np.mean([step["correct"] for step in said])
        assert all(step["reward"] in (0.1, 1.0) for step in said) or name == "random"
    assert means["random"] < means["scripted"] < means["oracle"] == 1.0


@pytest.mark.parametrize("format", ["ragen", "hermes", "react", "openai", "harmony"])
def test_any_format_will_do(format):
    assert roll_out(CountdownEnv(format=format), CountdownEnv.SCRIPTS["oracle"], 1)[-1]["reward"] == 1.0


def test_pickled_in_the_middle_it_goes_on():
    env = make(max_turns=3)
    env.step("?")
    copy = pickle.loads(pickle.dumps(env))
    assert env.step(answer("2 + 5 + 3")) == copy.step(answer("2 + 5 + 3"))


def test_vector_is_as_one_by_one():
    vector, alone = make_vector(num_envs=3), [CountdownEnv() for _ in range(3)]
    observations, _ = vector.reset(seed=4)
    assert list(observations) == [env.reset(seed=4 + i)[0] for i, env in enumerate(alone)]
    answers = [answer(alone[0].puzzle.solution), answer("1 + 1"), "?"]
    said = vector.step(answers)
    assert list(said[1]) == [env.step(text)[1] for env, text in zip(alone, answers, strict=True)] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "arguments", [{"split": ""}, {"numbers": (1, 3)}, {"numbers": (4, 3)}, {"numbers": (2, 9)}, {"largest": 2}]
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ValueError):
        CountdownEnv(**arguments)


def test_small_numbers_still_make_puzzles():
    for split, seed in itertools.product(("train", "validation"), range(10)):
        CountdownEnv(split=split, numbers=(2, 2), largest=5).reset(seed=seed)
