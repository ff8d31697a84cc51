"""What is slow on a CPU unless it is asked for otherwise: numbers below 1e-38, and memory that is new each time.

Denormal numbers take a processor a hundred times as long, and attention that is sure of itself is full of them. PyTorch has no
cache of freed memory on a CPU: by default each large tensor is new memory, which the kernel clears page by page.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

KEPT = 1 << 30  # bytes of freed memory that may stay; below, giving back is not worth its time


@contextmanager
def flushing_denormals() -> Iterator[None]:
    """Denormal numbers are zero in here, and for good in the threads that torch starts meanwhile.

    A gradient step of a cold start takes a sixth less time, an update of the tiny policy an eighth; what is learned is the
    same.
    """
    was = sys.float_info.min / 2 == 0.0
    torch.set_flush_denormal(True)  # does nothing on a processor that can't
    try:
        yield
    finally:
        torch.set_flush_denormal(was)


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def _find_function(name: str):
    """A function of glibc; None elsewhere, as with musl."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


def keep_freed_memory() -> None:
    """Keep what is freed for the next tensor, for the whole process."""
    if mallopt := _find_function("mallopt"):
        m_trim_threshold, m_mmap_max = -1, -4  # of malloc.h
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


def release_freed_memory() -> None:
    """Give back to the system what is kept, where it is more than `KEPT`."""
    mallinfo2, malloc_trim = _find_function("mallinfo2"), _find_function("malloc_trim")
    if mallinfo2 and malloc_trim:
        mallinfo2.restype = _MallInfo
        if mallinfo2().fordblks > KEPT:
            malloc_trim(0)
