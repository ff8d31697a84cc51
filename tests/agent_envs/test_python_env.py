"""Questions that take a program: the puzzles, the tool, the task."""

import random

import pytest

from agent_envs import sandbox
from agent_envs.generators.puzzles import KINDS, Puzzle, make_puzzle
from agent_envs.sandbox import SandboxError
from agent_envs.tasks.python import PythonEnv, PythonTool

WORKS = [name for name, state in sandbox.available().items() if state == "ok" and name != "unsafe"]
needs_sandbox = pytest.mark.skipif(not WORKS, reason=f"no isolation here: {sandbox.available()}")

# Golds of the seeds "<kind>0" to "<kind>3", which were worked out in another way than the programs do it.
SOLVED = {
    "counting": ("333", "0", "124", "622"), "recurrence": ("3290", "32168", "12875", "71084"),
    "chains": ("2919", "2223", "1161", "2223"), "primes": ("225", "944596", "363136", "40"),
    "weekdays": ("9", "82", "109", "56"), "days_after": ("Thursday", "2056-10-20", "Tuesday", "Friday"),
    "change": ("3433", "0", "300", "388"), "windows": ("26", "8", "26", "4"),
    "cipher": ("willow feather tower", "summer bridge hammer window", "saddle walnut pebble mirror dragon tiger",
               "pebble bridge river saddle"),
    "table": ("1107", "Calder", "242", "1970"), "walks": ("72", "9", "184", "40"), "roads": ("73", "47", "80", "38"),
    "circle": ("66", "38", "451", "11"), "automaton": ("28", "19", "33", "17"), "robot": ("26", "88", "32", "339"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_puzzles_are_solved_as_by_other_means_and_there_are_many_of_each_kind(kind):
    assert tuple(KINDS[kind](random.Random(f"{kind}{seed}")).answer for seed in range(4)) == SOLVED[kind]
    assert len({KINDS[kind](random.Random(seed)).text for seed in range(40)}) > 37


def test_no_puzzle_is_won_by_the_guess_of_zero():
    assert "0" not in {make_puzzle(random.Random(seed), ("counting", "change")).answer for seed in range(100)}


@needs_sandbox
def test_the_tool_says_what_happened():
    tool = PythonTool(timeout=1.5)
    codes = ["print(6 * 7)", "x = 1", "1 / 0", "import sys; print('a'); sys.exit(3)", "while True: pass"]
    results = tool.execute_batch([{"code": code} for code in (*codes, "print('x' * 10**6)")])
    good, silent, error, status, endless, long = results
    assert (good.text, good.ok, good.data.stdout) == ("42", True, "42\n")
    assert (silent.text, silent.ok) == ("[nothing was printed]", True)
    assert "ZeroDivisionError" in error.text and not error.ok and not error.fault
    assert status.text == "a\n[exit status 3]" and not status.ok
    assert endless.text == "[stopped after 1.5 seconds]" and not endless.ok
    assert long.ok and len(long.text) < 5000 and "left out" in long.text


def make(**arguments):
    """An episode with a puzzle that is known, and without isolation: what runs here is ours."""
    env = PythonEnv(**{"sandbox": "unsafe", **arguments})
    env.reset(seed=0)
    env.puzzle = Puzzle("What is 6 times 7?", "print(42)", "42", "test")
    return env


def test_rewards_to_the_number():
    env = make()
    said, reward, *_ = env.step("<python>print(42 + 1)</python>")
    assert "43" in said and reward == 0.0
    assert env.step("<python>print(42); print(1)</python>")[1] == 0.0  # the last line counts
    assert env.step("<python>print(41 +</python>")[1] == pytest.approx(-0.1)
    assert env.step("<python>print('so:')\nprint(6 * 7)</python>")[1] == pytest.approx(0.3)
    _, reward, terminated, truncated, info = env.step("<answer>42</answer>")
    assert reward == pytest.approx(1.0 + 0.05 - 0.3) and (terminated, truncated) == (True, False)
    assert (info["success"], info["prediction"], info["gold"]) == (1.0, "42", "42")


def test_a_program_that_prints_the_gold_and_fails_is_a_failure():
    _, reward, _, _, info = make().step("<python>print(42); raise SystemExit(1)</python>")
    assert reward == pytest.approx(-0.1) and info["progress"] == 0.0 and info["tool_faults"] == 0


def test_without_isolation_reset_says_so():
    missing = next(name for name, state in {**sandbox.available(), "none": ""}.items() if state != "ok")
    if missing == "none":
        pytest.skip("every backend works here")
    env = PythonEnv(sandbox=missing)
    with pytest.raises(SandboxError, match=missing):
        env.reset(seed=0)
    with pytest.raises(ValueError, match="backend"):
        PythonEnv(sandbox="magic").reset(seed=0)
