"""Blocks of counted words, merged into one scored index in bounded memory.

The merge goes through the terms in slices, with one slice of all blocks in memory at a time. An index made of many blocks
equals that of a single block bit for bit. Shards scored with the statistics of all shards give the scores of one index.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np

from retrieval_index import durable
from retrieval_index.progress import Track

KEY = "S16"
SLICE = 8_000_000  # postings that a merge holds at a time, some 40 bytes each
_FILES = ("keys", "starts", "rows", "frequencies", "lengths")


@dataclass(frozen=True, slots=True)
class Block:
    """The counted words of consecutive passages."""

    keys: np.ndarray  # S16 [n terms], ascending
    starts: np.ndarray  # int64 [n terms + 1], where the postings of each term begin
    rows: np.ndarray  # int32 [n postings], the passage of each, counted from the block's first; ascending within a term
    frequencies: np.ndarray  # int32 [n postings], how often the passage has the term
    lengths: np.ndarray  # int32 [n passages], words of each passage

    def write(self, folder: Path) -> None:
        """Write the block as a folder, which appears complete or not at all."""
        staging = folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.rmtree(staging, ignore_errors=True)  # left by a killed process with the same id
        staging.mkdir()
        for name in _FILES:
            durable.write_array(staging / f"{name}.npy", getattr(self, name))
        durable.publish(staging, folder)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Memory-map what `write` wrote. Drop the block soon: pages that were read count as memory of the process."""
        return cls(*(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _FILES))


@dataclass(frozen=True, slots=True)
class Statistics:
    """BM25's statistics of a whole corpus, for indexing any part of it."""

    keys: np.ndarray  # S16 [n terms], ascending
    document_frequencies: np.ndarray  # int64 [n terms], passages that hold each term
    passages: int  # number of passages
    words: int  # number of words in all passages together

    @classmethod
    def of(cls, blocks: list[Callable[[], Block]]) -> Self:
        """Compute the statistics of blocks: of one shard, or of all."""
        keys = np.zeros(0, KEY)
        for start in range(0, len(blocks), 16):  # a few blocks at a time: most keys are in many blocks
            some = [np.asarray(open_block().keys) for open_block in blocks[start : start + 16]]
            keys = np.unique(np.concatenate([keys, *some]))
        frequencies, passages, words = np.zeros(len(keys), np.int64), 0, 0
        for block in (open_block() for open_block in blocks):
            frequencies[np.searchsorted(keys, block.keys)] += np.diff(block.starts)
            passages += len(block.lengths)
            words += int(block.lengths.sum(dtype=np.int64))
        return cls(keys, frequencies, passages, words)


def merge(
    blocks: list[Callable[[], Block]],
    statistics: Statistics | None,
    k1: float,
    b: float,
    folder: Path | None,
    track: Track,
) -> tuple[np.ndarray, ...]:
    """Score every posting.

    Args:
        blocks: functions that open each block, in the order of the passages.
        statistics: those of the whole corpus, if the blocks are a shard of it.
        folder: folder to which the postings are streamed; None keeps them in memory.

    Returns:
        The arrays of a `BM25Index`; scores and rows are memory-mapped from `folder` if it is given.
    """
    own = Statistics.of(blocks)
    statistics = statistics or own
    if not len(statistics.keys):
        raise ValueError(
            f"nothing to index: none of the {statistics.passages} passages holds a word that is not a stop word"
        )
    frequencies = statistics.document_frequencies[np.searchsorted(statistics.keys, own.keys)]
    idf = np.log1p((statistics.passages - frequencies + 0.5) / (frequencies + 0.5))
    lengths = [np.array(open_block().lengths) for open_block in blocks]
    norms = k1 * (1 - b + b * (np.concatenate(lengths) * (statistics.passages / statistics.words)))
    first_rows = np.concatenate(([0], np.cumsum([len(part) for part in lengths])))[:-1]
    terms_of = [np.searchsorted(own.keys, np.asarray(open_block().keys)).astype(np.int32) for open_block in blocks]
    starts = np.concatenate(([0], np.cumsum(own.document_frequencies)))

    maxima = np.empty(len(own.keys), np.float32)
    sinks = [_Sink(folder, name, dtype, int(starts[-1])) for name, dtype in (("scores", "<f4"), ("rows", "<i4"))]
    # Term numbers that cut the postings into slices of about `SLICE`; a single term may be larger.
    firsts = np.unique(np.searchsorted(starts[:-1], np.arange(0, starts[-1], SLICE), side="right") - 1)
    cuts = [*firsts.tolist(), len(own.keys)]
    for low, high in track(list(pairwise(cuts)), "Scoring postings", len(cuts) - 1):
        rows, frequencies = _read_slice(blocks, terms_of, first_rows, starts[low : high + 1], low)
        scores = np.repeat(idf[low:high], own.document_frequencies[low:high])
        scores = (scores * (frequencies / (frequencies + norms[rows]))).astype(np.float32)
        maxima[low:high] = np.maximum.reduceat(scores, starts[low:high] - starts[low])
        for sink, part in zip(sinks, (scores, rows), strict=True):
            sink.append(part)
    scores, rows = (sink.close() for sink in sinks)
    return own.keys, scores, rows, starts, maxima


def _read_slice(blocks, terms_of, first_rows, starts: np.ndarray, low: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the rows and frequencies of consecutive terms from all blocks; the first term has number `low`."""
    rows = np.empty(starts[-1] - starts[0], np.int32)
    frequencies = np.empty(len(rows), np.int32)
    fill = starts[:-1] - starts[0]  # where the next posting of each term goes
    for open_block, terms, first_row in zip(blocks, terms_of, first_rows, strict=True):
        a, b = np.searchsorted(terms, (low, low + len(fill)))
        if a == b:
            continue
        block = open_block()
        bounds = np.asarray(block.starts[a : b + 1])
        counts = np.diff(bounds)
        into = np.repeat(fill[terms[a:b] - low] - bounds[:-1], counts) + np.arange(bounds[0], bounds[-1])
        rows[into] = block.rows[bounds[0] : bounds[-1]] + np.int32(first_row)
        frequencies[into] = block.frequencies[bounds[0] : bounds[-1]]
        fill[terms[a:b] - low] += counts
    return rows, frequencies


class _Sink:
    """An array written from beginning to end: into memory, or into an .npy file, which `close` maps."""

    def __init__(self, folder: Path | None, name: str, dtype: str, length: int):
        self.path = folder / f"{name}.npy" if folder else None
        if self.path is None:
            self.array, self.filled = np.empty(length, dtype), 0
        else:
            self.file = open(self.path, "wb")  # noqa: SIM115 - closed by close
            header = {"descr": dtype, "fortran_order": False, "shape": (length,)}
            np.lib.format.write_array_header_1_0(self.file, header)

    def append(self, part: np.ndarray) -> None:
        if self.path is None:
            self.array[self.filled : self.filled + len(part)] = part
            self.filled += len(part)
        else:
            self.file.write(np.ascontiguousarray(part).data)  # `tofile` does not notice a full disk

    def close(self) -> np.ndarray:
        if self.path is None:
            return self.array
        self.file.close()
        return np.load(self.path, mmap_mode="r", allow_pickle=False)
