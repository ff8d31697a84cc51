"""Whole runs of a program: training and resuming, by all algorithms; evaluation; tasks of a file; what is refused."""

import json
import re
import shutil
from functools import partial, wraps
from types import SimpleNamespace

import chat_server
import pytest
import torch
from chat_server import calls as call_server
from safetensors.torch import load_file

from trainers import evaluate, grpo, inputs, ppo
from trainers.agents.programs import load_program
from trainers.agents.task_file import find_function
from trainers.checkpoints import checkpoint
from trainers.runtime.errors import UserError
from trainers.runtime.signals import TrainingStopped

AGENT = f"{__name__}:solve"
TASKS = [{"question": f"Say the letter {letter}.", "letter": letter, "id": letter} for letter in "abcdefgh"]


def solve(task, client):
    """Say something twice, with a search between where there is one."""
    messages = [{"role": "user", "content": task["question"]}]
    first = client.chat.completions.create(model="policy", messages=messages).choices[0].message.content or ""
    back = task.tools[0](query="town") if task.tools else "And?"
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": back}]
    said = client.chat.completions.create(model="policy", messages=messages).choices[0].message.content or "-"
    task.reward(sum(map(str.islower, first)) / 8)
    return said


def answer_alone(task, client):
    return "x"


def reward(task, result):
    return {"reward": sum(map(str.islower, result)) / 8, "metrics": {"length": len(result)}}


@pytest.fixture
def tasks(tmp_path):
    file = tmp_path / "tasks.jsonl"
    lines = [task | {"split": "validation" if place < 3 else "train"} for place, task in enumerate(TASKS)]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(file)


def test_a_program_that_never_asks_the_policy_ends_the_run(short_run):
    with pytest.raises(TrainingStopped, match="asked the policy for no turn in 6 episodes: nothing can be learned"):
        grpo.main(short_run(grpo, agent=f"{__name__}:answer_alone"))


def test_a_program_is_trained_resumed_and_recorded(short_run, tmp_path):
    out = tmp_path / "run"
    summary = grpo.main(short_run(grpo, agent=AGENT, out=out, keep_episodes=6))
    assert summary["settings"]["agent"] == AGENT
    records = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    trained = [record for record in records if record["phase"] == "training"]
    assert len(trained) == 12 and not any(record["failed"] for record in records)
    for record in trained:
        assert [turn["calls"] != [] for turn in record["turns"]] == [True, False]
        assert record["metrics"]["rows"] == 1 and record["turns"][0]["advantage"] is not None
        assert [m["role"] for m in record["messages"]] == ["user", "assistant"] * 2
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["train/edits"] == 0 and lines[-1]["train/rows"] == 1 and lines[-1]["reward/program"] > 0
    assert checkpoint.read_extra(out / "checkpoint-2")["stop"] == ["</search>", "</answer>"]  # `serve` ends turns there
    weights = load_file(out / "checkpoint-2" / "model.safetensors")
    shutil.rmtree(out / "checkpoint-2")
    again = grpo.main(short_run(grpo, agent=AGENT, resume=out, keep_episodes=6))
    assert again["em_trained"] == summary["em_trained"]
    for name, weight in load_file(out / "checkpoint-2" / "model.safetensors").items():
        assert torch.equal(weight, weights[name]), name


def test_tasks_of_a_file_are_scored_by_the_function_beside_the_agent(short_run, tasks, tmp_path):
    out = tmp_path / "run"
    args = short_run(ppo, agent=AGENT, env=tasks, env_kwargs={}, out=out, updates=1, eval_every=1)
    inputs.check_trainer(args)
    summary = ppo.main(args)
    records = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    assert summary["score"] == "score" and {r["phase"] for r in records} == {"training", "evaluation"}
    for record in records:
        said = record["messages"][-1]["content"] or "-"
        assert record["id"] in ("abc" if record["phase"] == "evaluation" else "defgh")
        assert record["score"] == pytest.approx(sum(map(str.islower, said)) / 8)
        assert record["metrics"]["length"] == len(said) and record["question"] == f"Say the letter {record['id']}."
    rows = evaluate.main(
        evaluate.Args(env=tasks, agent=AGENT, model=str(args.model), max_new_tokens=4, out=tmp_path / "evaluation")
    )
    assert [row["name"] for row in rows] == [str(args.model)] and rows[0]["episodes"] == 3
    with pytest.raises(UserError, match="for a program of yours: give --agent"):
        inputs.check_trainer(short_run(ppo, env=tasks, env_kwargs={}))


TIMES = []


def fail_in_turn(task, client):
    """Fail before any call, or answer without one, or act."""
    TIMES.append(task)
    number = (
        len(TIMES) - 1
    ) % 3  # 0 in the evaluation of one episode before the first update, which may not fail as a whole
    if number == 1:
        raise RuntimeError("not today")
    return "x" if number == 2 else solve(task, client)


