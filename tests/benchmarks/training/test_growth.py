"""The work that grows is the work that is asked for."""

import pytest

from benchmarks.training import growth


def test_a_step_is_the_work_that_was_asked_for(monkeypatch):
    batches = []
    monkeypatch.setattr(growth, "play_batch", lambda *args: batches.append(growth_play(*args)) or batches[-1])
    rollout, update = growth.step(growth.Args(repeats=1), growth.Work(turns=2, group_size=2, observation=7, episodes=4))
    assert rollout > 0 and update > 0 and len(batches) == 2
    for batch in batches:
        assert len(batch.episodes) == 4 and {t.group for t in batch.episodes} == {0, 1}
        for episode in batch.episodes:
            assert [len(step.tokens) for step in episode.steps] == [growth.NEW_TOKENS] * 2
            assert len(episode.steps[1].prompt) - len(episode.steps[0].prompt) - growth.NEW_TOKENS in range(7, 12)
        assert len({t.episode_return for t in batch.episodes if t.group == 0}) == 2  # or there is nothing to learn


growth_play = growth.play_batch


def test_what_cannot_grow_is_refused():
    with pytest.raises(ValueError, match=r"unknown \['depth'\]; known are \['turns'"):
        growth.Args(grows=("depth",))
