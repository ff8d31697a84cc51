"""Build and open searchers, from passages or from a folder."""

import inspect
import json
import os
import shutil
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

from retrieval_index import durable, store
from retrieval_index.bm25 import BM25Index, check_constants
from retrieval_index.corpus import Corpus, Passage, write_passages
from retrieval_index.counting import count_corpus
from retrieval_index.dense import DenseIndex
from retrieval_index.duplicates import Deduplicated
from retrieval_index.encoder import Encoder, encoder_for
from retrieval_index.hybrid import HybridIndex
from retrieval_index.postings import Statistics
from retrieval_index.pretrained import PretrainedEncoder
from retrieval_index.progress import Track, progress_bars, silent
from retrieval_index.publish import MANIFEST_FILE, publishing
from retrieval_index.readers import files_in, read_passages
from retrieval_index.reference import RankBM25Index
from retrieval_index.search import Index
from retrieval_index.shards import ShardedSearcher
from retrieval_index.tokenizer import Analyzer
from retrieval_index.verified_array import SUMS

Backend = Literal["bm25", "rank-bm25", "dense", "hybrid"]
_INDEXES = {index.backend: index for index in (BM25Index, RankBM25Index, DenseIndex, HybridIndex)}
_STORED_FILE = "stored.json"  # marks that all passages are in the staging folder


def build(
    passages: Iterable[Passage] | Corpus,
    backend: Backend = "bm25",
    *,
    keep_duplicates: bool = False,
    **options,
) -> Index:
    """Build an index over passages, in memory.

    Args:
        passages: passages in the order of the rows. A `Corpus` is indexed as it is.
        keep_duplicates: keep passages whose title and text equal those of an earlier one. By default they are left
            out, and `corpus.duplicates_left_out` of the index counts them.
        backend: "bm25", "rank-bm25" (slow), "dense" (vectors in FAISS) or "hybrid" (BM25 and dense, fused).
        **options: options of the backend: `k1`, `b`, `title_weight` and `exact_title` of `BM25Index.build` ("rank-bm25" and
            "hybrid" take the last two); `encoder` and `factory` of `DenseIndex.build`, also for "hybrid".

    Raises:
        ValueError: an argument is unknown, there is nothing to index, or two different passages have one id.
    """
    index = _index_class(backend, options)
    unique = Deduplicated(passages, keep_duplicates)
    corpus = passages if isinstance(passages, Corpus) else Corpus(unique)
    if corpus is not passages:
        corpus.duplicates_left_out = unique.duplicates
    return index.build(corpus, **options)


def build_folder(
    source: str | Path,
    folder: str | Path,
    backend: Backend = "bm25",
    *,
    split: str | None = None,
    keep_duplicates: bool = False,
    shards: int = 1,
    progress: bool = False,
    **options,
) -> None:
    """Build an index folder from files or a data set, in bounded memory.

    An index at `folder` is replaced in one step when the new one is complete. Call with the same arguments to continue a
    killed build.

    Args:
        source, split: see `read_passages`.
        folder: folder of the index.
        shards: number of parts. Each is an index in its own folder; they are searched as one.
        progress: draw progress bars on standard error.
        backend, keep_duplicates, **options: see `build`.

    Raises:
        ValueError: as `build` and `read_passages` do.
        FileExistsError: `folder` exists and is not an index, or another process is building it.
    """
    index, options = _check_build(source, backend, shards, options)
    request = {
        "version": store.FORMAT_VERSION,
        "source": _describe_source(source),
        "build": [backend, split, keep_duplicates, shards],
        "options": {name: getattr(value, "parameters", value) for name, value in options.items()},
    }
    request = json.loads(json.dumps(request, default=str))
    with publishing(folder, request) as staging, progress_bars() if progress else nullcontext(silent) as track:
        if (staging / MANIFEST_FILE).is_file():
            return  # complete: an earlier build finished, but was killed or failed before publishing
        for stale in staging.rglob(f"*{SUMS}"):  # of a build that was killed before its manifest
            stale.unlink()
        work, spent = staging / "work", staging / ".work"
        shutil.rmtree(spent, ignore_errors=True)
        work.mkdir(exist_ok=True)
        home = staging if shards == 1 else work
        duplicates = _store(source, split, keep_duplicates, home, track)
        corpus = Corpus.open(home)
        corpus.duplicates_left_out = duplicates
        if shards == 1:
            built = index.build(corpus, work=work, track=track, **options)
            built.write(staging)
            stored_as, parameters = index.backend, built.parameters
        else:
            _build_shards(index, corpus, shards, staging, work, track, options)
            stored_as, parameters = ShardedSearcher.backend, {"backend": backend, "shards": shards}
        os.replace(work, spent)  # rename it first: no build may continue from half of it
        shutil.rmtree(spent, ignore_errors=True)  # NFS keeps a file that is still mapped, under a hidden name
        (staging / _STORED_FILE).unlink(missing_ok=True)
        store.seal(staging, stored_as, parameters, corpus)


def _check_build(source: str | Path, backend: Backend, shards: int, options: dict) -> tuple[Any, dict]:
    """Return the class of the index and its options. Raises for wrong arguments now, before the passages are stored."""
    index = _index_class(backend, options)
    if shards < 1 or (shards > 1 and backend in ("hybrid", "rank-bm25")):
        most = "1 for this backend" if backend in ("hybrid", "rank-bm25") else "at least 1"
        raise ValueError(f"shards must be {most}, got {shards}")
    check_constants(**{name: options[name] for name in ("k1", "b") if name in options})
    Analyzer.of(options)
    if not str(source).startswith("hf:") and not Path(source).exists():
        raise FileNotFoundError(f"there is no file or folder {source}; a data set on the hub is written hf:owner/name")
    if isinstance(options.get("encoder"), str | Path) and options["encoder"] != "svd":
        options = options | {"encoder": PretrainedEncoder(options["encoder"])}
    return index, options


