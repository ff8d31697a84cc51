"""Questions that take a program: the puzzles, the tool, the task."""

import contextlib
import io
import pickle
import random

import numpy as np
import pytest

from agent_envs import sandbox
from agent_envs.games.split import split_of
from agent_envs.generators.puzzles.puzzle import Puzzle
from agent_envs.generators.puzzles.questions import KINDS, is_right, make_puzzle
from agent_envs.sandbox import SandboxError
from agent_envs.tasks.python import PythonEnv, PythonTool, make_vector
from agent_envs.tools import run_calls
from agent_envs.types import ToolCall
from agent_envs.utils.checker import check_agent_env
from agent_envs.utils.scripts import roll_out

WORKS = [name for name, state in sandbox.available().items() if state == "ok" and name != "unsafe"]
needs_sandbox = pytest.mark.skipif(not WORKS, reason=f"no isolation here: {sandbox.available()}")

# -- puzzles -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_program_of_a_puzzle_prints_its_answer(kind):
    """Two ways to the answer, written apart; a mistake would have to be made twice."""
    for seed in range(25):
        puzzle = KINDS[kind](random.Random(f"{kind}{seed}"))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(puzzle.program, kind, "exec"), {"__name__": "__main__"})
        assert printed.getvalue().strip() == puzzle.answer, puzzle
        assert puzzle.text.rstrip(".").rpartition("\n")[2] and puzzle.program == puzzle.program.strip()


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_many_of_each_kind(kind):
    assert len({KINDS[kind](random.Random(seed)).text for seed in range(300)}) > 290


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("42", "42.0", True), ("1234", "1,234", True), ("42", "43", False), ("42", "", False),
        ("Monday", "monday.", True), ("Monday", "Mon", False),
        ("2024-03-01", "2024-03-01", True), ("2024-03-01", "2024", False), ("apple tiger", " Apple  tiger ", True),
        ("apple tiger", "tiger apple", False),
    ],
)  # fmt: skip
def test_answers_are_compared_as_what_they_are(gold, answer, right):
    assert is_right(Puzzle("?", gold, ""), answer) is right


def test_only_the_kinds_that_are_asked_for():
    assert {make_puzzle(random.Random(seed), ("roads", "cipher")).kind for seed in range(30)} == {"roads", "cipher"}


# -- the tool ----------------------------------------------------------------------------------------------------------


@needs_sandbox
def test_the_tool_says_what_happened():
    tool = PythonTool(timeout=2.0)
    codes = [
        "print(6 * 7)",
        "x = 1",
        "1 / 0",
        "import sys; print('a'); sys.exit(3)",
        "while True: pass",
        "print('x' * 10**6)",
    ]
    good, silent, error, status, endless, long = tool.execute_batch([{"code": code} for code in codes])
    assert (good.text, good.ok, good.data.stdout) == ("42", True, "42\n")
    assert (silent.text, silent.ok) == ("[nothing was printed]", True)
    assert "ZeroDivisionError" in error.text and not error.ok and not error.fault
    assert status.text == "a\n[exit status 3]" and not status.ok
    assert endless.text == "[stopped after 2 seconds]" and not endless.ok
    assert long.ok and len(long.text) < 5000 and "left out" in long.text


@needs_sandbox
def test_what_is_printed_last_is_shown_however_much_there_is():
    loop = "for i in range(1500): print('step', i)"
    told = [f"{loop}\nprint('22')", f"{loop}\nraise KeyError('x')", f"{loop}\nwhile True: print('x')"]
    calls = [({"python": PythonTool(timeout=1.0)}, ToolCall("python", {"code": code})) for code in told]
    answer, error, endless = (result.text for result in run_calls(calls))
    assert answer.startswith("step 0\n") and answer.endswith("22")
    assert "KeyError: 'x'\n[exit status 1]" in error and "step 1" in error
    assert endless.endswith("[stopped after 1 seconds]")
    assert max(map(len, (answer, error, endless))) <= PythonTool.max_output


def test_tools_that_do_the_same_share_a_lane():
    assert PythonTool().batch_key == PythonTool().batch_key != PythonTool(timeout=1.0).batch_key
    assert PythonTool(backend="unsafe").execute({"code": "print(1)"}).text == "1"


@needs_sandbox
def test_nothing_is_kept_between_runs_and_batches_keep_their_order():
    tools = {"python": PythonTool()}
    calls = [ToolCall("python", {"code": f"print({i}, 'x' in globals()); x = 1"}) for i in range(6)]
    results = run_calls([(tools, call) for call in calls])
    assert [result.text for result in results] == [f"{i} False" for i in range(6)]


