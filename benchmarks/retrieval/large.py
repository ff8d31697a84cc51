"""How large a corpus fits this machine: build, open and search an index over millions of passages, or of vectors.

    python -m benchmarks.retrieval.large bm25 --passages 1000000
    python -m benchmarks.retrieval.large dense --vectors 5000000 --factory RR,IVF4096,RaBitQ

Passages are MiniWiki's, three articles each, 113 words on average: the length of a passage of wiki-18. Questions are
MiniWiki's too, about entities of the corpus; their words are as frequent as can be ("born" is in half of all passages),
beside a name or two.

Vectors are unit vectors made from a seed: what is measured is `retrieval_index.vectors`, all that `DenseIndex` does
after encoding. They lie around many centres in a space of 64 dimensions with a decaying spectrum, with a little noise in
all, as embeddings of text do.

Build and search run in processes of their own, whose memory is measured with all pages that they map. The first opening
is cold: the files of the index are dropped from the page cache before. Ends with one line of JSON.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
import tyro

from agent_envs.generators.miniwiki.questions import make_question
from agent_envs.generators.miniwiki.world import World
from retrieval_index import Passage, load, vectors
from retrieval_index.progress import progress_bars

WORLD = 500_000  # entities of one world; larger corpora are several worlds
ARTICLES = 3  # in a passage
QUESTIONS = 1000
LATENT, PER_CLUSTER = 64, 50
K = 10
GIB = 1 << 30
app = tyro.extras.SubcommandApp()


# -- what both measure -------------------------------------------------------------------------------------------------


def run_watched(command: list[str]) -> tuple[float, dict[str, float]]:
    """Run a command; its seconds, and the most memory that it and its children held at once, in GiB.

    `resident` counts all pages that a process maps, files too; `anonymous` what the system could not drop.
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
    """Resident and anonymous memory of a process in bytes, from /proc; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        lines = []
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("VmRSS", "RssAnon"))}
    return {"resident": found.get("VmRSS", 0), "anonymous": found.get("RssAnon", 0)}


def memory_now() -> dict[str, float]:
    return {f"search_{name}_gib": value / GIB for name, value in memory().items()}


def drop_from_page_cache(folder: Path) -> None:
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def milliseconds_of(search: Callable, queries: Sequence) -> tuple[dict, list]:
    """The time of one query at a time in a second round, and what was found."""
    for _ in range(2):
        seconds, found = [], []
        for query in queries:
            started = time.perf_counter()
            found.append(search(query))
            seconds.append(1e3 * (time.perf_counter() - started))
    return {"query_median_ms": float(np.median(seconds)), "query_p95_ms": float(np.percentile(seconds, 95))}, found


def in_new_process(function: str, out: Path, arguments: dict) -> dict:
    """What a function of this file returns in a process of its own, and the most memory that it took."""
    result = out / f"{function}.json"
    code = (
        "import json, sys; from benchmarks.retrieval import large; "
        f"json.dump(large.{function}(**json.loads(sys.argv[1])), open(sys.argv[2], 'w'))"
    )
    _, peaks = run_watched([sys.executable, "-c", code, json.dumps(arguments, default=str), str(result)])
    return json.loads(result.read_text()) | {f"{function}_peak_{name}": value for name, value in peaks.items()}


def show(result: dict) -> None:
    print(json.dumps(json.loads(json.dumps(result), parse_float=lambda digits: round(float(digits), 3))))


# -- BM25 --------------------------------------------------------------------------------------------------------------


def make_passages(number: int) -> Iterator[Passage]:
    """The corpus, one passage at a time."""
    for first in range(0, number, WORLD):
        seed, recent = first // WORLD, deque[str](maxlen=ARTICLES - 1)
        for passage in World(min(WORLD, max(50, number - first)), seed, "heldout").passages():
            yield Passage(f"{seed}-{passage.id}", passage.title, " ".join([passage.text, *recent]))
            recent.append(passage.text)


def make_questions(number: int) -> list[str]:
    """Questions about the first world of the corpus, of all kinds."""
    world, rng = World(min(WORLD, number), 0, "heldout"), random.Random(0)
    kinds = ("bridge", "compositional", "comparison", "inference", "yes_no")
    return [make_question(world, kinds[i % len(kinds)], rng).question for i in range(QUESTIONS)]


def search_bm25(folder: str, number: int) -> dict:
    """Open and search in this process, which has done nothing else."""
    from retrieval_index import kernel

    assert kernel.top_k  # its imports are not what opening an index takes
    result: dict = {}
    for how in ("fast", "full"):
        drop_from_page_cache(Path(folder))
        started = time.perf_counter()
        searcher = load(folder, verify=how)
        result[f"open_cold_{how}_s"] = time.perf_counter() - started
    times, _ = milliseconds_of(lambda question: searcher.search([question], K), make_questions(number))
    return result | times | memory_now()


@app.command
def bm25(passages: int = 1_000_000, out: Path = Path("runs/index_scale")) -> None:
    """Build and search a BM25 index over many passages.

    Args:
        passages: of the corpus.
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
        shutil.rmtree(old, ignore_errors=True)  # from nothing, and not from what another run had left
    build = [sys.executable, "-m", "retrieval_index", "build", "--corpus", str(corpus), "--out", str(folder)]
    seconds, peaks = run_watched(build)
    result = {
        "passages": passages,
        "corpus_bytes": corpus.stat().st_size,
        "index_bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "build_s": seconds,
        **{f"build_peak_{name}": value for name, value in peaks.items()},
    }
    show(result | in_new_process("search_bm25", out, {"folder": folder, "number": passages}))


