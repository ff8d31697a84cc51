"""Tools that break: what was played is played again, with growing pauses, until they work or patience ends.

A dead search server does not end an episode, it makes all of its searches fail, and a batch of such episodes says nothing about
the policy. So what failed for the most part is never learned from and never a score.
"""

import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from trainers import distributed
from trainers.runs import stopping

T = TypeVar("T")
MOST_FAILED = 0.5  # the share of failed episodes above which nothing is made of the others
MINUTES = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds


class ToolsFailed(stopping.TrainingStopped):
    """More than half of the episodes failed, however often they were played."""


def play_until_tools_work(play: Callable[[], T], failed: Callable[[T], float], minutes: float) -> T:
    """What ``play`` returns, as soon as no more than half of its episodes failed. It is called again after pauses of 1, 2, 4
    to 60 seconds, with the random numbers of the first time: after an outage a run is what it would have been without.

    Args:
        failed: the share of failed episodes in what was played; the same in every process.
        minutes: how long all pauses may take.

    Raises:
        ToolsFailed: they took that long, or a signal has asked the process to stop. The random state is as before.
    """
    for pause in (*pauses(minutes), None):
        state = _random_state()
        played = play()
        share = failed(played)
        if not share > MOST_FAILED:
            return played
        _set_random_state(state)
        what = f"a tool broke in {share:.0%} of the episodes"
        if pause is None:
            raise ToolsFailed(
                f"{what}, for {minutes:g} minutes of pauses (--tool-outage-minutes): nothing is learned of it."
            )
        print(f"Warning: {what}: they are played again in {pause:g} s", file=sys.stderr, flush=True)
        if _pause(pause):
            raise ToolsFailed(f"{what}, and a signal asks to stop: nothing is learned of it.")
    raise AssertionError("the last pause is None")


def pauses(minutes: float) -> Iterator[float]:
    """Seconds to wait, doubled each time up to a minute; ``minutes`` in all."""
    left, pause = minutes * 60, FIRST_PAUSE
    while left > 0:
        yield min(pause, left)
        left, pause = left - pause, min(2 * pause, LONGEST_PAUSE)


def _pause(seconds: float) -> bool:
    """Wait; returns whether a signal has come to any process meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not stopping.received():
        time.sleep(min(left, 0.5))
    return any(distributed.all_gather([stopping.received()]))


def _random_state() -> tuple[torch.Tensor, list[torch.Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _set_random_state(state: tuple[torch.Tensor, list[torch.Tensor]]) -> None:
    torch.set_rng_state(state[0])
    torch.cuda.set_rng_state_all(state[1])
