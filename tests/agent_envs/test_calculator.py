"""Word problems with a calculator: the arithmetic, the stories, the task."""

import json
import random
import re
import warnings
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_envs.generators.arithmetic import decimals, evaluate, number_text, parse_number, same_answer
from agent_envs.generators.instances import Redraw
from agent_envs.generators.stories import DIFFICULTIES, STEPS, STORIES, make_problem
from agent_envs.generators.tales import Problem, Tale, Told
from agent_envs.tasks.calculator import CalculatorEnv
from agent_envs.utils.scripts import roll_out


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", 14), ("(2 + 3) * 4", 20), ("0.1 + 0.2", Fraction(3, 10)), ("10 / 4", Fraction(5, 2)),
        ("10 // 4", 2), ("-7 // 2", -4), ("-7 % 3", 2), ("2 ** 10", 1024), ("2 ** -2", Fraction(1, 4)), ("-2 ** 2", -4),
        ("+5", 5), (" 1 +\n 2 ", 3), ("1.", 1), (".5", Fraction(1, 2)),
        ("0.12345678901234567890123 * 10", Fraction("1.2345678901234567890123")),
        ("7 / (3 - 1/3)", Fraction(21, 8)), ("(" * 80 + "1" + ")" * 80, 1), ("10 ** 100 / 10 ** 99", 10),
    ],
)  # fmt: skip
def test_expressions_have_their_exact_value(expression, value):
    assert evaluate(expression) == value


HOSTILE = [
    "", " ", "9**9**9", "9**9**9**9", "2**100000", "(1/3)**5000", "10**200*10**200", "1/0", "5 % 0", "5 // 0", "0**-1",
    "2**0.5", "(-8)**(1/3)", "__import__('os').system('x')", "abs(3)", "1_000", "0x10", "1e9", "1j", "007", "x",
    "1;2", "[1]",
    "1,2", "$5", "5%", "3 4", "2(3)", "(", ")", "()", "1 +", "1 < 2", "1 if 1 else 2", "1 and 2", "not 1", "~1",
    "1 << 2",
    "1 @ 2", "lambda: 1", "(1:=2)", "'a'", "...", "True", "#", "1 # 2", "\\\n1", "١", "１", "²", "2×3", "\x00",
    "1\x00", "\ud800",
    "(" * 400 + "1" + ")" * 99, "(" * 249 + "1" + ")" * 249, "-" * 480 + "1" + "+", "1+" * 5000 + "1", "9" * 501,
    "9" * 400 + "**2",
]  # fmt: skip


@pytest.mark.parametrize("expression", HOSTILE)
def test_anything_else_is_refused_in_words(expression):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError) as error:
            evaluate(expression)
    assert type(error.value) is ValueError and 0 < len(str(error.value)) < 160


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="0123456789+-*/%() .", max_size=25) | st.text(max_size=25))
def test_any_string_has_python_s_value_or_a_reason(text):
    try:
        value = evaluate(text)
    except ValueError:
        return
    assert value == eval(re.sub(r"\d+\.?\d*|\.\d+", lambda found: f"Fraction('{found[0]}')", " ".join(text.split())))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42), (" 42. ", 42), ("$1,234.50", Fraction("1234.5")), ("1,234,567", 1234567), ("-3", -3), ("−3", -3),
        ("-$3", -3), ("12.50", Fraction("12.5")), (".5", Fraction(1, 2)), ("15%", None), ("007", 7), ("€ 5", 5), ("+5", 5),
        ("", None), (".", None), ("-", None), ("1,23", None), ("12,34,567", None), ("1 2", None), ("4 apples", None),
        ("1/2", None), ("1e5", None), ("nan", None), ("٣", None), ("5 or 6", None), ("--5", None), ("9" * 61, None),
        ("1.2.3", None),
    ],
)  # fmt: skip
def test_numbers_are_read_however_they_are_written(text, value):
    assert parse_number(text) == value


@given(st.fractions(max_denominator=10**6))
@settings(max_examples=50, deadline=None)
def test_number_text_says_the_number(value):
    text = number_text(value)
    if decimals(value) is None:
        assert text.endswith(f"({value})")
    else:
        assert parse_number(text) == value == Fraction(text)


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("1234", "1,234", True), ("42", "42.0", True), ("42", "43", False), ("42", "", False), ("12.5", "$12.50", True),
        ("0.3", "0.30000000000000004", False), ("Monday", "monday.", True), ("Monday", "Mon", False),
        ("2024-03-01", "2024-03-01", True), ("2024-03-01", "2024", False), ("apple tiger", " Apple  tiger ", True),
        ("apple tiger", "tiger apple", False), ("Ada Berg", "", False),
    ],
)  # fmt: skip
def test_answers_are_compared_as_what_they_are(gold, answer, right):
    assert same_answer(answer, gold) is right


@pytest.mark.parametrize("length", range(2, 7))
@pytest.mark.parametrize("kind", STORIES)
def test_a_story_tells_as_many_steps_as_it_is_asked_for(kind, length):
    told = 0
    for seed in range(4000):
        tale = Tale(random.Random(seed), length)
        with suppress(Redraw):
            with suppress(Told):
                STORIES[kind](tale)
            assert tale.left == 0 and tale.sentences[-1].endswith("?")
            told += 1
        if told == 2:
            return
    pytest.fail(f"only {told} in 4000 tries")


