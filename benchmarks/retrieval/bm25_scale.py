"""How large a corpus fits this machine: build, open and search a BM25 index over millions of passages.

    python -m benchmarks.retrieval.bm25_scale --passages 1000000
    python -m benchmarks.retrieval.bm25_scale --passages 5000000
    python -m benchmarks.retrieval.bm25_scale --project 21000000

The passages are MiniWiki's, three articles each, 113 words on average: the length of a passage of wiki-18. Questions
are MiniWiki's too, about entities of the corpus; their words are as frequent as can be ("born" is in half of all
passages), beside a name or two. Build and search run in processes of their own, whose memory is measured with all pages
that they map. The first opening is cold: the files of the index are dropped from the page cache before.

`--project` reads the results of the other runs and carries them on in a straight line. Each run ends with one line of
JSON.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
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
GIB = 1 << 30


@dataclass(kw_only=True)
class Args:
    """Build and search an index over many passages, or project such runs to a larger size."""

    passages: int = 1_000_000
    """Passages of the corpus."""
    project: int | None = None
    """In place of a run: carry the results in --out on to so many passages."""
    bm25s: bool = False
    """Also index the same corpus with bm25s, in memory. It takes 7 GB for 1 M passages."""
    out: Path = Path("runs/index_scale")
    """Folder for corpora (0.7 kB a passage), indexes (1 kB a passage) and results."""


def passages(number: int) -> Iterator[Passage]:
    """The corpus, one passage at a time."""
    for first in range(0, number, WORLD):
        seed, recent = first // WORLD, deque(maxlen=ARTICLES - 1)
        for passage in World(min(WORLD, max(50, number - first)), seed, "heldout").passages():
            yield Passage(f"{seed}-{passage.id}", passage.title, " ".join([passage.text, *recent]))
            recent.append(passage.text)


def questions(number: int) -> list[str]:
    """Questions about the first world of the corpus, of all kinds."""
    world, rng = World(min(WORLD, number), 0, "heldout"), random.Random(0)
    kinds = ("bridge", "compositional", "comparison", "inference", "yes_no")
    return [make_question(world, kinds[i % len(kinds)], rng).question for i in range(QUESTIONS)]


def write_corpus(path: Path, number: int) -> None:
    """Write the corpus as JSONL, once."""
    if path.exists():
        return
    half = path.with_suffix(".part")
    with progress_bars() as track, open(half, "w", encoding="utf-8") as file:
        for p in track(passages(number), "Writing the corpus", number):
            file.write(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n")
    half.rename(path)


def run_watched(command: list[str]) -> tuple[float, dict[str, int]]:
    """Run a command; its seconds, and the most memory that it and its children held at once, in bytes.

    `resident` counts all pages that a process maps, files too, and shared ones for each process; `anonymous` what the
    system could not drop.
    """
    started, peaks, done = time.perf_counter(), {"resident": 0, "anonymous": 0}, threading.Event()
    process = psutil.Popen(command)

    def watch() -> None:
        while not done.wait(0.05):
            sums = {"resident": 0, "anonymous": 0}
            for each in [process, *_children(process)]:
                for name, value in memory(each.pid).items():
                    sums[name] += value
            for name, value in sums.items():
                peaks[name] = max(peaks[name], value)

    watcher = threading.Thread(target=watch)
    watcher.start()
    status = process.wait()
    done.set()
    watcher.join()
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}")
    return time.perf_counter() - started, peaks


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def memory(pid: int | str = "self") -> dict[str, int]:
    """Resident and anonymous memory of a process in bytes, from /proc; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {"resident": 0, "anonymous": 0}
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("VmRSS", "RssAnon"))}
    return {"resident": found.get("VmRSS", 0), "anonymous": found.get("RssAnon", 0)}


def drop_from_page_cache(folder: Path) -> None:
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_search(folder: Path, asked: list[str]) -> dict:
    """Open and search in this process, which has done nothing else."""
    load_kernel()
    result = {}
    for how in ("fast", "full"):
        drop_from_page_cache(folder)
        started = time.perf_counter()
        searcher = load(folder, verify=how)
        result[f"open_cold_{how}_s"] = time.perf_counter() - started
    found = searcher.search(asked[:1], 10)  # numba loads its compiled code
    assert found[0]
    times = {1: [], 10: []}
    for k, seconds in times.items():
        for question in asked:
            started = time.perf_counter()
            searcher.search([question], k)
            seconds.append(time.perf_counter() - started)
    milliseconds = np.array(times[10]) * 1e3
    result |= {
        "query_first_pass_k1_ms": float(np.median(times[1]) * 1e3),
        "query_median_ms": float(np.median(milliseconds)),
        "query_p95_ms": float(np.percentile(milliseconds, 95)),
        "query_max_ms": float(milliseconds.max()),
    }
    now = memory()
    return result | {"search_resident_gib": now["resident"] / GIB, "search_anonymous_gib": now["anonymous"] / GIB}


