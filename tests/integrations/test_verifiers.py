"""verifiers: ``vf-eval`` with our taskset, against a server that stands in for a model."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import pytest
from stub_model import stand_in

pytest.importorskip("verifiers.v1", reason="pip install verifiers", exc_type=ImportError)
from verifiers.v1.cli.eval.main import main

from agent_envs.integrations import Episode
from agent_envs.integrations import verifiers as plugged

pytestmark = pytest.mark.plug
MINIWIKI, SMALL = "AgentR1/MiniWiki-v0", {"entities": 100, "questions": 20, "max_turns": 3}
TEXT = ["<search>a town</search>", "hm", "<answer>no idea</answer>"]
OWN = """
import gymnasium
from agent_envs.tasks.calculator import CalculatorEnv

class Closing(CalculatorEnv):
    def close(self):
        with open("closed", "a") as file:
            file.write("x")

gymnasium.register("Mine/Closing-v0", Closing)
"""
EXAMPLE = Path(__file__).parents[2] / "examples" / "plug" / "verifiers.toml"


@pytest.fixture
def model():
    yield from stand_in()


@pytest.fixture
def evaluate(model, tmp_path, monkeypatch):
    """Runs vf-eval; returns the traces in the order of their questions."""
    monkeypatch.chdir(tmp_path)

    def evaluate(script, *options, kwargs=SMALL, n=2):
        model.script, name = script, str(len(list(tmp_path.glob("outputs/*"))))
        where = [] if options[:1] == ("@",) else ["agent-r1-envs", "--env.taskset.kwargs", json.dumps(kwargs)]
        run = ["--no-push", "--no-rich", "-m", "stub", "--client.base-url", model.url, "--run.name", name, "-n", str(n)]
        main([*where, *options, *run])
        lines = (tmp_path / "outputs" / name / "traces.jsonl").read_text().splitlines()
        traces = [trace for line in lines for trace in json.loads(line)["traces"]]
        return sorted(traces, key=lambda trace: trace["task"]["data"]["seed"])

    return evaluate


def said_by(model, question):
    """The last conversation that began with this question, as the model was sent it."""
    return [request["messages"] for request in model.heard if request["messages"][1]["content"] == question][-1]


def test_text_turns_read_and_earn_what_the_environment_gives(evaluate, model):
    traces = evaluate(TEXT, n=3)
    assert len(traces) == 3 and all(set(request) >= {"model", "messages"} for request in model.heard)
    for seed, trace in enumerate(traces):
        env = gymnasium.make(MINIWIKI, **SMALL).unwrapped
        question, info = env.reset(seed=seed)
        conversation = [{"role": "system", "content": info["instructions"]}, {"role": "user", "content": question}]
        rewards = []
        for turn in TEXT:
            observation, reward, terminated, _, info = env.step(turn)
            rewards.append(reward)
            if not terminated:
                conversation.append({"role": "assistant", "content": turn})
                conversation.append({"role": "user", "content": observation})
        assert said_by(model, question) == conversation
        assert trace["info"]["turn_rewards"] == rewards and trace["ok"]
        assert [trace["metrics"][f"turn_reward/{i}"] for i in range(3)] == pytest.approx(rewards)
        assert trace["rewards"]["episode_return"]["score"] == pytest.approx(sum(rewards))
        assert trace["metrics"]["em"] == trace["metrics"]["score"] == float(info["em"])
        hidden = [name for name in trace["metrics"] if "/" in name] + ["support_recall", "golds", "tool_faults"]
        assert not [name for name in hidden if name in json.dumps(conversation)]


def test_a_turn_in_text_ends_as_our_samplers_end_it_whatever_the_api_makes_of_stop_strings(evaluate, model):
    goes_on = TEXT[0] + "<information>mine</information><answer>x</answer>"
    (trace,) = evaluate([goes_on, "<search>a place", "<answer>no idea</answer> and more"], n=1)
    env = gymnasium.make(MINIWIKI, **SMALL).unwrapped
    env.reset(seed=0)
    taken = [TEXT[0], "<search>a place</search>", TEXT[2]]
    assert trace["info"]["turn_rewards"] == [env.step(turn)[1] for turn in taken] and trace["metrics"]["turns"] == 3
    heard = [message["content"] for message in model.heard[-1]["messages"] if message["role"] == "assistant"]
    assert heard == taken[:2]


def test_a_turn_that_its_length_cut_is_no_action(evaluate, model):
    model.finish_reason = "length"
    (trace,) = evaluate(["<answer>no idea"] * 3, n=1)
    assert trace["metrics"]["cut"] and trace["metrics"]["score"] == 0


SEARCH = ("search", '{"query": "a town"}')
NATIVE = [
    [[SEARCH, ("search", '{"query": "x"}')], [("answer", '{"text": "no idea"}')]],
    [[SEARCH, ("search", "{broken")], "just text", [("search", "[1]")]],
]


@pytest.mark.parametrize("script", NATIVE)
def test_function_calls_are_turns_of_the_environment(evaluate, model, script):
    traces = evaluate(script, "--env.taskset.native")
    for seed, trace in enumerate(traces):
        episode = Episode(MINIWIKI, native=True, **SMALL)
        opening = episode.start(seed)
        replies = [episode.call(readable(turn)) for turn in script]
        assert trace["info"]["turn_rewards"] == [reply.reward for reply in replies] and trace["ok"]
        assert trace["metrics"]["score"] == replies[-1].metrics["score"]
        heard = said_by(model, opening[1]["content"])
        assert heard[:2] == opening and heard[2]["tool_calls"][0]["function"]["name"] == "search"
        results = [message["content"] for message in heard[3:] if message["role"] == "tool"]
        if readable(script[0]):
            assert results == list(replies[0].results)
        else:
            assert len(results) == 2 and all("of a function must be a JSON object" in result for result in results)
        assert [message["role"] for message in heard[3:5]] == ["tool", "tool"]
    assert {tool["function"]["name"] for tool in model.heard[0]["tools"]} == {"search", "answer"}


def readable(turn):
    """The calls of a turn, or none where one of them cannot be read."""
    try:
        calls = [(name, json.loads(arguments)) for name, arguments in turn]
        return calls if all(isinstance(arguments, dict) for _, arguments in calls) else []
    except (ValueError, TypeError):
        return []


def test_an_environment_of_your_own_is_imported_and_closed(evaluate, tmp_path, monkeypatch):
    (tmp_path / "own_verifiers_env.py").write_text(OWN)
    traces = evaluate(TEXT, "--env.taskset.env", "own_verifiers_env:Mine/Closing-v0", kwargs={})
    assert all(trace["ok"] for trace in traces)
    assert len((tmp_path / "closed").read_text()) == 2


def test_an_episode_that_a_limit_ends_has_reached_nothing(evaluate):
    env = gymnasium.make(MINIWIKI, **SMALL).unwrapped
    env.reset(seed=0)
    searches = [f"<search>{title}</search>" for title in env.question.supporting_titles[:2]]
    (trace,) = evaluate([*searches, TEXT[-1]], "--env.agent.max-turns", "2", n=1)
    assert trace["stop_condition"] == "max_turns" and trace["ok"]
    earned = trace["info"]["turn_rewards"]
    assert len(earned) == 3 and earned[0] > 0 and trace["metrics"]["score"] == 0
    assert trace["rewards"]["episode_return"]["score"] == pytest.approx(0)


def test_an_episode_in_which_a_tool_breaks_is_an_error(evaluate, monkeypatch):
    def take(episode, said, cut):
        reply = episode.step("hm")
        return replace(reply, metrics={**reply.metrics, "tool_faults": 1.0}), []

    monkeypatch.setattr(plugged, "take_message", take)
    (trace,) = evaluate(TEXT, n=1)
    assert not trace["ok"] and "a tool failed" in trace["errors"][-1]["message"]


def test_the_example_runs(evaluate, model):
    evaluate(["<answer>x</answer>"], "@", str(EXAMPLE), "-r", "1", n=1)
    env = gymnasium.make(MINIWIKI, split="validation").unwrapped
    assert model.heard[0]["messages"][1]["content"] == env.reset(seed=0)[0]
    assert tuple(model.heard[0]["stop"]) == env.stop


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--env.taskset.env", "Nope"], "Nope"),
        (["--env.taskset.native", "--env.taskset.kwargs", '{"context": "window:1"}'], "leave context at 'append'"),
        (["--env.taskset.nope", "1"], ""),
    ],
)
def test_what_cannot_be_evaluated_is_refused(options, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((SystemExit, ValueError)) as stopped:
        main(["agent-r1-envs", *options, "-n", "1", "--no-push", "--no-rich"])
    assert message in str(stopped.value) + capsys.readouterr().err


def test_rewards_of_another_harness_are_refused():
    task = plugged.AgentR1Task(plugged.AgentR1Data(env=MINIWIKI, kwargs={}, native=False, seed=0))
    with pytest.raises(ValueError, match=r"leave out --env\.agent\.harness\.id"):
        asyncio.run(task.episode_return(SimpleNamespace(info={})))
