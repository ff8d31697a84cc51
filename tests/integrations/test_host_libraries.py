"""Environments of other libraries in our trainer: `examples/plug/host.py`."""

import sys
from pathlib import Path

import pytest

from agent_envs.integrations import Episode

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
