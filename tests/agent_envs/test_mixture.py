"""Several tasks as one environment."""

import warnings

import gymnasium
import numpy as np
import pytest

from agent_envs.tasks.mixture import MixtureEnv
from agent_envs.utils.describe import page
from agent_envs.utils.scripts import roll_out
from agent_envs.vector import ToolVectorEnv

TASKS = {"AgentR1/Sokoban-v0": 1, "AgentR1/Bandit-v0": {"weight": 3, "kwargs": {"split": "validation"}}}


def test_tasks_come_by_weight():
    env = MixtureEnv(TASKS)
    played = [roll_out(env, env.SCRIPTS["oracle"], seed)[-1] for seed in range(200)]
    assert sum(last["task"] == "AgentR1/Bandit-v0" for last in played) == pytest.approx(150, abs=20)
    assert {last["score"] for last in played if last["task"] == "AgentR1/Sokoban-v0"} == {1.0}


def test_an_episode_is_that_of_the_task():
    env = MixtureEnv(TASKS, max_tokens=500)
    env.count_tokens = len
    observation, info = env.reset(seed=3, options={"task": "AgentR1/Sokoban-v0"})
    assert info["task"] == "AgentR1/Sokoban-v0" and "Actions left" in observation
    assert set(env.tools) == {"move"} and env.reward == env.current.reward
    *_, info = env.step("<answer>Up</answer>")
    assert set(info["reward_terms"]) == {"box", "solved", "move", "invalid"} and info["task"] == "AgentR1/Sokoban-v0"
    for id, task in env.tasks.items():
        env.reset(seed=0, options={"task": id})
        assert env.active_env is task and task.active_env is task
        assert "tokens" in env.step("x")[4]  # which are counted in every task
    env = MixtureEnv({"AgentR1/Bandit-v0": 1, "AgentR1/MiniWiki-Easy-v0": 1})
    assert set(env.stop) == {"</answer>", "</search>"}  # of all tasks


def test_a_group_meets_the_same_instance_with_luck_of_its_own():
    envs = ToolVectorEnv(lambda: MixtureEnv({"AgentR1/Bandit-v0": 1, "AgentR1/Sokoban-v0": 1}), 64)
    asked = {"task": ["AgentR1/Bandit-v0"] * 64, "noise_seed": list(range(64))}
    assert len(set(envs.reset(seed=[4] * 64, options=asked)[0])) == 1
    arm = envs.envs[0].format.write(next(envs.envs[0].SCRIPTS["oracle"](envs.envs[0], None)))
    assert len(np.unique(envs.step([arm] * 64)[1])) == 2


def test_a_refused_reset_leaves_no_half_begun_episode():
    env = MixtureEnv(TASKS)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="task must be one of"):
        env.reset(options={"task": "nope"})
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("<answer>Up</answer>")


@pytest.mark.parametrize("seed", ["a", 1.5, -1])
def test_a_seed_is_a_number(seed):
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got "):
        MixtureEnv(TASKS).reset(seed=seed)


def test_a_caller_limits_the_episode_at_hand():
    env = MixtureEnv({"AgentR1/MiniWiki-Easy-v0": 1, "AgentR1/Countdown-v0": 1}, max_turns=4)
    for seed in range(6):
        env.reset(seed=seed)
        assert not env.step("x")[3]
        env.fits = lambda observation, context: False
        assert env.step("x")[3]
    assert len({env.reset(seed=seed)[1]["task"] for seed in range(6)}) == 2


@pytest.mark.parametrize(
    "tasks", [{}, {"AgentR1/Bandit-v0": 0}, {"AgentR1/Bandit-v0": "1"}, {"AgentR1/Bandit-v0": {"w": 1}}]
)
def test_bad_weights_are_refused(tasks):
    with pytest.raises(ValueError, match=r"weight|at least one"):
        MixtureEnv(tasks)


def test_a_mixture_of_questions_has_all_of_them_each_once():
    kwargs = {"entities": 100, "questions": 12}
    gymnasium.register("Test/Other-v0", entry_point="agent_envs.tasks.qa:QAEnv")
    try:
        env = MixtureEnv({"AgentR1/MiniWiki-Easy-v0": 5, "Test/Other-v0": {"kwargs": {"questions": 4}}}, **kwargs)
    finally:
        del gymnasium.registry["Test/Other-v0"]
    assert len({question.id for question in env.questions}) == len(env.questions) == 16  # some have one id in both
    met = []
    for number, question in enumerate(env.questions):
        observation, info = env.reset(options={"question": number})
        assert observation == question.question and question.id == f"{info['task']}: {info['question_id']}"
        met.append(info["task"])
    assert [met[:n].count("Test/Other-v0") for n in (4, 8, 12, 16)] == [1, 2, 3, 4]  # in the shares of the whole
    assert env.reset(options={"task": "Test/Other-v0", "question": 3})[0] == env.current.questions[3].question
    for wrong in (16, "a", 1.5, True):
        with pytest.raises(ValueError, match=rf"question must be an integer in 0..15, got {wrong!r}"):
            env.reset(options={"question": wrong})
    assert {"reader", "oracle", "constant"} <= set(env.SCRIPTS)
    assert MixtureEnv(TASKS).questions is None and "reader" not in MixtureEnv(TASKS).SCRIPTS


def test_the_source_of_a_mixture_names_that_of_each_task():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no HotpotQA here
        env = MixtureEnv({"AgentR1/Calculator-v0": 3, "AgentR1/HotpotQA-v0": 1})
    sources = "AgentR1/Calculator-v0: generated; AgentR1/HotpotQA-v0: STAND-IN for hotpotqa"
    assert env.describe_source().startswith(sources)
    assert MixtureEnv({"AgentR1/Bandit-v0": 1, "AgentR1/Countdown-v0": 1}).describe_source() == "generated"


def test_what_is_said_of_a_mixture_is_so_of_its_task():
    env = MixtureEnv({"AgentR1/Sokoban-v0": 1})
    task = env.active_env
    for name in ("answers", "instructions", "max_calls", "max_total_calls", "max_tokens", "system_prompt"):
        assert getattr(env, name) == getattr(task, name)
    described = page("AgentR1/Mixture-v0", {"tasks": {"AgentR1/Sokoban-v0": 1}})
    assert "<answer>text</answer>" not in described and "1 calls a turn" in described


def test_a_format_of_a_task_of_its_own_stays():
    """A model with function calls gets those in the others alone."""
    env = MixtureEnv({"AgentR1/MiniWiki-Easy-v0": {"kwargs": {"format": "react"}}, "AgentR1/Calculator-v0": 1})
    for name, others in (("native", "native"), (None, "tags")):
        env.use_format(name)
        assert [format.name for format in env.formats] == ["react", others]


def test_a_mixture_rewrites_the_context_where_a_task_does():
    """So that a trainer of one sequence an episode refuses it."""
    easy = "AgentR1/MiniWiki-Easy-v0"
    rewriting = MixtureEnv({easy: {"kwargs": {"context": "window:1"}}, "AgentR1/Bandit-v0": 1})
    assert rewriting.context is not None and MixtureEnv(TASKS).context is None
