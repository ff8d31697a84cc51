import subprocess
import sys

import pytest
import torch

from trainers.models.cpu import flushing_denormals

SCRIPT = """
import psutil, torch
from trainers.models import cpu

def resident(): return psutil.Process().memory_info().rss / 2**20

cpu.keep_freed_memory()
before = resident()
blocks = [torch.ones(1 << 18) for _ in range(400)]  # 400 MiB in pieces of one
held = blocks[::40]  # some stay, so that there is no single end to cut off
del blocks
cpu.release_freed_memory()  # less than is worth it
kept = resident() - before
cpu.KEPT = 100 << 20
cpu.release_freed_memory()
assert all(block.sum() == 1 << 18 for block in held)  # and so they are resident, whatever else wants memory
released = resident() - before
print(kept, released)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have another C library")
def test_freed_memory_is_kept_until_it_is_released():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    kept, released = map(float, done.stdout.split())
    assert kept > 390  # MiB
    assert released < 60  # what is still held, less what else was free: importing leaves some


def halve_smallest() -> float:
    return (torch.full((3,), torch.finfo(torch.float32).tiny) / 2).max().item()


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush denormal numbers")
def test_denormal_numbers_are_zero_within_and_not_behind():
    assert halve_smallest() > 0
    with flushing_denormals():
        assert halve_smallest() == 0 == sys.float_info.min / 2
        with pytest.raises(KeyError), flushing_denormals():
            raise KeyError
        assert halve_smallest() == 0  # as it was
    assert halve_smallest() > 0
