"""Write a folder so that it appears at its destination complete, by one rename, or not at all, and survives a power loss.

The work is done in a hidden folder beside the destination. If a killed process left such a folder, a build with the same
request continues in it; any other build deletes it.
"""

import ctypes
import errno
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from retrieval_index.durable import make_folder, sync, sync_tree, write_text

MANIFEST_FILE = "manifest.json"  # what makes a folder an index
REQUEST_FILE = "request.json"


@contextmanager
def publishing(folder: str | Path, request: dict | None = None) -> Iterator[Path]:
    """Yield a staging folder that becomes `folder` on leaving the block.

    If the block fails, the staging folder is removed. With a `request` (JSON-able) it is kept, except after a ValueError,
    and the next call with an equal request gets it as it was left.
    """
    folder = Path(folder).resolve()  # a link stays, and its target is replaced
    _check_replaceable(folder)
    make_folder(folder.parent)
    staging = folder.with_name(f".{folder.name}.building")
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise FileExistsError(f"another process is building {folder} now: wait for it") from None
    try:
        staging.mkdir(exist_ok=True)
        if request is None or _read_request(staging) != request:
            _clear(staging)
        if request is not None:
            write_text(staging / REQUEST_FILE, json.dumps(request))
        yield staging
        sync_tree(staging)
        _check_replaceable(folder)  # again: hours may have passed
        if folder.exists() and any(folder.iterdir()):
            exchange(staging, folder)  # now the old index is in `staging`
            sync(folder.parent)  # or a power loss could leave the old name without the old index
            _remove(staging)
        else:
            os.rename(staging, folder)
            sync(folder.parent)
        (folder / REQUEST_FILE).unlink(missing_ok=True)
    except BaseException as error:
        if request is None or isinstance(error, ValueError):  # a ValueError: the request was wrong
            _remove(staging)
        raise
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def is_index(folder: Path) -> bool:
    """Whether a folder has the manifest of an index."""
    try:
        return "format_version" in json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def outside_indexes(files: list[Path]) -> list[Path]:
    """List the files of a corpus that do not belong to an index in its folder."""
    indexes = {file.parent for file in files if file.name == MANIFEST_FILE and is_index(file.parent)}
    return [file for file in files if indexes.isdisjoint(file.parents)]


def _check_replaceable(folder: Path) -> None:
    """Raise a FileExistsError if a folder holds files that were not written with an index, such as notes, or if it cannot
    be replaced."""
    if os.path.ismount(folder):  # such as a volume of a container
        raise FileExistsError(f"{folder} is a mount point, which cannot be replaced: choose a folder in it")
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not is_index(folder):
        raise FileExistsError(
            f"{folder} exists and is not an index: it will not be overwritten. Choose another folder."
        )
    manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    named = {*manifest.get("files", ()), MANIFEST_FILE, REQUEST_FILE}
    found = (path for path in folder.rglob("*") if not path.is_dir() and not path.name.startswith("."))
    if others := sorted({path.relative_to(folder).as_posix() for path in found} - named):
        raise FileExistsError(
            f"{folder} is an index, but also holds other files, such as {others[0]!r}, which would be lost: "
            f"move them away, or choose another folder."
        )


def exchange(new: Path, old: Path) -> None:
    """Swap two folders by one system call if there is one (Linux renameat2, macOS renameatx_np), else by three renames."""
    at_fdcwd, flag = (-100, 2) if sys.platform == "linux" else (-2, 2)
    name = {"linux": "renameat2", "darwin": "renameatx_np"}.get(sys.platform)
    swap = getattr(ctypes.CDLL(None, use_errno=True), name, None) if name else None
    if swap is not None:
        if swap(at_fdcwd, os.fsencode(new), at_fdcwd, os.fsencode(old), ctypes.c_uint(flag)) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise OSError(code, os.strerror(code), str(old))
    aside = new.with_name(new.name + ".old")
    os.rename(old, aside)  # if killed before the next line, the old index is whole, under the name `aside`
    os.rename(new, old)
    os.rename(aside, new)


def _read_request(staging: Path) -> dict | None:
    try:
        return json.loads((staging / REQUEST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _clear(folder: Path) -> None:
    """Delete the content of a folder; the request first, so that no build continues with half of it."""
    (folder / REQUEST_FILE).unlink(missing_ok=True)
    sync(folder)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    if folder.is_dir():
        _clear(folder)
        shutil.rmtree(folder, ignore_errors=True)
