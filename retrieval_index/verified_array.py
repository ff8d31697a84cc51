"""Read the files of an index so that a write by another process never changes the result of a search.

Bytes are copied into memory and compared with a checksum of the build: small files whole, large arrays block by block on first
use. If a file is overwritten or cut off while a server runs, a search that reads the damaged part raises `IndexCorrupt`. A
memory map would give wrong answers, or end the process.

The checksums of ``name`` are beside it in ``name.sums``: 64 bits of SHA-256 for each block, or CRC-32 for each line of
the passages. They are written last: a build that is not complete reads its own files without checksums.
"""

import contextlib
import hashlib
import io
import math
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np


def usable_memory() -> int:
    """Return the memory available to all processes here, in bytes: of the machine, or of its container (cgroups 2 and 1)."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            found.append(int(Path(path).read_text()))
    return min(found)


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use: by its affinity, and by the quota of its container."""
    found = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    with contextlib.suppress(OSError, ValueError):  # not there, or "max"
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        found.append(math.ceil(quota / period))
    return min(found)


BLOCK = 1 << 14  # bytes
SUMS = ".sums"
MOST = usable_memory() // 4  # bytes of one array above which its memory is dropped
_RUN = 256  # blocks that are read at once
_NORESERVE = 0x4000 if sys.platform == "linux" else 0  # memory is allocated only when it is written


class IndexCorrupt(ValueError):
    """An index file is missing, truncated, changed or foreign."""


def checksum(content: bytes | memoryview) -> int:
    """Return the first 64 bits of the SHA-256 of a block."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "little")


def write_sums(path: Path) -> None:
    """Write the checksums of a file's blocks beside it."""
    with open(path, "rb") as file:
        save_sums(path, np.array([checksum(block) for block in iter(lambda: file.read(BLOCK), b"")], "<u8"))


def save_sums(path: Path, sums: np.ndarray) -> None:
    """Write the checksums of a file's parts beside it."""
    path.with_name(path.name + SUMS).write_bytes(sums.tobytes())


def read_sums(path: Path, dtype: str = "<u8") -> np.ndarray | None:
    """Read the checksums of a file's parts; None if it has none."""
    sums = path.with_name(path.name + SUMS)
    return np.fromfile(sums, dtype) if sums.is_file() else None


def read_bytes(path: Path) -> bytes:
    """Read a whole file. Raises `IndexCorrupt` if a block is not what was written."""
    return b"".join(_pieces(path))


def open_reader(path: Path) -> Callable[[int], bytes]:
    """Return a function that reads the next bytes of a file, at most ``size``. It raises `IndexCorrupt` as `read_bytes` does."""
    pieces, rest = _pieces(path), b""

    def read(size: int) -> bytes:
        nonlocal rest
        rest = rest or next(pieces, b"")
        piece, rest = rest[:size], rest[size:]
        return piece

    return read


def read_array(path: Path) -> np.ndarray:
    """Read the array of an .npy file, read-only. Raises `IndexCorrupt` as `read_bytes` does."""
    array = np.load(io.BytesIO(read_bytes(path)), allow_pickle=False)
    array.setflags(write=False)
    return array


def _pieces(path: Path) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        size, sums = os.fstat(file.fileno()).st_size, read_sums(path)
        blocks = -(-size // BLOCK)
        for first in range(0, blocks, _RUN):
            yield _read(file.fileno(), path, sums, first, min(first + _RUN, blocks), size)


class VerifiedArray:
    """The array of an .npy file, whose blocks are read and checked when they are needed. Threads may share it."""

    def __init__(self, path: Path):
        self.path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed with the array
        self._size = os.fstat(self._file.fileno()).st_size
        self._blocks = -(-self._size // BLOCK)
        self._sums = read_sums(path)
        self._lock = threading.Lock()
        _read(self._file.fileno(), path, self._sums, 0, 1, self._size)
        try:
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)  # reads only the header
        except (ValueError, EOFError) as error:
            raise IndexCorrupt(f"{path}: it is no array: {error}") from None
        self.shape, self.dtype, self._start = mapped.shape, mapped.dtype, mapped.offset
        self._row = mapped.nbytes // max(1, len(mapped))  # bytes
        self._forget()

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        whole = self.read_rows(np.array([0]), np.array([len(self)]))
        return whole if dtype is None else whole.astype(dtype)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        rows = np.asarray(rows) % len(self)
        return self.read_rows(rows, rows + 1)[rows]

    def read_rows(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return the array, in which the rows from ``low[i]`` to ``high[i]``, int64 [n], are read; others may be zero. Raises
        `IndexCorrupt` if a block of these rows is not what was written."""
        first = (self._start + low * self._row) // BLOCK
        counts = -(-(self._start + high * self._row) // BLOCK) - first
        blocks = np.arange(counts.sum()) + np.repeat(first - counts.cumsum() + counts, counts)
        array, present = self._state
        if not present[blocks].all():
            with self._lock:
                if self._bytes > MOST:
                    self._forget()  # searches that still use the old memory keep it
                array, present = self._state
                self._fetch(present, np.unique(blocks[~present[blocks]]))
        return array

    @property
    def array(self) -> np.ndarray:
        """The array, zero where no block was read; a new one after the memory was dropped."""
        return self._state[0]

    def _forget(self) -> None:
        """Drop the memory, and start again with no block present."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        self._memory, self._bytes = mmap.mmap(-1, self._size, flags=flags), 0
        array: np.ndarray = np.frombuffer(self._memory, self.dtype, offset=self._start).reshape(self.shape)
        array.setflags(write=False)
        self._state = array, np.zeros(self._blocks, np.bool_)

    def _fetch(self, present: np.ndarray, blocks: np.ndarray) -> None:
        """Read blocks that are not present yet into memory; ``blocks`` is int64 [n], ascending."""
        for run in np.split(blocks, np.flatnonzero(np.diff(blocks) > 1) + 1):
            for part in np.split(run, range(_RUN, len(run), _RUN)) if len(run) else ():
                at, end = int(part[0]), int(part[-1]) + 1
                content = _read(self._file.fileno(), self.path, self._sums, at, end, self._size)
                self._memory[at * BLOCK : at * BLOCK + len(content)] = content
                present[at:end] = True
                self._bytes += len(content)


def _read(handle: int, path: Path, sums: np.ndarray | None, first: int, last: int, size: int) -> bytes:
    """Read blocks ``first`` to ``last`` (exclusive) of a file, and compare them with their checksums."""
    wanted = min(last * BLOCK, size) - first * BLOCK
    content = b""
    while len(content) < wanted and (more := os.pread(handle, wanted - len(content), first * BLOCK + len(content))):
        content += more
    if len(content) < wanted:
        raise _changed(path, "it has lost its end")
    if sums is not None:
        view = memoryview(content)
        found = [checksum(view[at : at + BLOCK]) for at in range(0, wanted, BLOCK)]
        if found != sums[first:last].tolist():
            raise _changed(path, "a block of it is not what was written")
    return content


def _changed(path: Path, what: str) -> IndexCorrupt:
    return IndexCorrupt(f"{path}: {what}: it was changed after it was opened. Copy the index again, or build it again.")
