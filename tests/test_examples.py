"""The examples run as they stand, in seconds with --quick, print what they promise, and are in the table of their README."""

import ast
import importlib.util
import sys
from pathlib import Path

import gymnasium
import pytest

from agent_envs.generators.miniwiki import World
from trainers.tiny import cold_start, curriculum, lessons
from trainers.tiny import model as tiny

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
    "mixture": ("AgentR1/Calculator-v0", "score: {"),
}
NEEDS = {"mcp_tools": "mcp", "lora_one_gpu": "peft", "api_model": "openai"}


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def no_trace(tmp_path, monkeypatch):
    """Runs leave nothing behind: neither ids nor modules nor a cold start. The tiny policy is smaller, and knows fewer words."""
    make_model, small = tiny.make_model, {"hidden_size": 32, "layers": 2, "intermediate_size": 32}
    run_unbroken = lessons.run_unbroken
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(curriculum, "POOL", 16)  # demonstrations made at a time: three steps need no more
    monkeypatch.setattr(
        lessons, "run_unbroken", lambda envs, few, *how, **seed: run_unbroken(envs, few[:40], *how, **seed)
    )
    monkeypatch.setattr(tiny, "make_model", lambda *sizes, **how: make_model(*sizes, **how | small))
    monkeypatch.setattr(cold_start, "World", lambda _, seed, difficulty: World(200, seed, difficulty=difficulty))
    yield
    for registry in (gymnasium.registry, sys.modules):
        for name in [name for name in registry if name.startswith(("Mine/", "example_"))]:
            del registry[name]


@pytest.mark.parametrize("name", SAID)
def test_it_runs_and_says_what_it_promises(name, no_trace, tmp_path, capfd):
    if package := NEEDS.get(name):
        pytest.importorskip(package)
    load(name).main(out=str(tmp_path / "run"), quick=True)
    said = capfd.readouterr().out
    assert [phrase for phrase in SAID[name] if phrase not in said] == [], said


def test_each_is_tested_documented_and_short():
    files = {path.stem: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}
    assert set(files) == set(SAID)
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for name, text in files.items():
        assert 30 <= len(text.splitlines()) <= 67, name
        assert f"python examples/{name}.py" in ast.get_docstring(ast.parse(text))
        assert f"[`{name}.py`]({name}.py)" in table
