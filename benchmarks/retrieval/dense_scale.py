"""What kinds of FAISS index make of millions of vectors: recall, memory, time and disk.

    python -m benchmarks.retrieval.dense_scale --vectors 5000000 --factory "IVF,PQ48" "RR,IVF,RaBitQ" --out runs/dense_scale
    python -m benchmarks.retrieval.dense_scale --vectors 5000000 --factory "IVF,PQ48" --data random --shortlists 100 1000

Vectors are unit vectors made from a seed, no text: what is measured is `retrieval_index.vectors`, all that `DenseIndex`
does after encoding. "clustered" ones lie around many centres in a space of 64 dimensions with a decaying spectrum and
have a little noise in all dimensions, as embeddings of text do; "random" ones point anywhere, so that a vector's
neighbours are hardly nearer than all others: the hardest case for every approximate index, and like no text.

Queries are drawn like the vectors and are not among them; the truth is their inner product with every vector. Build and
search run in processes of their own, whose memory is measured with all pages that they map. The index searches with the
width that it chose itself while it was built, and with those of `--widths`. Ends with one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import tyro

from benchmarks.retrieval.bm25_scale import GIB, drop_from_page_cache, memory, run_watched
from retrieval_index import vectors
from retrieval_index.progress import progress_bars

LATENT = 64  # dimensions of the clustered vectors before they are spread over all
PER_CLUSTER = 50
K = 10


@dataclass(kw_only=True)
class Args:
    """Build kinds of FAISS index over generated vectors, and search them."""

    vectors: int = 1_000_000
    """How many."""
    dimension: int = 384
    """Of a vector."""
    data: Literal["clustered", "random"] = "clustered"
    """How the vectors lie; see above."""
    factory: tuple[str, ...] = ("IVF,PQ48", "RR,IVF,RaBitQ")
    """FAISS factory strings, each an index."""
    queries: int = 200
    """How many; each is searched for alone."""
    widths: tuple[int, ...] = ()
    """Lists to probe (IVF) or candidates to hold (HNSW), beside what the index chose."""
    shortlists: tuple[int, ...] = (100,)
    """Candidates of a compressed index whose scores are computed from the vectors."""
    seed: int = 0
    """Of the vectors and queries."""
    out: Path = Path("runs/dense_scale")
    """Folder for vectors (2 bytes a dimension) and indexes."""

    @property
    def data_folder(self) -> Path:
        return Path(self.out) / f"{self.data}-{self.vectors}x{self.dimension}-{self.seed}"

    @property
    def index_folder(self) -> Path:
        return self.data_folder / self.factory[0].replace(",", "-")


def draw(args: Args, n: int, stream: int) -> np.ndarray:
    """Unit vectors, float32 [n, dimension]; streams are independent of each other."""
    rng = np.random.default_rng([args.seed, stream])
    drawn = rng.standard_normal((n, args.dimension), dtype=np.float32)
    if args.data == "clustered":
        shape = np.random.default_rng(args.seed)
        axes = shape.standard_normal((LATENT, args.dimension), dtype=np.float32)
        axes /= np.sqrt(np.arange(1, LATENT + 1, dtype=np.float32))[:, None]
        centres = shape.standard_normal((max(1, args.vectors // PER_CLUSTER), LATENT), dtype=np.float32)
        latent = 0.6 * rng.standard_normal((n, LATENT), dtype=np.float32) + centres[rng.integers(len(centres), size=n)]
        drawn = 0.3 / np.sqrt(args.dimension) * drawn + _normalised(latent @ axes)
    return _normalised(drawn)


def _normalised(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def make_data(args: Args) -> float:
    """Write vectors, queries and the truth, once; seconds of the exact search of all queries."""
    folder = args.data_folder
    done, half = folder / f"exact-{args.queries}.json", folder / "vectors.part"
    if done.exists():
        return json.loads(done.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    with progress_bars() as track:
        if not (folder / "vectors.npy").exists():
            shape = (args.vectors, args.dimension)
            with open(half, "wb") as file:
                header = {"descr": "<f2", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                starts = range(0, args.vectors, vectors.BLOCK)
                for start in track(starts, "Drawing vectors", len(starts)):
                    block = draw(args, min(vectors.BLOCK, args.vectors - start), start + 1)
                    file.write(block.astype(np.float16))
            os.replace(half, folder / "vectors.npy")
        queries, started = draw(args, args.queries, 0), time.perf_counter()
        for _ in track([None], "Searching exactly", 1):
            _, truth = vectors.exact(np.load(folder / "vectors.npy", mmap_mode="r"), queries, K)
    seconds = time.perf_counter() - started
    np.save(folder / f"queries-{args.queries}.npy", queries)
    np.save(folder / f"truth-{args.queries}.npy", truth)
    done.write_text(json.dumps(seconds))
    return seconds


def build(args: Args) -> dict:
    """Index the vectors in this process, which does nothing else."""
    import faiss

    rows = np.load(args.data_folder / "vectors.npy", mmap_mode="r")
    index = vectors.make(args.factory[0], args.dimension, len(rows))
    started = time.perf_counter()
    with progress_bars() as track:
        vectors.fill(index, rows, track)
        filled = time.perf_counter()
        settings = vectors.tune(index, rows, track)
    tuned = time.perf_counter()
    args.index_folder.mkdir(exist_ok=True)
    path = args.index_folder / "vectors.faiss"
    faiss.write_index(index, str(path))
    kept = 0 if vectors.is_lossless(index) else rows.nbytes
    return {
        "train_and_add_s": filled - started,
        "tune_s": tuned - filled,
        "write_s": time.perf_counter() - tuned,
        "index_gib": path.stat().st_size / GIB,
        "kept_vectors_gib": kept / GIB,
        "settings": settings,
        "threads": faiss.omp_get_max_threads(),
    }


def search(args: Args) -> dict:
    """Open the index cold and search it in this process, which does nothing else."""
    import faiss

    folder, settings = args.data_folder, json.loads((args.index_folder / "build.json").read_text())["settings"]
    queries, truth = np.load(folder / f"queries-{args.queries}.npy"), np.load(folder / f"truth-{args.queries}.npy")
    drop_from_page_cache(args.index_folder)
    before, started = memory(), time.perf_counter()
    index = vectors.read(args.index_folder / "vectors.faiss", settings)
    opened = time.perf_counter() - started
    rows = None if vectors.is_lossless(index) else np.load(folder / "vectors.npy", mmap_mode="r")
    name = next((name for name in ("nprobe", "efSearch") if name in settings), None)
    chosen = settings.get(name)
    widths = [chosen, *(width for width in args.widths if name and width != chosen)]
    curve = []
    for width in widths:
        if name:
            vectors.apply(index, {name: width})
        for shortlist in args.shortlists if rows is not None else (None,):
            curve.append({"width": width, "shortlist": shortlist, **measure(index, rows, queries, truth, shortlist)})
        if width == chosen:
            now = memory()
    return {
        "open_cold_s": opened,
        "search_resident_gib": now["resident"] / GIB,
        "search_anonymous_gib": (now["anonymous"] - before["anonymous"]) / GIB,
        "python_anonymous_gib": before["anonymous"] / GIB,
        "threads": faiss.omp_get_max_threads(),
        "searches": curve,
    }


def measure(index, rows: np.ndarray | None, queries: np.ndarray, truth: np.ndarray, shortlist: int | None) -> dict:
    """Recall, and the time of one query at a time: the first round on pages as they lie, the second one warm."""
    rounds = []
    for _ in range(2):
        seconds, found = [], []
        for query in queries:
            started = time.perf_counter()
            found.append(vectors.search(index, rows, query[None], K, shortlist))
            seconds.append(time.perf_counter() - started)
        rounds.append(np.array(seconds) * 1e3)
    return {
        "recall_at_10": vectors.recall(*(np.concatenate(part) for part in zip(*found, strict=True)), truth),
        "query_first_round_median_ms": float(np.median(rounds[0])),
        "query_median_ms": float(np.median(rounds[1])),
        "query_p95_ms": float(np.percentile(rounds[1], 95)),
    }


def run(args: Args) -> dict:
    result = {name: getattr(args, name) for name in ("vectors", "dimension", "data", "queries")}
    result |= {"exact_search_s": make_data(args), "indexes": []}
    for factory in args.factory:
        one = replace(args, factory=(factory,))
        one.index_folder.mkdir(exist_ok=True)
        figures, peaks = in_new_process("build", one)
        figures |= {f"build_peak_{name}_gib": value / GIB for name, value in peaks.items()}
        figures |= in_new_process("search", one)[0]
        result["indexes"].append({"factory": factory, **figures})
    return result


def in_new_process(function: str, args: Args) -> tuple[dict, dict]:
    """What a function of this file returns in a process of its own, and the most memory that it took."""
    result = args.index_folder / f"{function}.json"
    code = (
        "import json, sys; from benchmarks.retrieval import dense_scale; "
        f"result = dense_scale.{function}(dense_scale.Args(**json.loads(sys.argv[1]))); "
        "open(sys.argv[2], 'w').write(json.dumps(result))"
    )
    _, peaks = run_watched([sys.executable, "-c", code, json.dumps(asdict(args), default=str), str(result)])
    return json.loads(result.read_text()), peaks


def main(args: Args) -> dict:
    result = run(args)
    print(json.dumps(json.loads(json.dumps(result), parse_float=lambda digits: round(float(digits), 3))))
    return result


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
