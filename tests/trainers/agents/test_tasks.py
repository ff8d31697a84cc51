"""What an episode takes from its program: finite rewards, results of the right kind, and nothing after its end."""

import json
import threading
import time

import pytest

from agent_envs.tasks.mixture import MixtureEnv
from agent_envs.tools import Tool
from agent_envs.types import ToolResult
from agent_envs.utils.scripts import EpisodeRecorder, is_drawn, sample_instances
from trainers.agents.calls import CallLog
from trainers.agents.programs import run_program
from trainers.agents.task_file import TaskEnv
from trainers.agents.tasks import Episode, Task
from trainers.trajectory import Trajectory

EASY = "AgentR1/MiniWiki-Easy-v0"


class Program:
    """``solve`` as a program."""

    def __init__(self, solve, reward=None):
        self.run, self.reward = solve, reward


class Hangs(Tool):
    name, description, parameters = "hangs", "Hangs.", {"type": "object", "properties": {}, "required": []}
    io_bound = True
    is_called, goes_on = threading.Event(), threading.Event()

    def execute_batch(self, arguments):
        self.is_called.set()
        self.goes_on.wait(10)
        return [ToolResult("late")]


class UnspeakableError(Exception):
    def __str__(self):
        return None


def raise_unspeakable():
    raise UnspeakableError


@pytest.fixture
def begin(tmp_path):
    def make():
        (tmp_path / "tasks.jsonl").write_text(json.dumps({"question": "x", "split": "train", "messages": ["first"]}))
        env = TaskEnv(str(tmp_path / "tasks.jsonl"))
        assert env.stop == (), "a program reads whole turns"
        env.tools["hangs"], env.max_turns = Hangs(), 3
        _, info = env.reset(seed=0)
        episode = Episode(0, env, EpisodeRecorder(env, info), CallLog(Trajectory()))
        return Task(episode, "", ""), episode

    return make


@pytest.mark.parametrize(
    ("solve", "reward", "said"),
    [
        (lambda task: task.reward(float("nan")), None, "a reward must be a finite number, got nan"),
        (lambda task: {"reward": float("inf")}, None, "reward must be a finite number, got inf"),
        (lambda task: {"reward": 1, "metrics": {"length": "x"}}, None, "length must be a finite number, got 'x'"),
        (lambda task: {"reward": 1, "metrics": {"turns": 2}}, None, "rename the metrics ['turns']"),
        (lambda task: "x", lambda task, result: None, "reward must be a finite number, got None"),
        (lambda task: "x", None, "nothing scores 'x': return {'reward': …}, or define reward(task, result)"),
        (lambda task: task.tools[0](), None, "IndexError"),
        (lambda task: raise_unspeakable(), None, "Unspeakable"),
    ],
)
def test_a_result_that_is_none_fails_the_episode(begin, solve, reward, said):
    task, episode = begin()
    task.tools.clear()
    run_program(Program(solve, reward), task, episode)
    told = episode.trajectory.messages[-1]["content"]
    assert episode.ended and episode.trajectory.failed and said in told.splitlines()[-1]


def test_a_task_is_a_mapping(begin, monkeypatch):
    monkeypatch.setattr(Hangs, "execute_batch", lambda self, arguments: [ToolResult("soon")])
    task, episode = begin()
    assert task.get("hint", 3) == 3 and "question" in task and dict(task)["question"] == "x" and len(task) == 4
    assert sample_instances(episode.env, 0) == [0] and not is_drawn(episode.env), "lines may be ordered by kind"
    assert task.tools[0]() == "soon" and time.monotonic() - episode.since < 60, "a call of a tool is a sign of life"


def test_a_tool_takes_no_more_arguments_than_it_has(begin):
    task, _ = begin()
    with pytest.raises(TypeError, match="hangs takes 0 arguments, got 1"):
        task.tools[0]("x")


def test_a_call_beyond_the_calls_of_the_episode_is_not_made(begin, monkeypatch):
    monkeypatch.setattr(Hangs, "execute_batch", lambda self, arguments: [ToolResult("soon")])
    task, episode = begin()
    episode.env.max_total_calls = 1
    said = [task.tools[0](self=number) for number in range(2)]  # policies name arguments as they like
    assert said == ["soon", "No call is left: give the answer."]
    assert len(episode.env.history.calls) == 1


def test_the_last_turn_is_kept_for_the_answer_of_a_mixtures_current_task():
    env = MixtureEnv({EASY: {"kwargs": {"max_turns": 2}}, "AgentR1/Calculator-v0": {"kwargs": {"max_turns": 8}}})
    _, info = env.reset(seed=0, options={"task": EASY})
    task = Task(Episode(0, env, EpisodeRecorder(env, info), CallLog(Trajectory())), "", "")
    assert [task.tools[0]("x") == "No call is left: give the answer." for _ in range(2)] == [False, True]


def test_what_a_program_does_to_its_task_stays_there(begin):
    task, episode = begin()
    task["messages"].append("more")
    assert task.described()["messages"] == ["first", "more"] and task.described()["tools"] == [task.tools[0].schema]
    episode.env.reset(seed=0)
    assert episode.env.task["messages"] == ["first"]


def test_a_tool_that_hangs_does_not_act_in_the_next_episode(begin):
    task, episode = begin()
    said = []
    thread = threading.Thread(target=lambda: said.append(task.tools[0]()))
    thread.start()
    Hangs.is_called.wait(10)
    episode.session.refused = "too many calls"  # which the program had handled
    episode.fail("TimeoutError")
    assert episode.trajectory.failed
    episode.env.reset(seed=0)
    Hangs.goes_on.set()
    thread.join()
    assert said == ["The episode has ended."] and not episode.env.history.turns