# -- dense -------------------------------------------------------------------------------------------------------------


@dataclass
class Data:
    """Vectors on disk, and the index over them."""

    folder: str
    vectors: int
    dimension: int
    factory: str
    queries: int
    shortlist: int

    @property
    def index(self) -> Path:
        return Path(self.folder) / self.factory.replace(",", "-")

    def load(self, name: str) -> np.ndarray:
        return np.load(Path(self.folder) / f"{name}.npy", mmap_mode="r" if name == "vectors" else None)


def draw(data: Data, n: int, stream: int) -> np.ndarray:
    """Unit vectors, float32 [n, dimension]; streams are independent of each other."""
    rng = np.random.default_rng([0, stream])
    noise = rng.standard_normal((n, data.dimension), dtype=np.float32)
    shape = np.random.default_rng(0)
    axes = shape.standard_normal((LATENT, data.dimension), dtype=np.float32)
    axes /= np.sqrt(np.arange(1, LATENT + 1, dtype=np.float32))[:, None]
    centres = shape.standard_normal((max(1, data.vectors // PER_CLUSTER), LATENT), dtype=np.float32)
    latent = 0.6 * rng.standard_normal((n, LATENT), dtype=np.float32) + centres[rng.integers(len(centres), size=n)]
    return _normalised(0.3 / np.sqrt(data.dimension) * noise + _normalised(latent @ axes))


def _normalised(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def make_data(data: Data) -> None:
    """Write vectors, queries and the truth, once."""
    folder = Path(data.folder)
    if (folder / "truth.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rows = np.lib.format.open_memmap(folder / "vectors.npy", "w+", "<f2", (data.vectors, data.dimension))
    with progress_bars() as track:
        starts = range(0, data.vectors, vectors.BLOCK)
        for start in track(starts, "Drawing vectors", len(starts)):
            rows[start : start + vectors.BLOCK] = draw(data, min(vectors.BLOCK, data.vectors - start), start + 1)
        queries = draw(data, data.queries, 0)
        for _ in track([None], "Searching exactly", 1):
            _, truth = vectors.exact(rows, queries, K)
    np.save(folder / "queries.npy", queries)
    np.save(folder / "truth.npy", truth)


def build_dense(**arguments) -> dict:
    """Index the vectors in this process, which does nothing else."""
    import faiss

    data = Data(**arguments)
    rows = data.load("vectors")
    index, started = vectors.make(data.factory, data.dimension, len(rows)), time.perf_counter()
    with progress_bars() as track:
        vectors.fill(index, rows, track)
        filled = time.perf_counter()
        settings = vectors.tune(index, rows, track)
    tuned = time.perf_counter()
    data.index.mkdir(exist_ok=True)
    faiss.write_index(index, str(data.index / "vectors.faiss"))
    lossless = vectors.is_lossless(index)
    sizes = {"index_gib": (data.index / "vectors.faiss").stat().st_size, "kept_gib": 0 if lossless else rows.nbytes}
    times = {"train_and_add_s": filled - started, "tune_s": tuned - filled, "settings": settings}
    return times | {name: size / GIB for name, size in sizes.items()}


def search_dense(settings: dict, **arguments) -> dict:
    """Open the index cold and search it in this process, which does nothing else."""
    data = Data(**arguments)
    drop_from_page_cache(data.index)
    started = time.perf_counter()
    index = vectors.read(data.index / "vectors.faiss", settings)
    opened = time.perf_counter() - started
    rows = None if vectors.is_lossless(index) else data.load("vectors")
    times, found = milliseconds_of(
        lambda query: vectors.search(index, rows, query[None], K, data.shortlist), data.load("queries")
    )
    recall = vectors.recall(*(np.concatenate(part) for part in zip(*found, strict=True)), data.load("truth"))
    return {"open_cold_s": opened, "recall_at_10": recall} | times | memory_now()


@app.command
def dense(
    vectors: int = 1_000_000,
    dimension: int = 384,
    factory: str = "RR,IVF,RaBitQ",
    queries: int = 200,
    shortlist: int = 100,
    out: Path = Path("runs/dense_scale"),
) -> None:
    """Build a kind of FAISS index over generated vectors, and search it as wide as it chose itself.

    Args:
        vectors: how many.
        dimension: of a vector.
        factory: FAISS factory string.
        queries: how many; each is searched for alone.
        shortlist: candidates of a compressed index whose scores are computed from the vectors.
        out: folder for vectors (2 bytes a dimension) and indexes.
    """
    folder = out / f"{vectors}x{dimension}"
    made = Data(str(folder), vectors, dimension, factory, queries, shortlist)
    make_data(made)
    built = in_new_process("build_dense", folder, asdict(made))
    found = in_new_process("search_dense", folder, asdict(made) | {"settings": built["settings"]})
    show(asdict(made) | built | found)


if __name__ == "__main__":
    app.cli(description=__doc__)
