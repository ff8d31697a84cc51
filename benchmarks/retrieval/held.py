"""What does it cost a query, and the memory of several processes, that an index is verified and held?

    python -m benchmarks.retrieval.held --corpus passages.jsonl

One index is opened twice: as `load` opens it, and with its postings and terms memory-mapped and its passages unchecked, as they
were before. The same queries, made of passages, are asked of both in turns; then of several processes at once, each with its own
index. Ends with one line of JSON. In microseconds a query: when each is asked for the first time, and the least that each took
after that. In MiB a process: what opening the index and all queries added, where what processes share counts once for all.
"""

import itertools
import json
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

import retrieval_index
from retrieval_index import BM25Index, Passage, bm25


@dataclass(kw_only=True)
class Args:
    """Compare a verified index with a mapped one."""

    corpus: Path
    """Passages, JSONL."""
    passages: int = 15_000
    """How many of them."""
    queries: int = 400
    """How many queries."""
    rounds: int = 30
    """How often they are asked of each."""
    processes: int = 3
    """How many search at once."""


def mapped(folder: Path) -> BM25Index:
    """The index as a memory map, unverified."""
    index = retrieval_index.load(folder)
    assert isinstance(index, BM25Index)
    arrays = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in bm25.FILES]
    plain = BM25Index(index.corpus, arrays[0], tuple(arrays[1:]), index.parameters)
    plain._held[0][:] = True  # nothing has to be read
    index.corpus._rows._sums = None  # type: ignore[union-attr]
    return plain


def times(searcher: BM25Index, queries: list[str]) -> np.ndarray:
    """Microseconds of each query, asked one after the other: of the processor, so that other work does not count."""
    found = []
    for query in queries:
        begin = time.thread_time()
        searcher.search([query], k=3)
        found.append(1e6 * (time.thread_time() - begin))
    return np.array(found)


def memory(opened: Callable, folder: Path, queries: list[str], processes: int) -> float:
    """MiB that a process takes to open an index and search it, beside others that do the same."""
    context = multiprocessing.get_context("spawn")
    together, found = context.Barrier(processes), context.Queue()
    begun = [context.Process(target=_search, args=(opened, folder, queries, together, found)) for _ in range(processes)]
    for process in begun:
        process.start()
    taken = [found.get() for _ in begun]
    for process in begun:
        process.join()
    return sum(taken) / processes


def _search(opened: Callable, folder: Path, queries: list[str], together, found) -> None:
    retrieval_index.build([Passage("0", "warm", "up")]).search(["warm up"], k=1)
    together.wait()
    before = _share()
    together.wait()
    searcher = opened(folder)
    times(searcher, queries)
    together.wait()
    after = _share()
    together.wait()
    found.put(after - before)


def _share() -> float:
    """MiB of this process; a page that n processes have counts as 1/n."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main(args: Args) -> None:
    """Build, measure, print."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "index"
        passages = list(itertools.islice(retrieval_index.read_jsonl(args.corpus), args.passages))
        retrieval_index.build(passages).save(folder)
        drawn = random.Random(0).choices(passages, k=args.queries)
        queries = [f"{p.title} {' '.join(p.text.split()[:8])}" for p in drawn]
        plain, held = mapped(folder), retrieval_index.load(folder)
        assert isinstance(held, BM25Index)
        plain.search(["warm up"], k=1)
        both = {"mapped": plain, "held": held}
        first = {name: times(searcher, queries) for name, searcher in both.items()}
        least = dict(first)
        for _ in range(args.rounds):
            for name, searcher in both.items():
                least[name] = np.minimum(least[name], times(searcher, queries))
        both_ways = {"mapped": mapped, "held": retrieval_index.load}
        taken = {name: memory(opened, folder, queries, args.processes) for name, opened in both_ways.items()}
    result = {"first": first, "after": least, "MiB": taken}
    print(
        json.dumps({when: {n: round(float(np.mean(t)), 1) for n, t in each.items()} for when, each in result.items()})
    )


if __name__ == "__main__":
    main(tyro.cli(Args))
