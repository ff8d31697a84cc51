"""Names of the last release raise an error that says the new one."""

import copy
import importlib
from types import SimpleNamespace

import gymnasium
import pytest

from agent_envs.tool_env import ToolEnv
from agent_envs.tools import FunctionTool, SearchTool
from agent_envs.types import ToolResult, Turn, TurnContext


@pytest.mark.parametrize(
    ("old", "new"), [("judge", "evaluate_turn"), ("SCORE", "PRIMARY_METRIC"), ("LUCK", "TAKES_NOISE_SEED")]
)
def test_a_task_that_defines_an_old_name(old, new):
    with pytest.raises(TypeError, match=f"Task: {old} is now called {new}"):
        type("Task", (ToolEnv,), {old: None})


@pytest.mark.parametrize(("old", "new"), [("lane", "batch_key"), ("waits", "io_bound")])
def test_a_tool_with_an_old_attribute(old, new):
    class Ping:
        name, description, parameters = "ping", "pings.", {"type": "object", "properties": {}}

        def execute(self, arguments):
            return ToolResult("pong")

        def execute_batch(self, arguments):
            return [self.execute(one) for one in arguments]

    ToolEnv([Ping()])
    setattr(Ping, old, True)
    with pytest.raises(TypeError, match=f"the tool 'ping': {old} is now called {new}"):
        ToolEnv([Ping()])


def test_a_searcher_with_an_old_attribute():
    searcher = SimpleNamespace(search=lambda queries, k: [[] for _ in queries], waits=True)
    with pytest.raises(TypeError, match="the tool 'search': waits is now called io_bound"):
        ToolEnv([SearchTool(searcher)])


@pytest.mark.parametrize(
    ("old", "new"), [("facts", "metrics"), ("before", "previous_metrics"), ("past", "previous_turns")]
)
def test_a_reward_term_that_reads_an_old_name(old, new):
    context = TurnContext(Turn(), {}, {}, False, 1, [], False, False)
    with pytest.raises(AttributeError, match=f"TurnContext.{old} is now called {new}"):
        getattr(context, old)
    assert copy.deepcopy(context) == context


def test_the_old_argument_of_a_function_tool():
    with pytest.raises(TypeError, match="lane is now called batch_key"):
        FunctionTool(print, lane="till")


@pytest.mark.parametrize("id", ["AgentR1/Bandit-v0", "AgentR1/FrozenLake-v0", "AgentR1/Mixture-v0"])
def test_the_old_reset_option(id):
    kwargs = {"tasks": {"AgentR1/Bandit-v0": 1}} if "Mixture" in id else {}
    with pytest.raises(ValueError, match="'luck' is now called 'noise_seed'"):
        gymnasium.make(id, **kwargs).reset(seed=0, options={"luck": 1})


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [("types", "Verdict", "TurnOutcome"), ("types", "Moment", "TurnContext"), ("rewards", "Fact", "Metric"),
     ("vector", "vectorized", "vector_entry_point"), ("tasks.qa_scripts", "hasty", "early_stopping")],
)  # fmt: skip
def test_what_modules_no_longer_have(module, old, new):
    with pytest.raises(ImportError, match=f"{old} is now called {new}"):
        exec(f"from agent_envs.{module} import {old}")
    assert not hasattr(importlib.import_module(f"agent_envs.{module}"), "nonsense")
