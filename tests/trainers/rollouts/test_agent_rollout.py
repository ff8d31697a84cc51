"""Programs as agents: their episodes are those of the policy itself; who fails, fails alone; a seed gives one result."""

import itertools
import json
import random
import re
import sys
import threading
import time
import warnings
from types import SimpleNamespace

import openai
import pytest
import torch

from benchmarks.training.agents import SeededEngine
from examples import openai_agent
from trainers.agents import programs
from trainers.agents.calls import ENDED, Call, CallRefused
from trainers.engines.engine import Completion, SamplingParams
from trainers.engines.transformers_engine import TransformersEngine
from trainers.factory import make_engine, make_envs
from trainers.models.loading import load_policy
from trainers.rollouts import dispatcher
from trainers.rollouts.agent_rollout import AgentRollout, cause_of_failure, stop_if_all_failed
from trainers.rollouts.rollout import rollout
from trainers.rollouts.timing import Timing
from trainers.runtime.errors import UserError
from trainers.runtime.retry import ToolsFailed
from trainers.tiny.cold_start import SHIPPED

WORLD = {"entities": 60, "questions": 20}


@pytest.fixture
def agent(monkeypatch):
    """``agent(function, **options)``: rolls out a function of this module as an agent."""
    made = []

    def make(function, **options):
        name = function if isinstance(function, str) else f"{__name__}:{function.__name__}"
        made.append(AgentRollout(name, **options))
        return made[-1]

    monkeypatch.setattr(dispatcher, "PATIENCE", 0.5)
    yield make
    for one in made:
        one.close()


def chat(client, messages, **options):
    return client.chat.completions.create(model="policy", messages=messages, **options).choices[0]


def test_a_program_has_the_environment_s_own_episodes(agent, monkeypatch):
    """The shipped policy in examples/openai_agent.py: the same ids, masks, log-probabilities and rewards, where all turns can be
    read; and once more where programs begin in another order."""
    monkeypatch.setattr(dispatcher, "PATIENCE", 30.0)
    policy = load_policy(SHIPPED)
    envs = make_envs("AgentR1/MiniWiki-v0", json.dumps({"entities": 200, "questions": 50}), "train", 8)
    stop = envs.envs[0].stop

    def play(roll_out, engine):
        torch.manual_seed(3)
        return roll_out(envs, policy, engine, seeds=[0, 1], group_size=4, max_new_tokens=40)

    own = play(rollout, SeededEngine(policy, stop))
    ours = play(agent("examples.openai_agent:solve"), TransformersEngine(policy, stop))
    readable = [i for i, episode in enumerate(own) if not any("Invalid" in m["content"] for m in episode.messages)]
    assert len(readable) > 6
    for mine, theirs in ((ours[i], own[i]) for i in readable):
        assert [(row.ids, row.mask) for row in mine.rows] == [(row.ids, row.mask) for row in theirs.rows]
        for a, b in zip(mine.steps, theirs.steps, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5) and a.reward == pytest.approx(b.reward)
        assert mine.score == theirs.score
    JITTER[:] = [random.random() / 20 for _ in range(20)]
    again = play(agent(wait_and_solve), TransformersEngine(policy, stop))
    assert [e.steps for e in again] == [e.steps for e in ours] and len(JITTER) == 12


def wait_and_solve(task, client):
    time.sleep(JITTER.pop())
    return openai_agent.solve(task, client)


def search_twice(task, client):
    messages = [{"role": "user", "content": task["question"]}]
    for query in ("a town", "a person"):
        said = chat(client, messages).message
        found = task.tools[0](query=query)
        messages += [said.model_dump(include={"role", "content"}), {"role": "user", "content": found}]
    chat(client, messages)
    task.reward(0.25)
    return task["question"]


@pytest.fixture(scope="module")
def wiki(make_policy):
    policy = make_policy("subwords")
    envs = make_envs("AgentR1/MiniWiki-Easy-v0", json.dumps(WORLD), "train", 4)
    return envs, policy, make_engine("transformers", policy, ())


def run(roll_out, wiki, **options):
    torch.manual_seed(0)
    options = {"seeds": [1, 2], "group_size": 2, "max_new_tokens": 5} | options
    episodes = roll_out(*wiki, **options)
    stop_if_all_failed([episode.failed for episode in episodes], list(map(cause_of_failure, episodes)))
    return episodes


