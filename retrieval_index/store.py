"""The form of an index on disk: a folder with a manifest that names every file, its size and its SHA-256.

The files are verified before any reader parses a byte. Nothing is ever unpickled.
"""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from retrieval_index.corpus import Corpus, write_line_sums
from retrieval_index.durable import publish, sync_tree
from retrieval_index.publish import MANIFEST_FILE, REQUEST_FILE
from retrieval_index.verified_array import IndexCorrupt, write_sums

FORMAT_VERSION = 5
SMALL = 1 << 22  # bytes; files up to this size are read in full even when verified "fast"
_SAMPLES, _SAMPLE = 64, 1 << 14


def seal(folder: Path, backend: str, parameters: dict, corpus: Corpus) -> None:
    """Write the manifest, with the description of the index and the checksum of every file in the folder and below it.
    Before the manifest, write the checksums of the blocks of the files that searches read."""
    with ThreadPoolExecutor() as pool:
        blockwise = [path for path in _files(folder) if path.suffix in (".npy", ".faiss", ".json")]
        list(pool.map(write_sums, [path for path in blockwise if path.parent == folder]))  # shards have their own
        write_line_sums(folder)
        paths = _files(folder)
        described = list(pool.map(_describe, paths))
    manifest = {
        "format_version": FORMAT_VERSION,
        "backend": backend,
        "parameters": parameters,
        "corpus": {
            "passages": len(corpus),
            "duplicates_left_out": corpus.duplicates_left_out,
            "fingerprint": corpus.fingerprint,
        },
        "files": {path.relative_to(folder).as_posix(): file for path, file in zip(paths, described, strict=True)},
    }
    sync_tree(folder)
    half = folder / f".{MANIFEST_FILE}"
    half.write_bytes(_manifest_bytes(manifest))
    publish(half, folder / MANIFEST_FILE)  # last, so that a folder with a manifest is complete


def _files(folder: Path) -> list[Path]:
    """List the files of an index, without its manifest, which a build that was killed at its end may have left."""
    own = {folder / REQUEST_FILE, folder / MANIFEST_FILE}
    return sorted(p for p in folder.rglob("*") if p.is_file() and p not in own and not p.name.startswith("."))


def read_manifest(folder: str | Path) -> dict:
    """Read and verify the manifest of an index, but not its files. Raises FileNotFoundError or `IndexCorrupt`."""
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
        raise IndexCorrupt(f"{path}: format version {version}, this code reads {FORMAT_VERSION}: build the index again")
    return manifest


def verify(folder: str | Path, how: Literal["full", "fast"] = "full") -> dict:
    """Check every file of an index against its manifest, and return the manifest. Raises as `read_manifest` does.

    "full" reads every file in full. "fast" does so for files up to 4 MB; of a larger file it checks the size and 64 samples of
    16 KiB, including its beginning and end. "fast" finds files that are missing, cut off, exchanged or from another index. It
    may miss a single changed byte in the middle of a large file.
    """
    if how not in ("full", "fast"):
        raise ValueError(f"verify must be 'full' or 'fast', got {how!r}")
    manifest = read_manifest(folder)
    with ThreadPoolExecutor() as pool:
        for problem in pool.map(lambda file: _problem(Path(folder) / file[0], file[1], how), manifest["files"].items()):
            if problem:
                raise problem
    return manifest


def _problem(path: Path, expected: dict, how: str) -> IndexCorrupt | None:
    if not path.is_file():
        return _corrupt(path, "the file is missing")
    size = path.stat().st_size
    if size != expected["bytes"]:
        return _corrupt(path, f"{size:,} bytes, expected {expected['bytes']:,}")
    intact = _sample(path) == expected["sample"] if size > SMALL and how == "fast" else _describe(path) == expected
    return None if intact else _corrupt(path, "its checksum does not match the manifest")


def _describe(path: Path) -> dict:
    size = path.stat().st_size
    with open(path, "rb") as content:
        described = {"bytes": size, "sha256": hashlib.file_digest(content, "sha256").hexdigest()}
    return described | ({"sample": _sample(path)} if size > SMALL else {})


def _sample(path: Path) -> str:
    """SHA-256 of pieces spread evenly over a file, from its beginning to its end."""
    digest, last = hashlib.sha256(), path.stat().st_size - _SAMPLE
    with open(path, "rb", buffering=0) as content:
        for number in range(_SAMPLES):
            content.seek(last * number // (_SAMPLES - 1))
            digest.update(content.read(_SAMPLE))
    return digest.hexdigest()


def _manifest_bytes(manifest: dict) -> bytes:
    """Return the only valid bytes of a manifest: canonical JSON that ends with its checksum, so that any edit is found."""
    checksum = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return json.dumps(manifest | {"checksum": checksum}, indent=2).encode() + b"\n"


def _corrupt(path: Path, reason: str) -> IndexCorrupt:
    return IndexCorrupt(f"{path}: {reason}. The index is damaged: copy it again, or build it again.")
