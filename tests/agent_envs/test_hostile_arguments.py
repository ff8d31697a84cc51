"""An agent cannot void its own episode: whatever it gives to a tool, what goes wrong is its own mistake."""

import os
import random

import gymnasium
import pytest
from broken_envs import Digit, Echo

from agent_envs.__main__ import _play
from agent_envs.sandbox.runner import MAX_CODE
from agent_envs.tasks.python import PythonTool
from agent_envs.tools import FunctionTool, ReadTool, SearchTool, run_calls
from agent_envs.types import ToolCall, ToolResult
from agent_envs.utils.checker import CheckFailed, check_agent_env
from agent_envs.utils.fuzz import make_hostile_arguments
from retrieval_index import Passage, build

SEED = int(os.environ.get("ATTACK_SEED", "0"))


def one(tool, **arguments) -> ToolResult:
    return run_calls([({tool.name: tool}, ToolCall(tool.name, arguments))])[0]


def assert_no_fault(tools, name: str, arguments: dict) -> None:
    (result,) = run_calls([(tools, ToolCall(name, arguments))])
    assert not result.fault, f"{name}({repr(arguments)[:200]}): {result.text[:200]}"
    result.text.encode("utf-8", "replace")


class Strict:
    """A searcher that refuses what a server over HTTP does: text that is no Unicode, long queries, many passages."""

    def __init__(self, most: int = 50):
        self.index = build([Passage("1", "Rome", "Rome is a town.")])
        self.most = most

    def search(self, queries, k):
        for query in queries:
            query.encode()
        if k > self.most or any(len(query) > 300 for query in queries):
            raise ValueError("rejected with status 422")
        return self.index.search(queries, k)


@pytest.mark.parametrize("tool", [SearchTool(Strict()), ReadTool(Strict())])
def test_what_a_server_refuses_of_an_agent_is_the_agents_mistake(tool):
    (name,) = tool.parameters["properties"]
    rng = random.Random(SEED)
    for _ in range(200):
        assert_no_fault({tool.name: tool}, tool.name, make_hostile_arguments(rng, tool.parameters))
    refused = one(tool, **{name: "Rome " * 70})
    assert not refused.ok and not refused.fault and "422" in refused.text
    assert one(tool, **{name: "Rome \ud800"}).ok
    spared = run_calls([({tool.name: tool}, ToolCall(tool.name, {name: text})) for text in ("Rome", "Rome " * 70)])
    assert [result.ok for result in spared] == [True, False] and not any(result.fault for result in spared)


def test_what_a_server_refuses_of_everybody_is_a_fault():
    assert one(SearchTool(Strict(most=2)), query="Rome").fault
    assert one(SearchTool(Strict(most=2)), query="Rome " * 70).fault


@pytest.mark.parametrize("backend", ["auto", "unsafe"])
def test_no_program_is_a_fault_of_the_sandbox(backend):
    if backend == "auto":
        env = gymnasium.make("AgentR1/Python-v0").unwrapped
        try:
            env.reset(seed=SEED)
        except RuntimeError as error:
            pytest.skip(str(error))
    tool = PythonTool(backend, timeout=0.5)
    kill = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    long = "#" * (MAX_CODE + 1)
    for code in (kill, long, "\x00", "\ud800", "print('\ud800')", "(" * 5000, "x = [0] * 10**12", "9**9**9"):
        assert_no_fault({"python": tool}, "python", {"code": code})
    tool = PythonTool(backend)
    spared = run_calls([({"python": tool}, ToolCall("python", {"code": code})) for code in ("print(1)", long)])
    assert spared[0].text == "1" and f"{MAX_CODE:,} characters" in spared[1].text and not spared[1].fault


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**400, -(10**400), 1e308])
def test_numbers_that_break_a_check_do_not_break_the_turn(number):
    tool = Echo()
    tool.parameters = {"type": "object", "properties": {"text": {"type": "number", "multipleOf": 0.01}}}
    tool.execute_batch = lambda arguments: [ToolResult("fine") for _ in arguments]
    assert_no_fault({"echo": tool}, "echo", {"text": number})


def look(text: str) -> str:
    """looks."""
    return {"a": "b"}[text]


def test_the_checker_finds_tools_that_an_agent_can_break():
    with pytest.raises(CheckFailed, match=r"look\('text': .*is reported as a fault of the tool"):
        check_agent_env(Digit(FunctionTool(look)), steps=10)


def test_what_tools_say_cannot_steer_a_terminal(capsys, monkeypatch):
    said = "\x1b[2J\x00\u202e\x9b"
    env = Digit(render_mode="ansi")
    env.reset(seed=0)
    observation, *_ = env.step(f"<echo>{said}</echo>")
    assert said in observation  # the agent reads what came back
    assert r"\x1b[2J\x00\u202e\x9b" in env.render() and not set(said) & set(env.render()) - set("[2J")
    turns = iter([f"<echo>{said}</echo>", "<answer>1</answer>"])
    monkeypatch.setattr("builtins.input", lambda _: next(turns))
    env.spec = gymnasium.spec("AgentR1/MiniWiki-Easy-v0")
    _play(env, 0, None)
    assert not set(said) & set(capsys.readouterr().out) - set("[2J")
