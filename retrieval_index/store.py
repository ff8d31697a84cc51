"""An index on disk is a folder with a manifest that names every file, its size and its SHA-256.

It is written beside its destination and appears there by one rename, so a build that is killed leaves the old index
as it was; and it is verified before any reader parses a byte, because the readers of native formats trust their
input. Nothing is ever unpickled.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retrieval_index.corpus import PASSAGES_FILE

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"


class IndexCorrupt(ValueError):
    """An index folder is not what was written: a file is missing, truncated, changed, or of another index."""


def save(index, folder: str | Path) -> None:
    """Write an index and its corpus to `folder`, replacing an index already there in one step.

    Raises:
        FileExistsError: `folder` exists and is not an index; it is left alone.
    """
    with publishing(folder) as staging:
        index.corpus.write(staging)
        index.write(staging)
        write_manifest(staging, index)


def write_manifest(folder: Path, index) -> None:
    """Seal a folder: record what the index is and the checksum of every file in it."""
    files = {path.name: _describe(path) for path in sorted(folder.iterdir())}
    manifest = {
        "format_version": FORMAT_VERSION,
        "backend": index.backend,
        "parameters": index.parameters,
        "corpus": {"passages": len(index.corpus), "fingerprint": files[PASSAGES_FILE]["sha256"]},
        "files": files,
    }
    (folder / MANIFEST_FILE).write_bytes(_manifest_bytes(manifest))


def read_manifest(folder: str | Path) -> dict:
    """The manifest of an index, itself verified, its files not.

    Raises:
        FileNotFoundError: there is no index here.
        IndexCorrupt: the manifest was changed, or was written by another version of the format.
    """
    folder = Path(folder)
    path = folder / MANIFEST_FILE
    if not path.is_file():
        what = "exists, but is not an index" if folder.exists() else "does not exist"
        raise FileNotFoundError(
            f"{folder} {what} (no {MANIFEST_FILE}). Build one with: "
            f"python -m retrieval_index build --corpus PASSAGES.jsonl --out {folder}"
        )
    raw = path.read_bytes()
    try:
        manifest = json.loads(raw)
        version = manifest["format_version"]
        intact = raw == _manifest_bytes({name: value for name, value in manifest.items() if name != "checksum"})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _corrupt(path, "it is not a manifest") from None
    if not intact:
        raise _corrupt(path, "its checksum does not match its content")
    if version != FORMAT_VERSION:
        raise IndexCorrupt(
            f"{path}: format version {version}, this code reads {FORMAT_VERSION}. Build the index again."
        )
    return manifest


def verify(folder: str | Path) -> dict:
    """Check every file of an index against its manifest, and return the manifest. Raises as `read_manifest` does."""
    manifest = read_manifest(folder)
    for name, expected in manifest["files"].items():
        path = Path(folder) / name
        if not path.is_file():
            raise _corrupt(path, "the file is missing")
        if path.stat().st_size != expected["bytes"]:
            raise _corrupt(path, f"{path.stat().st_size:,} bytes, expected {expected['bytes']:,}")
        if _describe(path) != expected:
            raise _corrupt(path, "its checksum does not match the manifest")
    return manifest


@contextmanager
def publishing(folder: str | Path) -> Iterator[Path]:
    """Yield an empty staging folder that becomes `folder` on leaving the block, and is removed if the block raises."""
    folder = Path(folder).absolute()
    if (
        folder.exists()
        and not (folder / MANIFEST_FILE).is_file()
        and not (folder.is_dir() and not any(folder.iterdir()))
    ):
        raise FileExistsError(
            f"{folder} exists and is not an index: it will not be overwritten. Choose another folder."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{_staging_prefix(folder)}{os.getpid()}-"))
    try:
        staging.chmod(0o777 & ~_umask())  # mkdtemp keeps others out; an index is meant to be shared
        yield staging
        if folder.exists() and any(folder.iterdir()):
            exchange(staging, folder)  # what lies in staging now is the old index
        else:
            os.rename(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def exchange(new: Path, old: Path) -> None:
    """Swap two folders in one system call where there is one (Linux renameat2, macOS renameatx_np), else in renames."""
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
    os.rename(old, aside)  # killed between these two lines, the old index is whole, under the name `aside`
    os.rename(new, old)
    os.rename(aside, new)


def _staging_prefix(folder: Path) -> str:
    return f".{folder.name}.building-{socket.gethostname()}-"


def _remove_abandoned(folder: Path) -> None:
    """Delete the staging folders of builds that were killed: those of this machine whose process is gone."""
    prefix = _staging_prefix(folder)
    for path in folder.parent.iterdir():
        process = path.name.removeprefix(prefix).split("-")[0]
        if (
            path.name.startswith(prefix)
            and not path.name.endswith(".old")
            and process.isdigit()
            and not _is_alive(int(process))
        ):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _describe(path: Path) -> dict:
    with open(path, "rb") as content:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(content, "sha256").hexdigest()}


def _manifest_bytes(manifest: dict) -> bytes:
    """The only bytes a manifest may have: canonical JSON that ends with its own checksum: no edit goes unseen."""
    checksum = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return json.dumps(manifest | {"checksum": checksum}, indent=2).encode() + b"\n"


def _corrupt(path: Path, reason: str) -> IndexCorrupt:
    return IndexCorrupt(f"{path}: {reason}. The index is damaged: copy it again, or build it again.")
