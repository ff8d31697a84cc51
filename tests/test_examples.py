"""The examples run as they stand, in seconds with --quick, print what they promise, and are in the table of their README."""

import ast
import importlib.util
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import pytest

from tests.trainers.conftest import no_fsync, one_thread, save_picture, small_cold_start

__all__ = ["no_fsync", "one_thread", "save_picture", "small_cold_start"]

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SAID = {
    "own_questions": ("You know the town of Tarn", "questions: Tarn (local:town/questions.jsonl)", "exact match: {"),
    "own_tool": ("there is no town Rome; there are Tarn", "7 km", "success: {", "Trained with GRPO"),
    "own_reward": ("brief     -0.2", "earns -0.15: {'format': 0.05, 'brief': -0.2}", "paid for brevity, by update: ["),
    "judge_reward": ("exact match 0, judge 1", "exact match 1, judge 1", "update 2: judge"),
    "mcp_tools": ("number_of", "<information>", "success: {", "Trained with GRPO"),
    "lora_one_gpu": ("rank 4 on 7 kinds of layers", "adapter_model.safetensors"),
    "resume": ("saved: ['checkpoint-2']", "resumed: update 4", "the same weights: True"),
    "in_a_notebook": ("Trained with GRPO", "held out: {", "->"),
    "api_model": ("Use the functions that you are given", "'name': 'answer'", "exact match in 4 episodes"),
    "native_tools": ("functions: search, answer", "<tool_call>", "<|tool|>", "Base Tool Call", "Trained with GRPO"),
    "openai_agent": ("Trained with GRPO", "rows an episode: [1.0, 1.0]", "edited turns: 0"),
    "two_agents": ("rows of an episode: [3]", "calls of the policy: [3]"),
    "node_agent": ("episodes that failed: [0.0]", "turns: ["),
    "agents_sdk": ("rows of an episode: [1]", "calls of the policy: [1]"),
    "langgraph_agent": ("rows of an episode: [1]", "calls of the policy: [1]"),
    "mixture": ("AgentR1/Calculator-v0", "score: {"),
}
NEEDS = {
    "mcp_tools": "mcp",
    "lora_one_gpu": "peft",
    "api_model": "openai",
    "openai_agent": "openai",
    "two_agents": "openai",
    "agents_sdk": "agents.run",  # a folder of that name is a package, too
    "langgraph_agent": "langgraph",
}


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def no_trace(tmp_path, monkeypatch, small_cold_start):
    """Runs leave nothing behind: neither ids nor modules nor a cold start."""
    monkeypatch.chdir(tmp_path)
    yield
    for registry in (gymnasium.registry, sys.modules):
        for name in [name for name in registry if name.startswith(("Mine/", "example_"))]:
            del registry[name]


@pytest.mark.parametrize("name", SAID)
def test_it_runs_and_says_what_it_promises(name, no_trace, tmp_path, capfd):
    if package := NEEDS.get(name):
        pytest.importorskip(package)
    if name == "node_agent" and not shutil.which("node"):
        pytest.skip("node is not installed")
    load(name).main(out=str(tmp_path / "run"), quick=True)
    said = capfd.readouterr().out
    assert [phrase for phrase in SAID[name] if phrase not in said] == [], said


def test_the_api_model_may_say_anything(no_trace):
    chat = pytest.importorskip("openai.types.chat")

    def call(id, arguments, name="search"):
        return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}

    found, answered = call("1", '{"query": "a town"}'), call("3", '{"text": "Rome"}', "answer")
    said = [{"content": "hm"}, {"tool_calls": [found, call("2", "{broken")]}, {"tool_calls": [found, found]}]
    turns = iter([*said, {"tool_calls": [answered]}])

    def create(**_):
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None, **next(turns)}}
        head = {"id": "x", "object": "chat.completion", "created": 0, "model": "x"}
        return chat.ChatCompletion.model_validate({**head, "choices": [choice]})

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    messages, score = load("api_model").play(client, 0)
    roles = "assistant user assistant tool tool assistant tool tool assistant".split()
    assert [message["role"] for message in messages[2:]] == roles and score == 0


def test_each_is_tested_documented_and_short():
    files = {path.stem: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}
    assert set(files) == set(SAID)
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for name, text in files.items():
        assert 30 <= len(text.splitlines()) <= 67, name
        assert f"python examples/{name}.py" in ast.get_docstring(ast.parse(text))
        assert f"[`{name}.py`]({name}.py)" in table
