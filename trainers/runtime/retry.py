"""Roll out again after tool failures, with growing pauses, until the tools work or a time limit is reached.

A batch with mostly failed episodes shows nothing about the policy: it is neither learned from nor scored.
"""

import math
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import torch

from trainers.runtime import distributed, signals

T = TypeVar("T")
MOST_FAILED = 0.5  # if the share of failed episodes is larger, the batch is not used
MINUTES = 10.0  # the default time limit
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds


class ToolsFailed(signals.TrainingStopped):
    """Tools failed in too many episodes until the time limit; or all episodes failed, mostly because of the program."""


def retry_on_tool_failure(
    roll_out: Callable[[], T], failed: Callable[[T], float], minutes: float, most: float = MOST_FAILED
) -> T:
    """Call ``roll_out`` until tools failed in at most a share ``most`` of its episodes, with pauses of 1, 2, 4, … 60 seconds.

    Each call gets the same random numbers, so an outage does not change a run. ``failed`` computes the share of failed
    episodes in a result of ``roll_out``; it must be the same in every process.

    Raises:
        ToolsFailed: ``minutes`` have passed since the first failure, or a signal asks to stop. The random state is restored.
    """
    end, pause = math.inf, FIRST_PAUSE
    while True:
        state, cuda = torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        result = roll_out()
        share = failed(result)
        if not share > most:
            return result
        torch.set_rng_state(state)
        torch.cuda.set_rng_state_all(cuda)
        end = min(end, time.monotonic() + minutes * 60)
        left = distributed.broadcast(end - time.monotonic())  # all processes continue, or none
        what = f"a tool failed in {share:.0%} of the episodes"
        if left <= 0:
            told = "nothing is learned from them. Warnings above name the cause."
            raise ToolsFailed(f"{what}, for {minutes:g} minutes (tool_outage_minutes): {told}")
        pause, wait = min(2 * pause, LONGEST_PAUSE), min(pause, left)
        print(f"Warning: {what}: they are rolled out again in {wait:.3g} s", file=sys.stderr, flush=True)
        if _pause(wait):
            raise ToolsFailed(f"{what}, and a signal asks to stop: nothing is learned from them.")


def _pause(seconds: float) -> bool:
    """Wait; return whether any process has received a signal."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not signals.received():
        time.sleep(min(left, 0.5))
    return any(distributed.all_gather([signals.received()]))
