"""Environments of other libraries in our trainer: `examples/plug/host.py`."""

import json
import sys
from pathlib import Path

import pytest
from plug_setup import make_policy

from agent_envs.integrations import Episode
from trainers import grpo

pytestmark = pytest.mark.plug
LIBRARIES = {"Guess": "gem", "Reasoning": "reasoning_gym", "Arena": "textarena"}


@pytest.fixture(params=LIBRARIES)
def id(request, monkeypatch):
    """The id of a hosted environment whose library is installed."""
    pytest.importorskip(
        LIBRARIES[request.param], reason=f"pip install {LIBRARIES[request.param]}", exc_type=ImportError
    )
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "plug"))
    sys.modules.pop("host", None)
    return f"host:Mine/{request.param}-v0"


def test_a_seed_repeats_an_episode(id):
    episodes, turns = [Episode(id) for _ in range(2)], ["\\boxed{7}", "[7]", "four"]
    for seed in (1, 2):
        assert episodes[0].start(seed) == episodes[1].start(seed)
        for turn in turns:
            replies = [episode.step(turn) for episode in episodes]
            assert replies[0] == replies[1]
            if replies[0].done:
                break
    held_out = Episode(id, split="validation")
    assert held_out.start(1)[1]["content"]


def test_it_is_trained_in(id, tmp_path):
    policy = make_policy("words")
    policy.model.save_pretrained(tmp_path / "start")
    policy.tokenizer.save_pretrained(tmp_path / "start")
    args = grpo.Args(
        env=id, env_kwargs='{"max_turns": 2}', model=str(tmp_path / "start"), out=tmp_path / "run", updates=2,
        questions_per_update=2, group_size=4, max_new_tokens=8, eval_every=2, eval_questions=4, final_questions=4,
    )  # fmt: skip
    grpo.main(args)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2] and "reward/env" in lines[-1]


def test_gem_pays_what_it_pays_alone(monkeypatch):
    gem = pytest.importorskip("gem.envs.game_env.guess_the_number", reason="pip install gem-llm", exc_type=ImportError)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "plug"))
    alone, episode = gem.GuessTheNumberEnv(), Episode("host:Mine/Guess-v0")
    for seed in range(3):
        first, _ = alone.reset(seed=seed)
        assert episode.start(seed)[1]["content"].split("example")[0] == first.split("example")[0]
        for guess in (10, 5, 15, 3, 8, 13, 18):
            observation, reward, terminated, _, _ = alone.step(f"\\boxed{{{guess}}}")
            reply = episode.step(f"\\boxed{{{guess}}}")
            assert (reply.text, reply.reward, reply.terminated) == (observation, reward, terminated)
            if terminated:
                break