@pytest.mark.parametrize("module", [grpo, ppo], ids=["grpo", "ppo"])
def test_episodes_without_a_call_are_no_rows(short_run, tasks, module, tmp_path):
    TIMES.clear()
    agent = f"{__name__}:fail_in_turn"
    args = short_run(
        module, agent=agent, env=tasks, env_kwargs={}, out=tmp_path / "run", updates=1, eval_every=9, keep_episodes=6
    )
    module.main(args)
    lines = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    trained = [record for record in map(json.loads, lines) if record["phase"] == "training"]
    assert {len(record["turns"]) for record in trained} == {0, 2}
    failed = [record["messages"][-1]["content"] for record in trained if record["failed"]]
    assert failed and all("RuntimeError: not today" in content for content in failed)


def fail_mostly(task, client):
    """Fail in three of four episodes of the training."""
    if task["letter"] not in "abc":
        TIMES.append(task)
        if len(TIMES) % 4 != 1:
            raise RuntimeError(f"not today, {len(TIMES)}")
    return solve(task, client)


def test_a_program_that_mostly_fails_is_no_outage_of_tools(short_run, tasks, tmp_path, capsys):
    """The batch is not rolled out again: what is left of it is learned from."""
    TIMES.clear()
    options = {
        "agent": f"{__name__}:fail_mostly",
        "env": tasks,
        "env_kwargs": {},
        "out": tmp_path / "run",
        "updates": 1,
    }
    grpo.main(short_run(grpo, **options, eval_every=9, keep_episodes=6))
    lines = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    failed = [record["failed"] for record in map(json.loads, lines) if record["phase"] == "training"]
    assert sum(failed) / len(failed) > 0.5
    said = capsys.readouterr()
    assert "rolled out again" not in said.err + said.out and "by a tool or the program" in said.err + said.out


def fail_at_a(task, client):
    if task["letter"] == "a":
        raise RuntimeError("no such letter")
    return solve(task, client)


@pytest.mark.parametrize("num_envs", [3, 2])
def test_a_question_at_which_the_program_always_fails_ends_nothing(short_run, tasks, tmp_path, num_envs):
    """Whether or not it is alone in a batch."""
    agent = f"{__name__}:fail_at_a"
    args = short_run(grpo, agent=agent, env=tasks, env_kwargs={}, out=tmp_path / "run", updates=1, final_questions=3)
    grpo.main(args)
    options = {"agent": agent, "model": str(args.model), "max_new_tokens": 4, "num_envs": num_envs, "max_failed": 1}
    (row,) = evaluate.main(evaluate.Args(env=tasks, out=tmp_path / "evaluation", **options))
    assert row["episodes"] == 3 and row["failed"] == pytest.approx(1 / 3)


CALLED = []


class Solver:
    async def __call__(self, task, client):
        CALLED.append(client)


async def keep_client(task, client):
    CALLED.append(client)


@wraps(keep_client)
def wrapped(*arguments):
    return keep_client(*arguments)


solver, half_done, elsewhere, built_in = Solver(), partial(keep_client), partial(call_server, "x"), print


@pytest.mark.parametrize("name", ["solver", "half_done", "wrapped", "keep_client"])
def test_what_can_be_called_is_a_program(name):
    program = load_program(f"{__name__}:{name}")
    assert program.files == [__file__] and program.reward is reward
    program.run(SimpleNamespace(base_url="http://127.0.0.1:9/v1", api_key="x"))
    assert type(CALLED.pop()).__name__ == "AsyncOpenAI"


def test_a_module_called_reward_is_no_reward(tmp_path, monkeypatch):
    package = tmp_path / "pack_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("from pack_of_mine.agent import solve")
    (package / "agent.py").write_text("from pack_of_mine.reward import reward\ndef solve(task): return 1")
    (package / "reward.py").write_text("def reward(task, result): return 1.0")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_program("pack_of_mine:solve").reward({}, 1) == 1.0


def test_a_program_is_the_file_that_names_it_and_that_of_its_function():
    program = load_program(f"{__name__}:elsewhere")
    assert program.files == [__file__, chat_server.__file__] and program.reward is reward
    with pytest.raises(UserError, match="built_in is no function of a Python file"):
        load_program(f"{__name__}:built_in")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"question": "a"}\n[1]\n', "line 2: a task is a JSON object, got '[1]'"),
        ('{"question": \n', "line 1: no JSON"),
        ('{"question": "a", "split": "test"}\n', "split must be 'train' or 'validation', got 'test'"),
        ('{"question": "a", "split": "train"}\n', "has no task to hold out"),
        ('\ufeff{"question": "a\u2028b", "split": "train"}\r\n', "has no task to hold out"),
        (b"\xff\xfea", "tasks.jsonl is no text in UTF-8"),
        (None, "there is no file"),
    ],
)
def test_what_is_no_file_of_tasks_is_named(short_run, tmp_path, content, said):
    file = tmp_path / "tasks.jsonl"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=re.escape(said)):
        inputs.check_trainer(short_run(grpo, agent=AGENT, env=str(file), env_kwargs={}))


def test_a_program_that_imports_what_is_not_there_is_told_from_one_that_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "imports_more.py").write_text("import not_to_be_found")
    with pytest.raises(UserError, match="imports_more:solve cannot be imported: No module named 'not_to_be_found'"):
        find_function("imports_more:solve")
    with pytest.raises(UserError, match="there is no function 'imports_nothing:solve'"):
        find_function("imports_nothing:solve")
