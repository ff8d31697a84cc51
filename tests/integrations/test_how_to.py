"""The recipes of docs/how_to.md do what the page states."""

import json
import re
import sys
from functools import partial
from pathlib import Path

import gymnasium
import pytest

from trainers import grpo
from trainers.tiny.cold_start import SHIPPED

PAGE = (Path(__file__).parents[2] / "docs/how_to.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Other libraries")[2]
_, FORMAT, HOOK, TRL, SB3, COLOURS, EPISODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_a_format_of_ones_own():
    said = {}
    exec(FORMAT, said)
    env = gymnasium.make("AgentR1/MiniWiki-v0", format=said["Arrows"])
    assert env.reset(seed=0)[1]["instructions"].endswith("Write SEARCH: words, or ANSWER: text.")
    assert env.step("SEARCH: town")[4]["calls"] == 1
    assert env.step("ANSWER:")[0] == "Write SEARCH: words, or ANSWER: text."
    assert env.step("ANSWER: x")[2]
    format = env.unwrapped.format
    assert all(format.write(format.parse(text)) == text for text in ("SEARCH: a b", "ANSWER: x"))


def test_an_episode():
    said = {}
    exec(EPISODE, said)
    assert [message["role"] for message in said["messages"]] == ["system", "user"]
    assert "<information>" in said["reply"].text and not said["reply"].done


def test_an_environment_of_ones_own_is_trained_in_with_a_hook(tmp_path, monkeypatch):
    (tmp_path / "my_module.py").write_text(COLOURS)
    monkeypatch.syspath_prepend(str(tmp_path))
    id = re.search(r"trainers.grpo --env (\S+)", SECTION)[1]
    try:
        args = grpo.Args(
            env=id, env_kwargs='{"max_turns": 2}', model=str(SHIPPED), out=tmp_path / "run", updates=1,
            questions_per_update=2, group_size=2, max_new_tokens=4, eval_questions=1, final_questions=1,
        )  # fmt: skip
        said = {"__name__": "my_grpo"}
        exec(HOOK, said)
        said["train"](args)
        last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
        assert json.loads(last)["mine/longest"] == 2
    finally:
        gymnasium.registry.pop(id.partition(":")[2], None)
        sys.modules.pop("my_module", None)


@pytest.mark.plug
def test_trl(tmp_path, monkeypatch):
    trl = pytest.importorskip("trl", reason="pip install -e '.[trl]'")
    monkeypatch.chdir(tmp_path)
    short = partial(trl.GRPOConfig, bf16=False, max_steps=1, report_to="none", save_strategy="no")
    monkeypatch.setattr(trl, "GRPOConfig", lambda max_completion_length: short(max_completion_length=4))
    code, said = TRL.replace("Qwen/Qwen2.5-0.5B-Instruct", str(SHIPPED)), {}
    exec(code.replace("1000", "8"), said)
    assert said["trainer"].state.global_step == 1


@pytest.mark.plug
def test_sb3():
    pytest.importorskip("stable_baselines3", reason="pip install -e '.[sb3]'", exc_type=ImportError)
    said = {}
    exec(SB3.replace("40_000", "2048"), said)
    assert said["env"].observation_space.contains(said["env"].reset(seed=0)[0])
