"""Reward weights and the shaping term."""

import pytest

from agent_envs.rewards import QARewards, shaping


def test_shaping_telescopes():
    potentials = [0.0, 0.5, 0.5, 1.0, 0.25]
    for gamma in (1.0, 0.9):
        total = 0.0
        for t in range(len(potentials)):
            done = t == len(potentials) - 1
            after = 0.7 if done else potentials[t + 1]
            total += gamma**t * shaping(gamma, potentials[t], after, done)
        assert total == pytest.approx(-potentials[0])


def test_weights_go_over_the_defaults():
    assert QARewards.from_dict(None) == QARewards.from_dict({}) == QARewards()
    assert QARewards.from_dict({"metric": "f1", "format": 0}) == QARewards(metric="f1", format=0)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"anwser": 1.0}, "unknown reward weights.*anwser.*known.*answer"),
        ({"metric": "bleu"}, "metric must be"),
        ({"gamma": 1.5}, "gamma must be"),
        ({"answer": "1"}, "answer must be a finite number"),
        ({"format": float("nan")}, "format must be a finite number"),
        ({"invalid": None}, "invalid must be a finite number"),
        ({"repeat": True}, "repeat must be a finite number"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        QARewards.from_dict(weights)
