"""Tools that break, and what is played again."""

import pytest
import torch

from trainers.runs import outages, stopping
from trainers.runs.outages import ToolsFailed, play_until_tools_work


def play_shares(monkeypatch, shares, minutes=1.0):
    """Play until a share is small enough; returns the pauses, and what was drawn each time."""
    pauses, drawn = [], []
    monkeypatch.setattr(outages, "_pause", lambda seconds: pauses.append(seconds))
    shares = iter(shares)

    def play():
        drawn.append(torch.rand(()).item())
        return next(shares)

    torch.manual_seed(0)
    try:
        play_until_tools_work(play, lambda share: share, minutes)
    finally:
        drawn.append(torch.rand(()).item())
    return pauses, drawn


def test_what_works_is_played_once(monkeypatch):
    assert play_shares(monkeypatch, [0.5])[0] == []


def test_after_an_outage_everything_is_as_if_there_had_been_none(monkeypatch):
    _, undisturbed = play_shares(monkeypatch, [0.0])
    pauses, drawn = play_shares(monkeypatch, [1.0, 0.51, 0.2])
    assert pauses == [1.0, 2.0]
    assert drawn == [undisturbed[0]] * 3 + undisturbed[1:]


def test_patience_has_an_end(monkeypatch):
    assert list(outages.pauses(1.0)) == [1.0, 2.0, 4.0, 8.0, 16.0, 29.0]
    assert max(outages.pauses(10.0)) == 60.0 and sum(outages.pauses(10.0)) == 600.0
    with pytest.raises(ToolsFailed, match="broke in 80% of the episodes"):
        play_shares(monkeypatch, [0.8] * 2, minutes=1 / 60)
    with pytest.raises(ToolsFailed, match="broke in 100%"):
        play_shares(monkeypatch, [1.0], minutes=0.0)


def test_a_signal_ends_a_pause(monkeypatch):
    monkeypatch.setattr(stopping, "received", lambda: 15)
    monkeypatch.setattr(outages.time, "sleep", lambda seconds: pytest.fail("nobody waits after a signal"))
    with pytest.raises(ToolsFailed, match="a signal asks to stop"):
        play_until_tools_work(lambda: 1.0, lambda share: share, 10.0)
