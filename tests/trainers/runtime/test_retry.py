"""Tools that fail, and what is rolled out again."""

from types import SimpleNamespace

import pytest
import torch

from trainers.runtime import retry, signals
from trainers.runtime.retry import ToolsFailed, retry_on_tool_failure


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


def run(clock, shares, minutes=1.0, seconds=0.0, **options):
    """Try until a share is small enough, each time for so many ``seconds``; returns what was drawn each time, and after."""
    drawn = []
    shares = iter(shares)

    def roll_out():
        clock.now += seconds
        drawn.append(torch.rand(()).item())
        return next(shares)

    torch.manual_seed(0)
    try:
        retry_on_tool_failure(roll_out, lambda share: share, minutes, **options)
    finally:
        drawn.append(torch.rand(()).item())
    return drawn


def test_after_an_outage_everything_is_as_if_there_had_been_none(clock):
    undisturbed = run(clock, [0.5])
    assert clock.pauses == []
    drawn = run(clock, [1.0, 0.51, 0.2])
    assert clock.pauses == [1.0, 2.0]
    assert drawn == [undisturbed[0]] * 3 + undisturbed[1:]
    run(clock, [0.01, 0.0], most=0.0)  # where no episode may fail, it is tried again for one
    assert clock.pauses == [1.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("minutes", "seconds", "pauses"),
    [
        (1.0, 0.0, [1.0, 2.0, 4.0, 8.0, 16.0, 29.0]),
        (10.0, 0.0, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, *[60.0] * 8, 57.0]),
        (10.0, 160.0, [1.0, 2.0, 4.0, 8.0]),  # a tool that hangs takes long to fail: that counts too
        (0.0, 0.0, []),
    ],
)
def test_patience_has_an_end(clock, minutes, seconds, pauses):
    with pytest.raises(ToolsFailed, match=f"failed in 80% of the episodes, for {minutes:g} minutes"):
        run(clock, [0.8] * 99, minutes, seconds)
    assert clock.pauses == pauses


def test_a_signal_ends_a_pause(monkeypatch):
    monkeypatch.setattr(signals, "received", lambda: 15)
    monkeypatch.setattr(retry.time, "sleep", lambda seconds: pytest.fail("nobody waits after a signal"))
    with pytest.raises(ToolsFailed, match="a signal asks to stop"):
        retry_on_tool_failure(lambda: 1.0, lambda share: share, 10.0)
