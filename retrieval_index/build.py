"""From passages to a searcher, and from a folder to a searcher: the library's front door."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, get_args

from retrieval_index import store
from retrieval_index.bm25 import BM25Index
from retrieval_index.corpus import Corpus, Passage, read_jsonl, write_passages
from retrieval_index.dense import DenseIndex
from retrieval_index.progress import progress_bars, silent
from retrieval_index.reference import RankBM25Index
from retrieval_index.search import Searcher

Backend = Literal["bm25", "rank-bm25", "dense"]
_INDEXES = {index.backend: index for index in (BM25Index, RankBM25Index, DenseIndex)}


def build(passages: Iterable[Passage] | Corpus, backend: Backend = "bm25", *, progress: bool = False) -> Searcher:
    """Build an index over passages, in memory.

    Args:
        passages: rows of results count in this order.
        backend: "bm25" (bm25s, the default), "rank-bm25" (the slow reference) or "dense" (TF-IDF + SVD vectors, FAISS).
        progress: draw progress bars on standard error.

    Raises:
        ValueError: the backend is not one of these, or there is nothing to index.
    """
    index = _index_class(backend)
    corpus = passages if isinstance(passages, Corpus) else Corpus(passages)
    with progress_bars() if progress else nullcontext(silent) as track:
        return index.build(corpus, track=track)


def build_folder(source: str | Path, folder: str | Path, backend: Backend = "bm25", *, progress: bool = False) -> None:
    """Build an index folder from a JSONL file (see `read_jsonl`), without ever holding all its passages in memory.

    An index already at `folder` is replaced in one step when the new one is complete.

    Raises:
        ValueError: a row of the file is bad, or there is nothing to index.
        FileExistsError: `folder` exists and is not an index.
    """
    index = _index_class(backend)
    with store.publishing(folder) as staging, progress_bars() if progress else nullcontext(silent) as track:
        write_passages(track(read_jsonl(source), "Storing passages", None), staging)
        built = index.build(Corpus.open(staging), track=track)
        built.write(staging)
        store.write_manifest(staging, built)


def load(folder: str | Path) -> Searcher:
    """Open an index folder, memory-mapped, after checking every file against its checksum.

    Raises:
        FileNotFoundError: there is no index at `folder`.
        IndexCorrupt: a file is missing or is not what was written.
    """
    manifest = store.verify(folder)
    index = _index_class(manifest["backend"])
    folder = Path(folder).resolve()
    searcher = index.open(folder, Corpus.open(folder), manifest["parameters"])
    searcher.folder = folder
    return searcher


def _index_class(backend: str):
    if backend not in _INDEXES:
        raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}; got {backend!r}")
    return _INDEXES[backend]
