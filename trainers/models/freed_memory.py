"""What the C library does with memory that was freed, on Linux.

PyTorch has no cache of its own on a CPU. By default each large tensor is new memory from the kernel, which clears it page by
page: that takes longer than most elementwise operations on it. So freed memory is kept for the next tensor. But the pieces
that a rollout leaves do not fit the tensors of an update, and the other way round: with each change between the two, some of
what was freed is given back.
"""

import ctypes
import sys

KEPT = 1 << 30  # bytes that may stay; below, giving back is not worth its time


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
