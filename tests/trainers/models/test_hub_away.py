"""A hub that is away costs seconds, not minutes, also from Python."""

import time

import pytest
from huggingface_hub import constants

from agent_envs.token_counter import TokenCounter
from retrieval_index.pretrained import PretrainedEncoder
from trainers.models.loading import load_policy


@pytest.mark.parametrize("load", [load_policy, TokenCounter, PretrainedEncoder])
def test_a_hub_that_is_away_is_asked_once(load, monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    begin = time.monotonic()
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:9 cannot be asked for it"):
        load("somebody/some-model")
    assert time.monotonic() - begin < 5
