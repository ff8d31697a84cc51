"""`trainers.evaluate --agent`: one program, unchanged, with a policy here and with models behind an API."""

import json
import sys
import threading
import time

import openai
import pytest
from chat_server import Trouble, serve

from agent_envs.tools import SearchTool
from trainers import evaluate
from trainers.agents.task_file import TaskEnv
from trainers.checkpoints import checkpoint
from trainers.episodes.records import read_episodes
from trainers.evaluation.evaluator import data_digest
from trainers.factory import make_envs
from trainers.models.loading import load_policy
from trainers.runtime.signals import TrainingStopped

SMALL = '{"entities": 60, "questions": 30}'
PROGRAM = """
from functools import partial

def solve(task, client):
    create = partial(client.chat.completions.create, model="policy", top_p=0.5, stop="!")
    messages, tools = [{"role": "user", "content": task["question"]}], [tool.schema for tool in task.tools]
    said = create(messages=messages, tools=tools).choices[0].message
    for call in said.tool_calls or ():
        messages += [said, {"role": "tool", "tool_call_id": call.id, "content": task.tools[0](query="a town")}]
        said = create(messages=messages, tools=tools).choices[0].message
    create(messages=[{"role": "user", "content": "Sure?"}])
    return said.content or "-"
"""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 0.02)


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_program.py").write_text(PROGRAM)
    yield tmp_path / "my_program.py"
    sys.modules.pop("my_program", None)


@pytest.fixture
def answer_right():
    env = make_envs("AgentR1/MiniWiki-Easy-v0", SMALL, "validation", 1).envs[0]
    golds = {question.question: question.answer for question in env.questions}

    def say(request):
        if "tools" in request and request["messages"][-1]["role"] == "user":
            return [("search", '{"query": "a town"}')]
        return {"content": golds.get(request["messages"][0]["content"], "Yes") + "! And more.", "reasoning": "hm"}

    return say


def run(out, **args):
    options = {"env": "MiniWiki-Easy", "env_kwargs": SMALL, "questions": 4, "num_envs": 4, "agent": "my_program:solve"}
    return evaluate.main(evaluate.Args(out=out, **options | args))


def test_the_same_program_with_a_policy_and_an_api(program, answer_right, model_folder, tmp_path, capsys):
    run(tmp_path / "here", checkpoint=(model_folder,), max_new_tokens=4)
    with serve(answer_right) as chat:
        rows = run(tmp_path / "there", api=chat.url, model="m", temperature=0.5)
    assert (
        rows[-1]["em"] == 1 and rows[-1]["calls"] == 1 and (rows[-1]["prompt_tokens"], rows[-1]["failed"]) == (120, 0)
    )
    here, there = (list(read_episodes(tmp_path / name / "episodes.jsonl")) for name in ("here", "there"))
    record = there[-1]
    assert record.keys() == here[-1].keys() and record["metrics"].keys() == here[-1]["metrics"].keys()
    roles = [message["role"] for message in record["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "system", "user", "assistant"]
    assert record["metrics"]["rows"] == here[-1]["metrics"]["rows"] == 2 and len(record["turns"]) == 3
    assert record["turns"][0]["calls"][0]["result"] == record["messages"][2]["content"]
    sent = chat.heard[0]
    assert (sent["model"], sent["top_p"], sent["temperature"], "stream" in sent) == ("m", 0.5, 0.5, False)
    assert "as the program asks" in (tmp_path / "there" / "evaluation.md").read_text()


def test_a_program_has_as_many_calls_as_in_training(program, model_folder, tmp_path):
    policy = load_policy(model_folder, "cpu")
    parts = {"model": policy.model, "tokenizer": policy.tokenizer, "optimizers": [], "step": 1}
    trained = checkpoint.save(tmp_path / "trained", **parts, extra={"agent_calls": 1})
    run(tmp_path / "here", checkpoint=(trained,), max_new_tokens=4)
    records = [one for one in read_episodes(tmp_path / "here" / "episodes.jsonl") if one["agent"] == str(trained)]
    assert len(records) == 4 and all(len(one["turns"]) == 1 and one["truncated"] for one in records)


SCORED = """
def solve(task, client):
    if task["id"] in BROKEN:
        raise KeyError("nothing of the sort")
    messages = [{"role": "user", "content": task["id"]}]
    client.chat.completions.create(model="policy", messages=messages)
    task.reward(0.5)
    return {"reward": 1, "metrics": {"length": 3}}

BROKEN = ["a"]
"""


def test_what_fails_is_counted_and_asked_again(program, tmp_path, capsys):
    program.write_text(SCORED)
    names = {"split": "validation"}
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps({"id": name} | names) for name in "abc"))
    args = {"env": str(tmp_path / "tasks.jsonl"), "env_kwargs": "{}", "model": "m", "concurrency": 1}
    trouble = [True]

    def say(request):
        if request["messages"][0]["content"] == "b" and trouble:
            raise Trouble(400, {"error": {"message": "filtered"}})
        return "hello"

    with serve(say) as chat:
        with pytest.raises(
            TrainingStopped, match=r"the program, or a tool failed, or the API gave no answer, in 66\.7%"
        ):
            run(tmp_path / "out", api=chat.url, **args)
        told = capsys.readouterr().err
        assert "1 episodes of m could not be finished: KeyError: 'nothing of the sort'" in told
        assert "1 episodes of m could not be finished: 400: filtered" in told
        (good,) = (e for e in read_episodes(tmp_path / "out" / "episodes.jsonl") if not e["failed"])
        assert (good["id"], good["return"], good["metrics"]["length"], good["score"]) == ("c", 1.5, 3.0, 1.0)
        sys.modules["my_program"].BROKEN.clear()
        trouble.clear()
        assert run(tmp_path / "out", api=chat.url, **args)[-1]["score"] == 1.0
        assert [request["messages"][0]["content"] for request in chat.heard] == ["b", "c", "a", "b"]
        program.write_text(SCORED + "#")
        with pytest.raises(ValueError, match="the file of the program was changed"):
            run(tmp_path / "out", api=chat.url, **args)


