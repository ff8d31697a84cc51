"""One process at a time writes into a folder, and says who it is."""

import fcntl
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from trainers.runtime.errors import UserError

LOCK_FILE = ".lock"
ELSEWHERE = "give another --out"
LEAST_FREE = 2**26  # bytes: checkpoints of the tiny policy, a few times over


class FolderInUse(UserError):
    """Another process writes into the folder now; the message says which."""


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Make the folder if need be, and keep other processes from `hold_folder` of it. The system gives a lock back however a
    process ends. A folder in which nothing is left but the lock is removed again.

    A lock may not be seen on other machines that share the folder. So who held it stays in the file until it is given back
    in good order, and where that was on another machine stderr says so: it may be at work still.

    Raises:
        FolderInUse: another process holds it.
        ValueError: it cannot be written to, its disk is full, or its file system has no locks.
    """
    made = not folder.exists()
    handle = _open(folder)
    try:
        _warn_of_other_machine(folder)
        _write_holder(folder, handle)
        yield
        os.ftruncate(handle, 0)
    finally:
        if made and [path.name for path in folder.iterdir()] == [LOCK_FILE]:
            (folder / LOCK_FILE).unlink()
            with suppress(OSError):  # somebody else has begun here
                folder.rmdir()
        os.close(handle)


@contextmanager
def wait_for(path: Path, what: str) -> Iterator[None]:
    """Hold the lock of a file beside ``path`` while ``path`` is looked up or made; where another process holds it, wait, and say
    that it makes ``what`` now. Without effect on a file system without locks."""
    file, told, held = path.with_name(f".{path.name}.lock"), False, False
    while not held:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.path.samestat(os.fstat(handle), file.stat())
        except FileNotFoundError:
            pass  # removed by the process that had it until now
        except BlockingIOError:
            if not told:
                print(f"Another process makes {what} now: waiting for it", file=sys.stderr, flush=True)
            told = True
            time.sleep(0.2)
        except OSError:
            held = True
        if not held:
            os.close(handle)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(handle)


def check_writable(folder: Path, advice: str = ELSEWHERE) -> None:
    """Make a folder, and raise a ValueError, with the ``advice``, where nothing can be written to it; before hours are spent."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"0" * 4096)
        probe.unlink()
        _check_room(folder, advice)
    except OSError as error:
        raise _cannot_write(folder, error, advice) from error


def _open(folder: Path) -> int:
    """An open and locked lock file."""
    path = folder / LOCK_FILE
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise _cannot_write(folder, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except FileNotFoundError:
            pass  # removed by a process that had it until now
        except BlockingIOError:
            os.close(handle)
            holder = _describe(_read_holder(path))
            raise FolderInUse(f"{folder} is in use by {holder}: give another --out, or wait for it") from None
        except OSError as error:
            os.close(handle)
            raise UserError(
                f"{folder} is on a file system without locks ({error.strerror}), where two runs could write at once: give "
                "an --out elsewhere"
            ) from error
        os.close(handle)


def _warn_of_other_machine(folder: Path) -> None:
    holder = _read_holder(folder / LOCK_FILE)
    if holder.get("host", socket.gethostname()) != socket.gethostname():
        print(
            f"Warning: {folder} was held by {_describe(holder)}, and locks may not reach that far: if it is at work still, "
            "stop one of the two",
            file=sys.stderr,
        )


def _write_holder(folder: Path, handle: int) -> None:
    holder = {"process": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}
    try:
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(holder | {"command": " ".join(sys.argv)}).encode())
        os.fsync(handle)
        _check_room(folder)
    except OSError as error:
        raise _cannot_write(folder, error) from error


def _check_room(folder: Path, advice: str = ELSEWHERE) -> None:
    if (free := shutil.disk_usage(folder).free) < LEAST_FREE:
        raise UserError(f"{folder} is on a disk with {free / 2**20:.0f} MiB left: make room, or {advice}")


def _read_holder(path: Path) -> dict[str, object]:
    """Who holds a folder, or has held it until an end that was not in order; nothing where nobody says so."""
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return holder if isinstance(holder, dict) else {}
    except (OSError, ValueError):  # it has just begun
        return {}


def _describe(holder: dict[str, object]) -> str:
    try:
        return "process {process} on {host} since {since} ({command})".format(**holder)
    except LookupError:
        return "another process"


def _cannot_write(folder: Path, error: OSError, advice: str = ELSEWHERE) -> UserError:
    return UserError(f"cannot write to {folder} ({error.strerror}): {advice}")
