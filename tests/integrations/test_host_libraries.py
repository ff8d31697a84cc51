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
    library = LIBRARIES[request.param]
    pytest.importorskip(library, reason=f"pip install {library}", exc_type=ImportError)
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