def test_tools_and_answers_are_turns_of_the_environment(agent, wiki):
    episodes = run(agent(search_twice), wiki)
    for episode in episodes:
        assert not episode.failed and not episode.truncated and len(episode.steps) == 3
        assert episode.info["calls"] == 2 and episode.info["prediction"] == episode.instance["question"]
        assert (episode.info["rows"], episode.info["edits"], episode.score) == (1, 0, 0.0)
        assert [[call["tool"] for call in turn["calls"]] for turn in episode.turns] == [["search"], ["search"], []]
        assert episode.turns[0]["next_observation"] == episode.messages[2]["content"]
        assert episode.reward_terms["program"] == 0.25 and episode.reward_terms["format"] == 0.05
        assert episode.episode_return == pytest.approx(sum(episode.reward_terms.values()))
        assert len(episode.anchors) == 3
    again = run(agent(search_twice), wiki)
    assert [e.steps for e in again] == [e.steps for e in episodes]
    assert episodes[0].steps[0].tokens != episodes[1].steps[0].tokens


def misbehave(task, client):
    """By the number of the episode: raise, exit, hang, give nothing, go beyond the calls, or answer."""
    number = COUNT.pop()
    said = chat(client, [{"role": "user", "content": "hello"}]).message.content
    if number == 0:
        raise KeyError("nothing of the sort")
    if number == 1:
        sys.exit(3)
    if number == 2:
        HANGS.wait(20)
    if number == 3:
        return None
    while number == 4:
        chat(client, [{"role": "user", "content": said}])
    return "42"


COUNT, HANGS = [], threading.Event()


def test_an_episode_fails_alone_and_its_record_says_why(agent, wiki):
    COUNT[:] = [5, 4, 3, 2, 1, 0]
    envs = make_envs("AgentR1/MiniWiki-Easy-v0", json.dumps(WORLD), "train", 6)
    roll_out = agent(misbehave, timeout=4, max_calls=4)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        episodes = run(roll_out, (envs, *wiki[1:]), seeds=[1], group_size=6)
    HANGS.set()
    prefix = "the program failed in an episode: "
    told = {str(warning.message).partition(prefix)[2].partition(":")[0] for warning in told} - {""}
    assert told == {"KeyError", "SystemExit", "TimeoutError", "ValueError"} == roll_out._told
    said = {
        e.messages[-1]["content"].strip().splitlines()[-1]: e for e in episodes if e.messages[-1]["role"] == "error"
    }
    reasons = (
        "KeyError",
        "SystemExit: 3",
        "TimeoutError: the program took more than 4 s",
        "ValueError: the program gave no answer",
    )
    for reason in reasons:
        (episode,) = (e for text, e in said.items() if text.startswith(reason))
        assert episode.failed and episode.truncated and len(episode.steps) == 1 and episode.score == 0
    (cut,) = (e for text, e in said.items() if "the episode has had its 4 calls" in text)
    assert not cut.failed and cut.truncated and len(cut.steps) == 4
    (good,) = (e for e in episodes if e not in said.values())
    assert not good.failed and good.info["prediction"] == "42"


def raise_at_once(task):
    raise RuntimeError("there is no such thing")


def test_a_program_that_always_fails_stops_the_run_with_its_traceback(agent, wiki):
    with pytest.raises(ToolsFailed, match=r"failed in all 4 episodes[\s\S]*in raise_at_once[\s\S]*no such thing"):
        run(agent(raise_at_once), wiki)


COMMAND = """
import json, os, subprocess, sys, time, urllib.request
task = json.load(sys.stdin)
def post(path, body):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))
said = post("/chat/completions", {"messages": [{"role": "user", "content": task["question"]}]})
found = post("/tools/search", {"query": "a town"})["result"]
post("/reward", {"reward": 2})
assert task["tools"][0]["function"]["name"] == "search", task
%s
"""


@pytest.mark.parametrize(
    ("end", "failed"),
    [
        ("print(found[:5])", ""),
        ("subprocess.Popen(['sleep', '60']); print(found[:5])", ""),
        ("subprocess.Popen('sleep 0.2; echo town', shell=True)", ""),
        ("print(found[:5], flush=True); subprocess.Popen(['sleep', '8'], start_new_session=True)", ""),
        ('print("broken", file=sys.stderr); sys.exit(4)', "status 4: broken\nbroken"),
        (
            "subprocess.Popen(['sleep', '60']); os.close(1); time.sleep(60)",
            "TimeoutError",
        ),
        ("print('x' * 2000000)", "printed more than"),
        ("pass", "no answer"),
    ],
)
def test_a_command_gets_its_task_on_stdin_and_is_ended_with_its_children(agent, wiki, tmp_path, end, failed):
    file = tmp_path / "agent.py"
    file.write_text(COMMAND % end)
    roll_out = agent(f"{sys.executable} {file}", timeout=1 if failed == "TimeoutError" else 20)
    if failed:
        with pytest.raises(ToolsFailed, match=failed):
            run(roll_out, wiki, seeds=[1], group_size=1)
    else:
        (episode,) = run(roll_out, wiki, seeds=[1], group_size=1)
        assert episode.info["prediction"] and episode.reward_terms["program"] == 2 and episode.info["calls"] == 1
    assert not roll_out.program._running


