"""Nearest neighbours by inner product: FAISS (Douze et al. 2024, arXiv 2401.08281) over unit vectors on disk.

A FAISS factory string names the kind of index. Kinds that compress (SQ, PQ, RaBitQ) only propose a shortlist, whose
scores are computed again from the vectors, kept as float16 in a file. The score is the cosine for every kind of index.
"""

import math
import re
from pathlib import Path

import numpy as np

from retrieval_index.progress import Track, silent
from retrieval_index.verified_array import VerifiedArray, open_reader

EXAMPLES = "Flat, HNSW32, IVF,SQ8, IVF,PQ64, RR,IVF,RaBitQ, IVF,RaBitQ4, or with the number of lists, IVF1024,PQ64"
BLOCK = 32_768  # rows held as float32 at a time
TRAIN_PER_LIST = 64  # k-means asks for at least 39 vectors per list
TRAIN_FLOATS = 2**28  # never train on more than 1 GiB
SHORTLIST = 10  # times k: number of candidates that are scored again
LEAST_SHORTLIST = 100
TUNE_QUERIES = 200
LEAST_GAIN = 1.005  # factor by which recall must grow for a search twice as wide


def make(factory: str, dimension: int, rows: int):
    """Make an empty faiss.Index for inner product over `rows` vectors. "IVF" without a number gets about 4√rows lists."""
    import faiss

    wanted = re.sub(r"(?:^|(?<=,))IVF(?=[,_])", f"IVF{_lists(rows)}", factory)
    try:
        index = faiss.index_factory(dimension, wanted, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        reason = str(error).rpartition(": ")[2]
        raise ValueError(
            f"FAISS has no index {factory!r} for {dimension} dimensions and inner product ({reason}); try {EXAMPLES}"
        ) from None
    if "IDMap" in factory:
        raise ValueError(f"{factory!r}: row numbers are the ids here; leave the IDMap out")
    inner = _inner(index)
    if isinstance(inner, faiss.IndexIVF):
        if inner.nlist > rows:
            raise ValueError(f"{factory!r} has more lists than there are passages ({rows:,}): try Flat")
        # Codes store the difference to a centroid, and FAISS would scale centroids to norm 1, away from their vectors.
        # The shortlist of RaBitQ on 100,000 random vectors would hold 0.20 of the neighbours instead of 0.52.
        inner.cp.spherical = False
    if isinstance(inner, faiss.IndexPQ | faiss.IndexIVFPQ):
        # It would take minutes of training for a search mode that is not used here.
        inner.do_polysemous_training = False  # type: ignore[union-attr]  # missing from FAISS's stubs
    return index


def fill(index, vectors: np.ndarray, track: Track = silent) -> None:
    """Train the index on a random sample of the vectors (float [n, dimension]) and add them all, block by block."""
    lists = getattr(_inner(index), "nlist", 0)
    sample = min(TRAIN_FLOATS // index.d, max(65_536, TRAIN_PER_LIST * lists))
    try:
        if not index.is_trained:
            for _ in track([None], "Training the index", 1):
                index.train(vectors[sample_rows(len(vectors), sample)].astype(np.float32))
        starts = range(0, len(vectors), BLOCK)
        for start in track(starts, "Adding vectors", len(starts)):
            index.add(vectors[start : start + BLOCK].astype(np.float32))
    except RuntimeError as error:
        reason = str(error).rpartition("Error: ")[2].strip()
        raise ValueError(f"FAISS cannot build this index over {len(vectors):,} passages: {reason}") from None


def tune(index, vectors: np.ndarray, track: Track = silent) -> dict:
    """Set how widely the index searches, by its recall@10 with 200 of the vectors as queries.

    The width (lists probed, or candidates held by HNSW) doubles while recall grows by more than 0.5 %. Returns the settings
    for `apply` and the recall measured; an empty dict for an exact index.
    """
    import faiss

    if isinstance(index, faiss.IndexFlat):
        return {}
    queries = vectors[sample_rows(len(vectors), TUNE_QUERIES)].astype(np.float32)
    kept = None if is_lossless(index) else vectors
    k = min(11, len(vectors))  # each query finds itself, and 10 more
    name, least, most = _width(index)

    def measure(width: int) -> float:
        if name:
            apply(index, {name: width})
        rows, scores = search(index, kept, queries, k)
        # By score, because any of several equal passages will do. Each query finds itself, which does not count.
        recall = float(np.mean((rows >= 0) & (scores >= nearest[:, -1:] - 1e-5)))
        return (recall * k - 1) / max(1, k - 1)

    for _ in track([None], "Tuning the search", 1):
        _, nearest = exact(vectors, queries, k)
        width, found = least, measure(least)
        while width < most and (wider := measure(min(2 * width, most))) > LEAST_GAIN * found:
            width, found = min(2 * width, most), wider
    settings = {name: width} if name else {}
    apply(index, settings)
    return settings | {"recall_at_10": round(found, 3)}


def apply(index, settings: dict) -> None:
    """Apply the settings that `tune` returned to an index."""
    import faiss

    for name in settings.keys() & {"nprobe", "efSearch"}:
        faiss.ParameterSpace().set_index_parameter(index, name, settings[name])


def read(path: Path, settings: dict):
    """Open a FAISS index in memory, with the settings of its search. Raises `IndexCorrupt`."""
    import faiss

    reader = faiss.PyCallbackIOReader(open_reader(path), 1 << 20)  # type: ignore[attr-defined]  # not in FAISS's stubs
    index = faiss.read_index(reader)
    apply(index, settings)
    return index


def _inner(index):
    """Return the index itself, without rotations before it or a refinement after it."""
    import faiss

    while isinstance(index, faiss.IndexPreTransform | faiss.IndexRefine):
        index = faiss.downcast_index(index.index if isinstance(index, faiss.IndexPreTransform) else index.base_index)
    return index


def _width(index) -> tuple[str | None, int, int]:
    """Return the setting that trades time for recall (None if there is none), with its lowest and highest value."""
    import faiss

    inner = _inner(index)
    if isinstance(inner, faiss.IndexHNSW):
        return "efSearch", 64, 1024
    if isinstance(inner, faiss.IndexIVF):
        return "nprobe", min(64, inner.nlist), inner.nlist
    return None, 1, 1


def is_lossless(index) -> bool:
    """Whether the index holds the vectors unchanged, so that its scores need no correction."""
    import faiss

    return isinstance(index, faiss.IndexFlat | faiss.IndexHNSWFlat | faiss.IndexIVFFlat)


def search(
    index, vectors: np.ndarray | VerifiedArray | None, queries: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find the best `k` rows for each query (float32 [n, dimension]), best first, of equal scores the lower row first.

    Args:
        vectors: float16 [rows, dimension], to score the shortlist (10 k rows, at least 100); None if the index is lossless.

    Returns:
        rows int64 [n, k], -1 if the index found nothing more; scores float32 [n, k], 0 where the row is -1.
    """
    if vectors is None:
        scores, rows = _find_with_ties(index, queries, k)
    else:
        scores, rows = index.search(queries, min(index.ntotal, max(SHORTLIST * k, LEAST_SHORTLIST)))
        for query in range(len(queries)):  # one at a time: a batch would gather hundreds of megabytes
            scores[query] = vectors[rows[query]].astype(np.float32) @ queries[query]
    scores[rows < 0] = -np.inf
    order = np.lexsort((rows, -scores))[:, :k]
    rows, scores = np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)
    scores[rows < 0] = 0
    return rows, scores


def _find_with_ties(index, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Find at least k rows, and all that are as good as the last one: of equal scores FAISS drops the lower rows."""
    depth = k + 1
    while True:
        scores, rows = index.search(queries, depth)
        is_cut = (scores[:, k - 1] == scores[:, -1]) & (rows[:, -1] >= 0)
        if depth >= index.ntotal or not is_cut.any():
            return scores, rows
        depth = min(2 * depth, index.ntotal)


def exact(vectors: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Search exactly: every query against every vector, in blocks."""
    import faiss
    from faiss.contrib.exhaustive_search import knn_ground_truth

    blocks = (vectors[start : start + BLOCK].astype(np.float32) for start in range(0, len(vectors), BLOCK))
    scores, rows = knn_ground_truth(queries, blocks, k, faiss.METRIC_INNER_PRODUCT)
    return rows, scores


def sample_rows(n: int, size: int) -> np.ndarray:
    """Draw `size` of the row numbers below `n`, or all of them; ascending, and the same at each call."""
    if size >= n:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, size, replace=False))


def _lists(rows: int) -> int:
    """Return a power of 2 near 4√rows, as FAISS advises, with enough vectors per list for k-means."""
    return 2 ** max(0, math.floor(math.log2(max(1, min(4 * math.sqrt(rows) * math.sqrt(2), rows / 39)))))