def load_kernel() -> None:
    """Import what the first search needs, so that opening an index is what is measured and not Python's imports."""
    from retrieval_index import kernel

    assert kernel.top_k


def bm25s_of(corpus: Path, asked: list[str]) -> None:
    """The same corpus in bm25s, in this process; prints its figures."""
    import bm25s

    from retrieval_index.readers import read_passages
    from retrieval_index.tokenizer import Analyzer

    analyzer, started = Analyzer(), time.perf_counter()
    engine = bm25s.BM25(backend="numba")
    engine.index([analyzer.passage_terms(p.title, p.text) for p in read_passages(corpus)])
    built, seconds = time.perf_counter() - started, []
    engine.retrieve([analyzer.query_terms(asked[0])], k=10, show_progress=False)
    for question in asked:
        started = time.perf_counter()
        engine.retrieve([analyzer.query_terms(question)], k=10, show_progress=False)
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"build_s": built, "query_median_ms": float(np.median(seconds) * 1e3)}))


def run(args: Args) -> dict:
    args.out.mkdir(parents=True, exist_ok=True)
    corpus, folder = args.out / f"corpus-{args.passages}.jsonl", args.out / f"index-{args.passages}"
    asked = args.out / f"questions-{args.passages}.json"
    write_corpus(corpus, args.passages)
    asked.write_text(json.dumps(questions(args.passages)))
    for old in (folder, folder.with_name(f".{folder.name}.building")):
        shutil.rmtree(old, ignore_errors=True)  # from nothing, and not from what another run had left
    build = [sys.executable, "-m", "retrieval_index", "build", "--corpus", str(corpus), "--out", str(folder)]
    seconds, peaks = run_watched(build)
    result = {
        "passages": args.passages,
        "corpus_bytes": corpus.stat().st_size,
        "index_bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "build_s": seconds,
        "build_peak_resident_gib": peaks["resident"] / GIB,
        "build_peak_anonymous_gib": peaks["anonymous"] / GIB,
    }
    result |= _in_new_process("measure_search", folder, asked)
    if args.bm25s:
        output = args.out / "bm25s.json"
        seconds, peaks = run_watched([*_call("bm25s_of", corpus, asked), str(output)])
        peer = json.loads(output.read_text()) | {"peak_resident_gib": peaks["resident"] / GIB}
        result["bm25s"] = peer
        result["build_over_bm25s"] = result["build_s"] / peer["build_s"]
        result["query_over_bm25s"] = result["query_median_ms"] / peer["query_median_ms"]
    (args.out / f"result-{args.passages}.json").write_text(json.dumps(result))
    return result


def _call(function: str, path: Path, asked: Path) -> list[str]:
    code = (
        f"import json, sys; from pathlib import Path; from benchmarks.retrieval import bm25_scale; "
        f"sys.stdout = open(sys.argv[1], 'w') if len(sys.argv) > 1 else sys.stdout; "
        f"r = bm25_scale.{function}(Path({str(path)!r}), json.loads(Path({str(asked)!r}).read_text())); "
        "r and print(json.dumps(r))"
    )
    return [sys.executable, "-c", code]


def _in_new_process(function: str, path: Path, asked: Path) -> dict:
    done = subprocess.run(_call(function, path, asked), check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def project(args: Args) -> dict:
    """Carry every figure on in a straight line through the smallest and the largest run."""
    runs = [json.loads(path.read_text()) for path in args.out.glob("result-*.json")]
    runs.sort(key=lambda run: run["passages"])
    if len(runs) < 2:
        raise ValueError(f"{args.out} holds {len(runs)} results; run two sizes first")
    small, large = runs[0], runs[-1]
    share = (args.project - small["passages"]) / (large["passages"] - small["passages"])
    names = [
        name for name, value in small.items() if isinstance(value, int | float) and name in large and name != "passages"
    ]
    projected = {name: small[name] + share * (large[name] - small[name]) for name in names}
    return {"passages": args.project, "projected_from": [small["passages"], large["passages"]], **projected}


def main(args: Args) -> dict:
    result = project(args) if args.project else run(args)
    print(json.dumps({name: round(v, 3) if isinstance(v, float) else v for name, v in result.items()}))
    return result


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