def work_in_threads(task, client):
    """Two sub-agents at once, and the same question twice."""

    def ask(name):
        messages = [{"role": "system", "content": name}, {"role": "user", "content": task["question"]}]
        time.sleep(JITTER.pop() if JITTER else 0)
        said = chat(client, messages).message.content
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "more"}]
        return chat(client, messages).message.content

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("one", "two", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "x"


JITTER = []


def test_what_is_sampled_does_not_depend_on_the_order_of_arrival(agent, wiki, monkeypatch):
    monkeypatch.setattr(dispatcher, "PATIENCE", 0.0)

    def sampled(delays):
        JITTER[:] = delays
        found = run(agent(work_in_threads), wiki, seeds=[1], group_size=2)
        assert not JITTER and all(len(e.steps) == 6 and not e.failed and e.info["rows"] == 3 for e in found)
        return [sorted((s.prompt, s.tokens) for s in e.steps) for e in found]

    assert sampled([0, 0.02, 0.05, 0.01, 0, 0.03]) == sampled([0.05, 0, 0, 0.03, 0.04, 0])


async def ask_async(task, client):
    reply = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hello"}])
    return reply.choices[0].message.content or "-"


def test_an_async_function_is_an_agent_too(agent, wiki):
    assert not any(episode.failed for episode in run(agent(ask_async), wiki))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module_x:solve", "there is no function 'no_such_module_x:solve' in this folder or installed: No "),
        ("test_agent_rollout:no", "has no attribute 'no'"),
        ("test_agent_rollout:WORLD", "is no function, got dict"),
        ("no-such-command-x agent.js", "there is no command 'no-such-command-x agent.js'"),
    ],
)
def test_what_is_no_program_is_named(name, said):
    with pytest.raises(UserError, match=re.escape(said)):
        programs.load_program(name)


def test_a_call_of_an_ended_episode_is_refused():
    caller = SimpleNamespace(number=0, ended=True, running=True, waiting=0, since=0.0)
    calls, call = dispatcher.Dispatcher(None, SamplingParams(max_new_tokens=1), Timing()), Call(messages=[])
    calls.submit(caller, call)
    calls.run([caller])
    with pytest.raises(CallRefused, match="the episode of this key has ended") as refused:
        call.answer.result(0)
    assert refused.value.status == 403


class Counts:
    """An engine that answers one conversation in each round; ``known``: the most that it has held."""

    max_length = 1000

    def __init__(self):
        self.open, self.held, self.known = {}, set(), 0

    def reset(self):
        assert not self.open
        self.held.clear()

    def submit(self, prompts, params, seeds):
        self.open |= prompts
        self.held |= prompts.keys()
        self.known = max(self.known, len(self.held))

    def wait(self):
        number = next(iter(self.open))
        del self.open[number]
        return {number: Completion(tokens=[1], logprobs=[-1.0], finish_reason="stop")}


def test_conversations_that_ended_do_not_fill_the_memory(monkeypatch):
    """Programs that begin a conversation with each call, and of which some call wherever others end."""
    monkeypatch.setattr(dispatcher, "KEPT", 4)
    engine, numbers = Counts(), itertools.count()
    calls = dispatcher.Dispatcher(engine, SamplingParams(max_new_tokens=1), Timing())

    class Session:
        def begin(self, call, *_):
            call.number, call.prompt = next(numbers), [0]

        def finish(self, call, completion):
            caller = call.body["caller"]
            caller.ended = caller.left == 0
            if caller.left:
                caller.left -= 1
                calls.submit(caller, Call(messages=[], body={"caller": caller}))
            return ENDED

    callers = [
        SimpleNamespace(number=n, ended=False, running=True, waiting=0, since=0.0, left=30, session=Session())
        for n in range(3)
    ]
    for caller in callers:
        calls.submit(caller, Call(messages=[], body={"caller": caller}))
    calls.run(callers)
    assert next(numbers) == 93 and engine.known <= 2 * 4 + 3


def test_a_key_is_of_one_episode_while_it_runs(agent, wiki):
    roll_out = agent(keep_key)
    KEYS.clear()
    run(roll_out, wiki)
    assert len(set(KEYS)) == 4
    for key in (KEYS[0], "", "another"):
        client = openai.OpenAI(base_url=roll_out._endpoint.url, api_key=key or "none", max_retries=0)
        with pytest.raises(openai.AuthenticationError, match="of no episode that is running"):
            chat(client, [{"role": "user", "content": "hello"}])


def keep_key(task, client):
    KEYS.append(task.api_key)
    chat(client, [{"role": "user", "content": "hello"}])
    return "x"


KEYS = []
