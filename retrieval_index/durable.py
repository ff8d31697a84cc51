"""Writing so that a power loss leaves what was there before or what is there after, never a half.

A rename is atomic, but does not decide when the content of the file reaches the disk: after a power loss the new name may
stand for an empty file. So content goes to the disk before the rename, and the folder that holds the name after it.
"""

import errno
import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """`sync` of every file and folder below a folder, and of itself."""
    for parent, _, files in os.walk(folder, topdown=False):
        for path in (Path(parent, name) for name in files):
            if path.is_file():  # no broken link
                sync(path)
        sync(Path(parent))


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where they are missing, for good."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def publish(staging: Path, path: Path) -> None:
    """Give a file or a folder its name for good: its content first, then the name. A file of that name is replaced."""
    if staging.is_dir():
        sync_tree(staging)
    else:
        sync(staging)
    os.replace(staging, path)
    sync(path.parent)
    if staging.parent != path.parent and staging.parent.is_dir():
        sync(staging.parent)


def save_array(array, path: Path) -> None:
    """Write an .npy file. One that is mapped, as those in the work folder of a build, gets a second name if it can."""
    path.unlink(missing_ok=True)  # of a build that was killed: it may be the very file that is mapped
    try:
        os.link(array.filename, path)
    except (AttributeError, TypeError, OSError):  # in memory, in another file system, or gone
        write_array(path, array)


def write_array(path: Path, array) -> None:
    """Write an .npy file. `np.save` writes past Python: it misses that a disk is full, or does not say so."""
    with open(path, "wb") as file:
        np.lib.format.write_array(SimpleNamespace(write=file.write), np.asanyarray(array), allow_pickle=False)


def write_text(path: Path, text: str) -> None:
    """Write a file in one step that survives a power loss."""
    staging = path.with_name(f".{path.name}.{os.getpid()}.staging")  # another process may write it too
    try:
        staging.write_text(text, encoding="utf-8")
        publish(staging, path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise


def find_write_failure(error: BaseException) -> str | None:
    """What the system said about writing, if an error comes from that: a disk that is full, read-only or gone. Libraries in
    other languages pass it on in the text of errors of their own."""
    cause: BaseException | None = error
    while cause is not None:
        for reason in map(os.strerror, _CANNOT_WRITE):
            if reason in str(cause):
                return reason
        cause = cause.__cause__ or cause.__context__
    return None


def set_aside(path: Path, why: str) -> Path:
    """Give a file or a folder another name, which shows why it is no longer in use; nothing is written over."""
    names = (path.with_name(f"{path.name}.{why}{number or ''}") for number in itertools.count())
    return path.rename(next(name for name in names if not name.exists()))
