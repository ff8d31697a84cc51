"""Measure how large a corpus fits this machine: build, open and search a BM25 index over millions of passages.

    python -m benchmarks.retrieval.large --passages 1000000

A passage is three articles of MiniWiki, 113 words on average: the length of a passage of wiki-18. Questions are MiniWiki's
too, about entities of the corpus. Apart from a name or two, their words are very frequent ("born" is in half of all passages).

Build and search run in their own processes, whose memory is measured with all pages that they map. Each opening is cold: the
files of the index are dropped from the page cache first. Ends with one line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import tyro

from agent_envs.generators.miniwiki.questions import make_question
from agent_envs.generators.miniwiki.world import World
from retrieval_index import Passage, load
from retrieval_index.progress import progress_bars

WORLD = 500_000  # entities of one world; larger corpora are several worlds
ARTICLES = 3  # in a passage
QUESTIONS = 1000
K = 10
GIB = 1 << 30


def run_watched(command: list[str]) -> tuple[float, dict[str, float]]:
    """Run a command; returns its seconds, and the peak memory of it and its children together, in GiB.

    ``resident`` counts all pages that a process maps, files too; ``anonymous`` only those that the system cannot drop.
    """
    started, peaks, done = time.perf_counter(), {"resident": 0, "anonymous": 0}, threading.Event()
    process = psutil.Popen(command)

    def watch() -> None:
        while not done.wait(0.05):
            try:
                children = process.children(recursive=True)
            except psutil.NoSuchProcess:
                children = []
            held = [memory(each.pid) for each in (process, *children)]
            for name in peaks:
                peaks[name] = max(peaks[name], sum(each[name] for each in held))

    watcher = threading.Thread(target=watch)
    watcher.start()
    status = process.wait()
    done.set()
    watcher.join()
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}")
    return time.perf_counter() - started, {f"{name}_gib": value / GIB for name, value in peaks.items()}


def memory(pid: int | str = "self") -> dict[str, int]:
    """Resident and anonymous memory of a process in bytes, from /proc; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        lines = []
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("VmRSS", "RssAnon"))}
    return {"resident": found.get("VmRSS", 0), "anonymous": found.get("RssAnon", 0)}


def drop_from_page_cache(folder: Path) -> None:
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def search(folder: str, number: int) -> dict:
    """Open and search an index in this process, which has done nothing else. The second of two rounds of queries counts."""
    from retrieval_index import kernel

    assert kernel.top_k  # imported first, so that the time of opening excludes imports
    result: dict = {}
    for how in ("fast", "full"):
        drop_from_page_cache(Path(folder))
        started = time.perf_counter()
        searcher = load(folder, verify=how)
        result[f"open_cold_{how}_s"] = time.perf_counter() - started
    for _ in range(2):
        seconds = []
        for question in make_questions(number):
            started = time.perf_counter()
            searcher.search([question], K)
            seconds.append(1e3 * (time.perf_counter() - started))
    result |= {"query_median_ms": float(np.median(seconds)), "query_p95_ms": float(np.percentile(seconds, 95))}
    return result | {f"search_{name}_gib": value / GIB for name, value in memory().items()}


def make_passages(number: int) -> Iterator[Passage]:
    """Yield the passages of the corpus, one at a time."""
    for first in range(0, number, WORLD):
        seed, recent = first // WORLD, deque[str](maxlen=ARTICLES - 1)
        for passage in World(min(WORLD, max(50, number - first)), seed, "heldout").passages():
            yield Passage(f"{seed}-{passage.id}", passage.title, " ".join([passage.text, *recent]))
            recent.append(passage.text)


def make_questions(number: int) -> list[str]:
    """Make questions of all kinds about the first world of the corpus."""
    world, rng = World(min(WORLD, number), 0, "heldout"), random.Random(0)
    kinds = ("bridge", "compositional", "comparison", "inference", "yes_no")
    return [make_question(world, kinds[i % len(kinds)], rng).question for i in range(QUESTIONS)]


def main(passages: int = 1_000_000, out: Path = Path("runs/index_scale")) -> None:
    """Build and search a BM25 index over many passages.

    Args:
        passages: number of passages in the corpus.
        out: folder for corpora (0.7 kB a passage), indexes (1 kB a passage) and results.
    """
    out.mkdir(parents=True, exist_ok=True)
    corpus, folder, part = out / f"corpus-{passages}.jsonl", out / f"index-{passages}", out / "corpus.part"
    if not corpus.exists():
        with progress_bars() as track, open(part, "w", encoding="utf-8") as file:
            for p in track(make_passages(passages), "Writing the corpus", passages):
                file.write(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n")
        part.rename(corpus)
    for old in (folder, folder.with_name(f".{folder.name}.building")):
        shutil.rmtree(old, ignore_errors=True)  # build from scratch, not from what another run left
    build = [sys.executable, "-m", "retrieval_index", "build", "--corpus", str(corpus), "--out", str(folder)]
    seconds, peaks = run_watched(build)
    result = {
        "passages": passages,
        "corpus_bytes": corpus.stat().st_size,
        "index_bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "build_s": seconds,
        **{f"build_peak_{name}": value for name, value in peaks.items()},
    }
    found = out / "search.json"
    code = (
        "import json, sys; from benchmarks.retrieval import large; "
        "json.dump(large.search(sys.argv[1], int(sys.argv[2])), open(sys.argv[3], 'w'))"
    )
    _, peaks = run_watched([sys.executable, "-c", code, str(folder), str(passages), str(found)])
    result |= json.loads(found.read_text()) | {f"search_peak_{name}": value for name, value in peaks.items()}
    print(json.dumps({name: round(value, 3) for name, value in result.items()}))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