def test_a_command_that_hangs_is_ended_and_fails_alone(program, tmp_path, monkeypatch):
    program.write_text("import time; print('hello', flush=True); time.sleep(60)")
    begin, agent = time.monotonic(), f"{sys.executable} {program}"
    with serve(lambda request: "hello") as chat:
        rows = run(tmp_path / "out", api=chat.url, model="m", agent=agent, agent_timeout=0.3, max_failed=1)
    assert rows[-1]["failed"] == 1 and time.monotonic() - begin < 20
    assert list(rows[-1]["problems"]) == ["TimeoutError: the program took more than 0.3 s without a call"]


LEAVES_A_CALL = """
from threading import Event, Thread

def solve(task, client):
    thread = Thread(target=ask, args=(client,))
    thread.start()
    ASKED.wait()
    LEFT.append(thread)
    return "-"

def ask(client):
    try:
        client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "Sure?"}])
    except Exception as error:
        LEFT.append(error)

ASKED, LEFT = Event(), []
"""


def test_a_call_that_waits_as_its_episode_ends_is_refused_at_once(program, tmp_path):
    program.write_text(LEAVES_A_CALL)
    ended = threading.Event()

    def say(request):
        sys.modules["my_program"].ASKED.set()
        ended.wait()
        return "too late"

    with serve(say) as chat:
        run(tmp_path / "out", api=chat.url, model="m", questions=1, num_envs=1)
        sys.modules["my_program"].LEFT[0].join(30)
        (_, error) = sys.modules["my_program"].LEFT
        ended.set()
    assert "the episode of this key has ended" in str(error)


def test_a_tool_that_breaks_before_any_call_fails_the_episode(program, tmp_path, monkeypatch):
    def fail(self, arguments):
        raise ConnectionError("the server is away")

    monkeypatch.setattr(SearchTool, "execute_batch", fail)
    program.write_text("def solve(task): return task.tools[0](query='a town')")
    with serve(lambda request: "hello") as chat:
        rows = run(tmp_path / "out", api=chat.url, model="m", max_failed=1)
    assert rows[-1]["failed"] == 1 and list(rows[-1]["problems"]) == ["a tool failed"] and not chat.heard


def test_answers_of_edited_code_are_not_reused(tmp_path, monkeypatch):
    """Of the task's reward, format and context too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"question": "1 + 1?", "split": "train"}\n')
    for name in ("my_reward", "my_context"):
        (tmp_path / f"{name}.py").write_text("def mine(*arguments):\n    return arguments[-1]\n")
    task = TaskEnv("tasks.jsonl", reward="my_reward:mine")
    (env,) = make_envs("AgentR1/MiniWiki-Easy-v0", '{"context": "my_context:mine"}', "validation", 1).envs
    for one, name in ((task, "my_reward"), (env, "my_context")):
        before = data_digest(one)
        assert data_digest(one) == before
        (tmp_path / f"{name}.py").write_text("# edited\n")
        assert data_digest(one) != before
        sys.modules.pop(name)