def test_a_tank_holds_its_water_after_every_step():
    told = 0
    for seed in range(400):
        tale = Tale(random.Random(seed), 5)
        with suppress(Redraw):
            with suppress(Told):
                STORIES["tank"](tale)
            *levels, missing = tale.steps
            volume = evaluate(missing.split(" - ")[0])
            assert all(0 <= evaluate(level) <= volume for level in levels)
            told += 1
    assert told > 20


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_problems_are_what_the_difficulty_says(difficulty):
    kinds = set()
    for seed in range(200):
        problem = make_problem(random.Random(f"{difficulty}{seed}"), difficulty)
        assert STEPS[difficulty][0] <= len(problem.steps) <= STEPS[difficulty][1]
        assert all(value > 0 and decimals(value) <= 2 for value in problem.values)
        assert problem.values[-1] == problem.answer and problem.text[0].isupper()
        assert problem.text.endswith("?") and "{" not in problem.text
        kinds.add(problem.kind)
    assert kinds == set(STORIES)


def make(**arguments):
    """An episode with a problem that is known."""
    env = CalculatorEnv(**arguments)
    env.reset(seed=0)
    env.problem = Problem("3 pens at $1.20, less $0.60?", Fraction(3), ("3 * 1.2", "3.6 - 0.6"), "test")
    env._values, env._reached = env.problem.values, 0
    return env


def test_rewards_to_the_number():
    env = make()
    said, reward, _, _, info = env.step("<calculate>3 * 1.2</calculate>")
    assert "3.6" in said and reward == pytest.approx(0.15) and info["progress"] == 0.5
    assert env.step("<calculate>3*1.2 / 0</calculate>")[1] == pytest.approx(-0.1)  # Φ stays
    assert env.step("<calculate>3 * 1.2</calculate>")[1] == pytest.approx(-0.05)  # again
    assert env.step("hm")[1] == pytest.approx(-0.1)
    assert env.step("<calculate>3*1.2 - 0.6</calculate>")[1] == pytest.approx(0.15)
    _, reward, terminated, truncated, info = env.step("<answer>$3.00</answer>")
    assert info["reward_terms"] == {
        "answer": 1.0, "format": pytest.approx(0.05 * 5 / 6), "progress": pytest.approx(-0.3), "invalid": 0.0,
        "repeat": 0.0,
    }  # fmt: skip
    assert (terminated, truncated, info["success"], info["gold"]) == (True, False, 1.0, "3")


def test_wrong_answers_earn_their_format_alone_and_one_large_expression_is_as_good_as_many_steps():
    for answer in ("3.6", "3.0001", "three", "3 dollars", "2 or 3", "-3"):
        _, reward, _, _, info = make().step(f"<answer>{answer}</answer>")
        assert reward == pytest.approx(0.05) and info["success"] == 0.0 and info["prediction"] == answer
    assert make().step("<calculate>3 * 1.2 - 0.6</calculate>")[4]["progress"] == 1.0


@pytest.fixture
def gsm8k(tmp_path):
    question, answer = "Ann has {},000 apples and buys 234. How many?", "Sum.\n#### {},234"
    rows = [json.dumps({"question": question.format(n), "answer": answer.format(n)}) + "\n" for n in range(1, 4)]
    (tmp_path / "gsm8k").mkdir()
    for name in ("train", "test"):
        (tmp_path / "gsm8k" / f"{name}.jsonl").write_text("".join(rows))
    return str(tmp_path / "gsm8k" / "test.jsonl")


def test_gsm8k_is_played_and_scored_by_its_number(gsm8k):
    env = CalculatorEnv(source="gsm8k", split="validation", data=gsm8k)
    text, info = env.reset(options={"instance": 1})
    assert text.startswith("Ann has 2,000") and info["kind"] == "gsm8k" and info["source"].startswith("local:")
    assert env.step("<calculate>2000 + 234</calculate>")[1] == pytest.approx(0.3)
    assert env.step("<answer>2,234.00</answer>")[4]["success"] == 1.0
    with pytest.raises(ValueError, match=r"0\.\.2"):
        env.reset(options={"instance": 3})
    assert all(roll_out(env, CalculatorEnv.SCRIPTS["oracle"], seed)[-1]["success"] for seed in range(5))


def test_gsm8k_that_was_changed_is_read_again(gsm8k, tmp_path, monkeypatch):
    def first(**kwargs):
        return CalculatorEnv(source="gsm8k", split="validation", **kwargs).questions[0].question

    file = tmp_path / "gsm8k" / "test.jsonl"
    before = first(data=gsm8k)
    file.write_text(file.read_text().replace(before[:3], "Whoever"))
    assert first(data=gsm8k) != before
    monkeypatch.setenv("AGENT_ENVS_DATA", str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError):
        first()
    monkeypatch.setenv("AGENT_ENVS_DATA", str(tmp_path))
    assert first().startswith("Whoever")
    file.write_text(file.read_text().replace("Whoever", "Whatever"))  # in its folder in there
    assert first().startswith("Whatever")


def test_a_file_of_gsm8k_is_in_both_splits_with_a_warning(gsm8k):
    with pytest.warns(UserWarning, match="has the questions of both splits"):
        CalculatorEnv(source="gsm8k", data=gsm8k)