# -- the task ----------------------------------------------------------------------------------------------------------


def make(**arguments):
    """An episode with a puzzle that is known, and without isolation: what runs here is ours."""
    env = PythonEnv(**{"sandbox": "unsafe", **arguments})
    env.reset(seed=0)
    env.puzzle = Puzzle("What is 6 times 7?", "42", "print(42)", "test")
    return env


@needs_sandbox
def test_gymnasium_and_our_own_checker_have_nothing_to_say():
    check_agent_env(PythonEnv(), steps=20)


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


def test_wrong_answers_earn_their_format_alone():
    assert make().step("<answer>43</answer>")[1] == pytest.approx(0.05)


def test_without_isolation_reset_says_so():
    missing = next(name for name, state in {**sandbox.available(), "none": ""}.items() if state != "ok")
    if missing == "none":
        pytest.skip("every backend works here")
    env = PythonEnv(sandbox=missing)
    with pytest.raises(SandboxError, match=missing):
        env.reset(seed=0)
    with pytest.raises(ValueError, match="backend"):
        PythonEnv(sandbox="magic").reset(seed=0)


@needs_sandbox
@pytest.mark.parametrize(
    "code",
    [
        "import os; print(os.environ)",
        "open('/etc/passwd').read()",
        "import socket; socket.create_connection(('1.1.1.1', 80), 1)",
        "import os\nwhile True: os.fork()",
        "x = 'a' * 10**10",
        "import os; os.kill(os.getppid(), 9)",
    ],
)
def test_hostile_programs_harm_nobody(code, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "opensesame")
    env = PythonEnv(timeout=1.0)
    env.reset(seed=0)
    said, _, terminated, _, info = env.step(f"<python>{code}</python>")
    assert not terminated and info["tool_faults"] == 0 and "root:" not in said and "opensesame" not in said


@needs_sandbox
@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_oracle_solves_everything(split):
    env = PythonEnv(split=split)
    for seed in range(20):
        episode = roll_out(env, PythonEnv.SCRIPTS["oracle"], seed)
        assert episode[-1]["success"] == 1.0 and episode[0]["progress"] == 1.0
        assert sum(step["reward"] for step in episode) == pytest.approx(1.05)


@needs_sandbox
def test_scripts_rank():
    env = PythonEnv(kinds=["days_after", "recurrence", "counting"])
    means = {
        name: np.mean([roll_out(env, script, seed)[-1]["success"] for seed in range(12)])
        for name, script in env.SCRIPTS.items()
    }
    assert means["random"] < 0.2 < means["scripted"] < means["oracle"] == 1.0


def test_splits_are_disjoint_and_large():
    texts = {}
    for split in ("train", "validation"):
        env = PythonEnv(split=split, sandbox="unsafe")
        texts[split] = [env.reset(seed=seed)[0] for seed in range(300)]
        assert all(split_of(text) == split for text in texts[split]) and len(set(texts[split])) > 295
    assert not set(texts["train"]) & set(texts["validation"])


@pytest.mark.parametrize(
    "arguments",
    [
        {"split": "test"},
        {"kinds": []},
        {"kinds": "roads"},
        {"kinds": ["riddles"]},
        {"timeout": 0},
        {"memory_mb": 1},
        {"max_turns": 0},
    ],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ValueError):
        PythonEnv(**arguments)


def test_pickled_in_the_middle_it_goes_on():
    env = make()
    env.step("<python>print(42)</python>")
    copy = pickle.loads(pickle.dumps(env))
    for action in ("<python>print(1)</python>", "<answer>42</answer>"):
        assert env.step(action) == copy.step(action)


@needs_sandbox  # where the folder of a program, which stands in its errors, always has the same name
def test_vector_is_as_one_by_one():
    vector, alone = make_vector(num_envs=3), [PythonEnv() for _ in range(3)]
    observations, _ = vector.reset(seed=4)
    assert list(observations) == [env.reset(seed=4 + i)[0] for i, env in enumerate(alone)]
    for actions in (
        [f"<python>{alone[0].puzzle.program}</python>", "<python>1 +</python>", "?"],
        [f"<answer>{env.puzzle.answer}</answer>" for env in alone],
    ):
        said = vector.step(actions)
        single = [env.step(action) for env, action in zip(alone, actions, strict=True)]
        assert [list(part) for part in said[:4]] == [[one[i] for one in single] for i in range(4)]
