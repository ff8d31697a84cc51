"""Tools that break, and what is played again."""

from types import SimpleNamespace

import pytest
import torch

from trainers.runtime import retry, signals
from trainers.runtime.retry import ToolsFailed, play_until_tools_work


@pytest.fixture
def clock(monkeypatch):
    """Time that passes in pauses, and when ``clock.now`` is changed."""

    def pause(seconds):
        clock.now += seconds
        clock.pauses.append(seconds)

    clock = SimpleNamespace(now=0.0, pauses=[])
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(retry, "_pause", pause)
    return clock


def play_shares(clock, shares, minutes=1.0, seconds=0.0, **options):
    """Play until a share is small enough, each time for so many ``seconds``; returns what was drawn each time."""
    drawn = []
    shares = iter(shares)

    def play():
        clock.now += seconds
        drawn.append(torch.rand(()).item())
        return next(shares)

    torch.manual_seed(0)
    try:
        play_until_tools_work(play, lambda share: share, minutes, **options)
    finally:
        drawn.append(torch.rand(()).item())
    return drawn


def test_what_works_is_played_once(clock):
    play_shares(clock, [0.5])
    assert clock.pauses == []


def test_after_an_outage_everything_is_as_if_there_had_been_none(clock):
    undisturbed = play_shares(clock, [0.0])
    drawn = play_shares(clock, [1.0, 0.51, 0.2])
    assert clock.pauses == [1.0, 2.0]
    assert drawn == [undisturbed[0]] * 3 + undisturbed[1:]


def test_where_no_episode_may_fail_it_is_played_again_for_one(clock):
    play_shares(clock, [0.01, 0.0], most=0.0)
    assert clock.pauses == [1.0]


def test_patience_has_an_end(clock):
    with pytest.raises(ToolsFailed, match="broke in 80% of the episodes, for 1 minutes"):
        play_shares(clock, [0.8] * 99)
    assert clock.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 29.0]
    clock.pauses.clear()
    with pytest.raises(ToolsFailed):
        play_shares(clock, [0.8] * 99, minutes=10.0)
    assert max(clock.pauses) == 60.0 and sum(clock.pauses) == 600.0
    clock.pauses.clear()
    with pytest.raises(ToolsFailed, match="broke in 100%"):
        play_shares(clock, [1.0], minutes=0.0)
    assert clock.pauses == []


def test_patience_ends_for_a_tool_that_takes_long_to_fail(clock):
    """One that hangs fails each call after its timeouts: minutes of playing for seconds of pauses."""
    with pytest.raises(ToolsFailed):
        play_shares(clock, [1.0] * 99, minutes=10.0, seconds=160.0)
    assert clock.pauses == [1.0, 2.0, 4.0, 8.0]


def test_a_signal_ends_a_pause(monkeypatch):
    monkeypatch.setattr(signals, "received", lambda: 15)
    monkeypatch.setattr(retry.time, "sleep", lambda seconds: pytest.fail("nobody waits after a signal"))
    with pytest.raises(ToolsFailed, match="a signal asks to stop"):
        play_until_tools_work(lambda: 1.0, lambda share: share, 10.0)
