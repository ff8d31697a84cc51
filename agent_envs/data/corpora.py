"""What is searched: passages from wherever they lie, read once in a process, and again when they change."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from retrieval_index import Passage
from retrieval_index.readers import files_in, read_passages


def place_of(corpus: str | Path) -> Path | str:
    """A file or folder by its full path, a data set on the hub by its name."""
    return str(corpus) if str(corpus).startswith("hf:") else Path(corpus).expanduser().resolve()


def read_corpus(corpus: Path | str) -> tuple[Passage, ...]:
    """The passages of anything that `retrieval_index.readers.read_passages` takes.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: a row is no passage, by file and row, or there is none.
    """
    return _read(corpus, stamp(corpus, deep=True))


# Every environment of a process asks for its data: the benchmarks that share a corpus share one copy of it too.
@lru_cache(maxsize=4)
def _read(corpus: Path | str, stamps: tuple) -> tuple[Passage, ...]:
    passages = tuple(read_passages(corpus))
    if not any(passage.text.strip() for passage in passages):
        raise ValueError(f"{corpus}: there is {'no text in its passages' if passages else 'no passage in it'}")
    return passages


def stamp(place: object, deep: bool = False) -> tuple:
    """What tells whether a file, or a file of a folder (and of folders in it, if ``deep``), was changed: time and size, and its
    name there; nothing of what is not on disk."""
    path = Path(str(place or "")).expanduser()
    if not place or not path.exists():
        return ()
    if path.is_dir():
        files = sorted(files_in(path) if deep else path.iterdir())
        return tuple((str(file.relative_to(path)), *_stamp_file(file)) for file in files)
    return _stamp_file(path)


def _stamp_file(path: Path) -> tuple[int, int]:
    if not path.is_file():  # a folder, whose time says nothing of its files; a link that leads nowhere
        return 0, 0
    status = path.stat()
    return status.st_mtime_ns, status.st_size
