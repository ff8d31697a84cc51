"""Counting the words of a corpus, block by block.

Blocks are independent, so several processes can count them, and a killed build continues with the blocks on disk.

A term is identified by its key, the 16-byte BLAKE2b hash of the term. Keys form a flat sorted array that is searched by
bisection. For ten million terms, the probability that any two share a key is 1 in 10²⁴.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from retrieval_index.corpus import Corpus
from retrieval_index.postings import KEY, Block
from retrieval_index.progress import Track
from retrieval_index.tokenizer import Analyzer
from retrieval_index.verified_array import usable_cores, usable_memory

BLOCK = 100_000  # passages
_WORKER = "import sys; from retrieval_index.counting import count_blocks; count_blocks(*sys.argv[1:])"


def keys_of(terms: Iterable[str]) -> np.ndarray:
    """Return the keys of terms, S16 [n terms]."""
    return np.array([blake2b(term.encode(), digest_size=16).digest() for term in terms], KEY)


def count_terms(passages: Iterable[list[str]]) -> Block:
    """Count the terms of passages, each given as the list of its terms."""
    vocabulary: dict[str, int] = {}
    tokens: list[np.ndarray] = []
    for passage_terms in passages:
        numbers = [vocabulary.setdefault(term, len(vocabulary)) for term in passage_terms]
        tokens.append(np.array(numbers, np.int32))
    keys = keys_of(vocabulary)
    order = np.argsort(keys)
    rank = np.empty(len(keys), np.int64)
    rank[order] = np.arange(len(keys))
    lengths = np.array(list(map(len, tokens)), np.int32)
    passage = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    pairs = rank[np.concatenate(tokens)] * len(lengths) + passage if len(keys) else np.zeros(0, np.int64)
    pairs, frequencies = np.unique(pairs, return_counts=True)
    terms, rows = np.divmod(pairs, max(len(lengths), 1))
    starts = np.searchsorted(terms, np.arange(len(keys) + 1))
    return Block(keys[order], starts, rows.astype(np.int32), frequencies.astype(np.int32), lengths)


def count_corpus(corpus: Corpus, analyzer: Analyzer, work: Path | None, track: Track) -> list[Callable[[], Block]]:
    """Count the terms of all passages. Returns functions that open the blocks, in order.

    With a folder `work`, the blocks are written there and existing ones are kept; for a corpus on disk, one process per
    CPU core counts them. Without `work`, this process counts them and holds them in memory.
    """
    starts = range(0, len(corpus) or 1, BLOCK)  # an empty corpus has one block, too
    if work is None:
        blocks = [
            _count_block(corpus, analyzer, BLOCK, start) for start in track(starts, "Counting words", len(starts))
        ]
        return [partial(lambda block: block, block) for block in blocks]
    folders = [work / f"block-{start}" for start in starts]
    missing = [start for start, folder in zip(starts, folders, strict=True) if not folder.exists()]
    if missing:
        list(track(_count_in_processes(corpus, analyzer, work, missing), "Counting words", len(missing)))
    return [partial(Block.open, folder) for folder in folders]


def _count_block(corpus: Corpus, analyzer: Analyzer, size: int, start: int) -> Block:
    return count_terms(analyzer.passage_terms(p.title, p.text) for p in corpus.passages(start, start + size))


def _count_in_processes(corpus: Corpus, analyzer: Analyzer, work: Path, starts: list[int]) -> Iterable[int]:
    """Count blocks in subprocesses and yield the start of each block when it is done. `multiprocessing` is not used,
    because it would run the caller's main module again in each process."""
    n_workers = min(len(starts), usable_cores(), max(1, usable_memory() >> 30))  # each may take half a GiB
    if n_workers == 1 or corpus.folder is None:  # subprocesses cannot read a corpus in memory
        for start in starts:
            _count_block(corpus, analyzer, BLOCK, start).write(work / f"block-{start}")
            yield start
        return
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # finds this package where this process did
    own = [str(corpus.folder), str(work), json.dumps(analyzer.parameters), str(BLOCK)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment}
    shares = [[*map(str, starts[number::n_workers])] for number in range(n_workers)]
    workers = [subprocess.Popen([sys.executable, "-c", _WORKER, *own, *share], **pipes) for share in shares]
    try:
        for worker in workers:
            yield from map(int, worker.stdout or ())
        if any([worker.wait() for worker in workers]):
            raise ChildProcessError("a process that counted words has failed; its message is above")
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def count_blocks(folder: str, work: str, parameters: str, size: str, *starts: str) -> None:
    """Count blocks in a worker process. It exits when its parent ends for any reason, which closes its standard input."""
    threading.Thread(target=lambda: os.read(0, 1) or os._exit(1), daemon=True).start()
    corpus, analyzer = Corpus.open(folder), Analyzer.of(json.loads(parameters))
    for start in map(int, starts):
        _count_block(corpus, analyzer, int(size), start).write(Path(work) / f"block-{start}")
        print(start, flush=True)