def load(
    folder: str | Path,
    *,
    verify: Literal["full", "fast"] = "full",
    encoder: Encoder | str | Path | None = None,
) -> Index:
    """Open an index folder after checking its files against their checksums.

    Postings and vectors are read and verified when a search needs them, see `verified_array`.

    Args:
        verify: see `store.verify`.
        encoder: encoder of a dense or hybrid index, if its model has moved since the build.
    """
    options = {} if encoder is None else {"encoder": encoder}
    for _ in range(3):
        manifest = store.read_manifest(folder)
        try:
            searcher = _open(Path(folder).resolve(), store.verify(folder, verify), verify, options)
        except (store.IndexCorrupt, OSError):
            if store.read_manifest(folder) == manifest:
                raise
        else:
            if store.read_manifest(folder) == manifest:
                return searcher
    raise store.IndexCorrupt(f"{folder}: it was replaced again and again while it was opened")


def _open(folder: Path, manifest: dict, verify: Literal["full", "fast"], options: dict) -> Index:
    searcher: Index
    if manifest["backend"] == ShardedSearcher.backend:
        shards: list[Any] = []
        for number in range(manifest["parameters"]["shards"]):
            part = folder / f"shard-{number}"
            shards.append(_open(part, store.read_manifest(part), verify, options))
            if isinstance(shards[0], DenseIndex) and shards[0].parameters.get("encoder") != "tfidf-svd":
                options = options | {"encoder": shards[0].encoder}  # load the model only once
        if isinstance(shards[0], DenseIndex):
            for shard in shards:
                shard.encoder = shards[0].encoder
        searcher = ShardedSearcher(shards)
    else:
        if options and manifest["backend"] not in ("dense", "hybrid"):
            raise ValueError(f"{folder} is a {manifest['backend']} index, which has no encoder")
        searcher = _index_class(manifest["backend"], {}).open(
            folder, Corpus.open(folder), manifest["parameters"], **options
        )
    searcher.corpus.fingerprint = manifest["corpus"]["fingerprint"]  # otherwise computed from all passages
    searcher.corpus.duplicates_left_out = manifest["corpus"]["duplicates_left_out"]
    searcher.reopen = partial(_reopen, folder, manifest["checksum"], verify=verify, **options)
    return searcher


def _reopen(folder: Path, checksum: str, **options: Any) -> Index:
    """Load again the index that another process has open. Raises `IndexCorrupt` if it has been replaced."""
    searcher = load(folder, **options)
    if store.read_manifest(folder)["checksum"] != checksum:
        raise store.IndexCorrupt(f"{folder} holds another index than when it was opened: load it again everywhere")
    return searcher


def _index_class(backend: str, options: dict):
    if backend not in _INDEXES:
        raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}; got {backend!r}")
    index = _INDEXES[backend]
    known = inspect.signature(index.build).parameters.keys() - {"corpus", "work", "track", "statistics"}
    if unknown := options.keys() - known:
        raise ValueError(
            f"{backend} has no option {', '.join(sorted(unknown))}; it has {', '.join(sorted(known)) or 'none'}"
        )
    return index


def _store(source: str | Path, split: str | None, keep_duplicates: bool, folder: Path, track: Track) -> int:
    """Stream the source into `folder`, unless an earlier build did. Returns the number of duplicates left out."""
    done = folder / _STORED_FILE
    if done.exists():
        return json.loads(done.read_text(encoding="utf-8"))
    unique = Deduplicated(track(read_passages(source, split=split), "Storing passages", None), keep_duplicates)
    write_passages(unique, folder)
    durable.sync_tree(folder)  # the passages must be on disk before the mark
    durable.write_text(done, json.dumps(unique.duplicates))
    return unique.duplicates


def _build_shards(index, corpus: Corpus, shards: int, staging: Path, work: Path, track: Track, options: dict) -> None:
    """Build each shard as an index of its own. All shards share the BM25 statistics or the encoder."""
    if shards > len(corpus):
        raise ValueError(f"{len(corpus)} passages cannot be cut into {shards} shards")
    bounds = [len(corpus) * number // shards for number in range(shards + 1)]
    folders = [staging / f"shard-{number}" for number in range(shards)]
    works = [work / folder.name for folder in folders]
    parts = []
    for folder, own_work, (start, stop) in zip(folders, works, pairwise(bounds), strict=True):
        folder.mkdir(exist_ok=True)
        own_work.mkdir(exist_ok=True)
        write_passages(corpus.passages(start, stop), folder)
        parts.append(Corpus.open(folder))
    if index is BM25Index:
        blocks = [count_corpus(part, Analyzer.of(options), own, track) for part, own in zip(parts, works, strict=True)]
        options = options | {"statistics": Statistics.of([block for some in blocks for block in some])}
    else:
        options = options | {"encoder": encoder_for(corpus, options.get("encoder"), track)}
    for folder, own_work, part in zip(folders, works, parts, strict=True):
        built = index.build(part, work=own_work, track=track, **options)
        built.write(folder)
        store.seal(folder, index.backend, built.parameters, part)


def _describe_source(source: str | Path) -> list:
    """List the files of a source with size and time of change: a build continues only from the same source."""
    name = str(source)
    path = Path(name.removeprefix("hf:").partition(":")[0] if name.startswith("hf:") else name)
    if not path.exists():
        return [str(source)]
    files = sorted(files_in(path)) if path.is_dir() else [path]  # without an index built in it
    return [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
