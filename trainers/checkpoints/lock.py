"""Locks between processes: only one writes into a folder, and only one makes what the others wait for."""

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from retrieval_index.printable import printable
from trainers.runtime.errors import UserError

LOCK_FILE = ".lock"  # its text names the process that holds the folder
LEAST_FREE = 2**26  # bytes: checkpoints of the tiny policy, a few times over


class FolderInUse(UserError):
    """Another process writes into the folder now; the message names it."""


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Make the folder if needed, and lock it against `hold_folder` in other processes; remove it again if it stays empty.
    Raises FolderInUse, or a UserError if it cannot be written to, its disk is full, or its file system has no locks."""
    made, file = not folder.exists(), folder / LOCK_FILE
    check_writable(folder)
    lock = FileLock(file)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        holder = printable(file.read_text(encoding="utf-8", errors="replace")) or "another process"
        raise FolderInUse(f"{folder} is in use by {holder}: give another --out, or wait for it") from None
    except OSError as error:
        raise UserError(
            f"{folder} is on a file system without locks ({error.strerror}), where two runs could write at once: give an "
            "--out elsewhere"
        ) from error
    try:
        started = f"{datetime.now():%Y-%m-%d %H:%M:%S} ({' '.join(sys.argv)})"
        file.write_text(f"process {os.getpid()} on {socket.gethostname()} since {started}")
        yield
    finally:
        if made and os.listdir(folder) == [LOCK_FILE]:
            file.unlink()
            with suppress(OSError):  # another process has begun here
                folder.rmdir()
        lock.release()


@contextmanager
def wait_for(path: Path, what: str) -> Iterator[None]:
    """Hold a lock, in a file beside ``path``, while ``path`` is looked up or made. Waits for a process that is making ``what``;
    has no effect on a file system without locks."""
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        print(f"Another process makes {what} now: waiting for it", file=sys.stderr, flush=True)
        lock.acquire(poll_interval=0.2)
    except OSError:
        pass
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def check_writable(folder: Path, advice: str = "give another --out") -> None:
    """Make a folder; raise a `UserError` with the ``advice`` if it cannot be written to, before hours of work are spent."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"0" * 4096)
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}): {advice}") from error
    if free < LEAST_FREE:
        raise UserError(f"{folder} is on a disk with {free / 2**20:.0f} MiB left: make room, or {advice}")
