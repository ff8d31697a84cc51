"""Writes that survive a power loss: they leave either the old content or the new, never a part of it.

A rename is atomic, but the content of the file may reach the disk later: after a power loss the new name may belong to an
empty file. Therefore the content is synced before the rename, and the folder that holds the name after it.
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
    """Call `sync` on every file and folder below a folder, and on the folder itself."""
    for parent, _, files in os.walk(folder, topdown=False):
        for path in (Path(parent, name) for name in files):
            if path.is_file():  # not a broken link
                sync(path)
        sync(Path(parent))


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents so that they survive a power loss."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def publish(staging: Path, path: Path) -> None:
    """Sync the content of a file or a folder, then rename it; both survive a power loss. A file at ``path`` is replaced."""
    if staging.is_dir():
        sync_tree(staging)
    else:
        sync(staging)
    os.replace(staging, path)
    sync(path.parent)
    if staging.parent != path.parent and staging.parent.is_dir():
        sync(staging.parent)


def save_array(array, path: Path) -> None:
    """Write an .npy file. If the array is mapped from a file, as in the work folder of a build, link that if possible."""
    path.unlink(missing_ok=True)  # left by a killed build; it may be the very file that is mapped
    try:
        os.link(array.filename, path)
    except (AttributeError, TypeError, OSError):  # in memory, in another file system, or gone
        write_array(path, array)


def write_array(path: Path, array) -> None:
    """Write an .npy file. `np.save` bypasses Python's file object and may not report that a disk is full."""
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
    """Return the system's message if an error comes from a failed write (a disk that is full, read-only or gone), else None.
    It searches the texts of errors, because libraries in other languages quote this message in errors of their own."""
    cause: BaseException | None = error
    while cause is not None:
        for reason in map(os.strerror, _CANNOT_WRITE):
            if reason in str(cause):
                return reason
        cause = cause.__cause__ or cause.__context__
    return None


def set_aside(path: Path, why: str) -> Path:
    """Rename a file or a folder to `NAME.why`, to show why it is no longer used. Nothing is overwritten."""
    names = (path.with_name(f"{path.name}.{why}{number or ''}") for number in itertools.count())
    return path.rename(next(name for name in names if not name.exists()))
