"""Agents of other frameworks over the endpoint: what was sampled is trained, in one row if it is sent back as it was."""

import json

import pytest
from chat_templates import end_ids, make_tokenizer

from agent_envs.chat_tokens import ChatTokens
from agent_envs.formats.dialects import to_tool_call
from agent_envs.formats.json_text import function_schema
from tests.test_examples import SAID, load, no_fsync, no_trace, save_picture, small_cold_start
from trainers.engines.engine import Completion
from trainers.factory import make_envs
from trainers.rollouts.agent_rollout import AgentRollout

__all__ = ["no_fsync", "no_trace", "save_picture", "small_cold_start"]
pytestmark = pytest.mark.plug
WORLD = json.dumps({"entities": 60, "questions": 20})
PACKAGES = {"agents_sdk": "agents", "langgraph_agent": "langgraph"}


class Script:
    """An engine that says a search, and where the prompt has it an answer: as text, or by a function."""

    max_length = 10_000

    def __init__(self, policy, tool, by_function):
        call, answer = (
            to_tool_call("search", {"query": "a town"}, "x"),
            to_tool_call("final_answer", {"answer": "Zug"}, "y"),
        )
        end = {"role": "assistant", "content": "" if by_function else "Zug", "tool_calls": [answer] * by_function}
        asked = [{"role": "assistant", "content": "", "tool_calls": [call]}, end]
        self.policy, self.turns, self.done = policy, [policy.turn_ids(message, [tool]) for message in asked], {}

    def reset(self):
        pass

    def submit(self, prompts, params, seeds=None):
        for number, prompt in prompts.items():
            ids = self.turns["a town" in self.policy.decode(prompt)]
            self.done[number] = Completion(tokens=ids, logprobs=[-1.0] * len(ids), finish_reason="stop")

    def wait(self):
        done, self.done = self.done, {}
        return done


def solve_with_smolagents(task):
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def search(query: str) -> str:
        """Search.

        Args:
            query: what for
        """
        return task.tools[0](query=query)

    model = OpenAIServerModel("policy", api_base=task.base_url, api_key=task.api_key)
    return ToolCallingAgent(tools=[search], model=model, max_steps=2).run(task["question"])


@pytest.mark.parametrize("name", [*PACKAGES, "smolagents"])
def test_what_was_sampled_is_trained(name):
    pytest.importorskip(PACKAGES.get(name, name))
    policy = ChatTokens(make_tokenizer("hermes"), end_ids("hermes"))
    envs = make_envs("AgentR1/MiniWiki-Easy-v0", WORLD, "train", 2)
    engine = Script(policy, function_schema(envs.envs[0].tools["search"]), name == "smolagents")
    agent = f"{__name__}:solve_with_smolagents" if name == "smolagents" else f"{load(name).__name__}:solve"
    roll_out = AgentRollout(agent, timeout=30)
    try:
        episodes = roll_out(envs, policy, engine, questions=[0, 1])
    finally:
        roll_out.close()
    for episode in episodes:
        assert not episode.failed, episode.messages[-1]
        assert episode.info["prediction"] == "Zug" and episode.info["calls"] == 1
        first, second = episode.steps
        assert [first.tokens, second.tokens] == engine.turns
        rewrites = int(name == "smolagents")  # it sends calls back as text
        assert (len(episode.rows), episode.info["rows"], episode.info["edits"]) == (
            1 + rewrites,
            1 + rewrites,
            rewrites,
        )
        assert rewrites or second.prompt[: len(first.prompt) + len(first.tokens)] == first.prompt + first.tokens


@pytest.mark.parametrize("name", PACKAGES)
def test_the_example_runs(name, no_trace, tmp_path, capfd):
    pytest.importorskip(PACKAGES[name])
    load(name).main(out=str(tmp_path / "run"), quick=True)
    said = capfd.readouterr().out
    assert [phrase for phrase in SAID[name] if phrase not in said] == [], said
