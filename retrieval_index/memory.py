"""How much memory there is: of the machine, or of the container that a process runs in."""

import contextlib
import os
from pathlib import Path


def usable_memory() -> int:
    """What this process and others beside it may take, in bytes."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *container_limits()])


def container_limits() -> list[int]:
    """What a container may take, in bytes, where it has a limit (cgroups of version 2 and 1)."""
    found = []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            found.append(int(Path(path).read_text()))
    return found
