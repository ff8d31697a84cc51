"""Dense retrieval: vectors from an encoder, searched by FAISS (see `vectors.py`)."""

import hashlib
import json
import os
from pathlib import Path
from typing import Self

import numpy as np

from retrieval_index import durable, vectors
from retrieval_index.corpus import Corpus
from retrieval_index.encoder import Encoder, SvdEncoder, encoder_for
from retrieval_index.pretrained import PretrainedEncoder
from retrieval_index.progress import Track, silent
from retrieval_index.search import Index, check_request
from retrieval_index.tokenizer import passage_text
from retrieval_index.verified_array import VerifiedArray

INDEX_FILE = "vectors.faiss"
VECTORS_FILE = "vectors.npy"  # for scoring a shortlist
ENCODE_BATCH = 1024


class DenseIndex(Index):
    """Maximum inner product search over encoded passages.

    Scores are cosines, from -1 to 1. Every passage matches to some degree; only a query unknown to the encoder, whose
    vector is zero, finds nothing. FAISS sums small batches in another order than large ones: scores may differ in the
    seventh digit.

    Attributes:
        index: a faiss.Index with one vector per passage.
        vectors: float16 [n passages, dimension], to score the shortlist of a lossy index again; None if it is lossless.
    """

    backend = "dense"

    def __init__(
        self, corpus: Corpus, encoder: Encoder, index, vectors: np.ndarray | VerifiedArray | None, parameters: dict
    ):
        self.corpus = corpus
        self.encoder = encoder
        self.index = index
        self.vectors = vectors
        self.parameters = parameters

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        *,
        encoder: Encoder | str | Path | None = None,
        factory: str = "Flat",
        work: Path | None = None,
        track: Track = silent,
    ) -> Self:
        """Encode title and text of every passage.

        Args:
            encoder: an encoder, or its name: "svd" (the default), "minilm", or see `PretrainedEncoder`.
            factory: the kind of index, a FAISS factory string; "Flat" is exact, see `vectors.py` for others.
            work: folder to which vectors are written during the build, so that a killed build can continue.
            track: reports progress.
        """
        if not len(corpus):
            raise ValueError("nothing to index: there is no passage")
        encoder = encoder_for(corpus, encoder, track)
        index = vectors.make(factory, encoder.dimension, len(corpus))  # fails here, before hours of encoding
        lossless = vectors.is_lossless(index)
        encoded = _encode(corpus, encoder, np.dtype("<f4" if lossless else "<f2"), work, track)
        vectors.fill(index, encoded, track)
        settings = vectors.tune(index, encoded, track)
        parameters = {**encoder.parameters, "factory": factory, "search": settings}
        return cls(corpus, encoder, index, None if lossless else encoded, parameters)

    def top_k(self, queries: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        k = min(check_request(queries, k), len(self.corpus))
        if len(queries) == 0:
            return np.zeros((0, k), np.int64), np.zeros((0, k), np.float32)
        encoded = _check_finite(self.encoder.encode_queries(queries), queries)
        rows, scores = np.full((len(queries), k), -1), np.zeros((len(queries), k), np.float32)
        known = encoded.any(axis=1)  # a zero vector (no known word) is equally near to all passages
        if known.any():
            rows[known], scores[known] = vectors.search(self.index, self.vectors, encoded[known], k)
        return rows, scores

    def write(self, folder: Path) -> None:
        import faiss

        self.encoder.write(folder)
        try:
            faiss.write_index(self.index, str(folder / INDEX_FILE))
        except RuntimeError as error:  # raised by C++
            if reason := durable.find_write_failure(error):
                raise OSError(f"{folder / INDEX_FILE}: {reason}") from error
            raise
        if self.vectors is not None:
            durable.save_array(self.vectors, folder / VECTORS_FILE)

    @classmethod
    def open(cls, folder: Path, corpus: Corpus, parameters: dict, encoder: Encoder | str | Path | None = None) -> Self:
        """Open what `write` wrote. The FAISS index is read at once, `vectors` when they are needed, see `verified_array`."""
        index = vectors.read(folder / INDEX_FILE, parameters["search"])
        path = folder / VECTORS_FILE
        rescore = VerifiedArray(path) if path.is_file() else None
        return cls(corpus, _encoder_of(folder, parameters, encoder), index, rescore, parameters)


def _encoder_of(folder: Path, parameters: dict, given: Encoder | str | Path | None) -> Encoder:
    """Return the encoder of an index, ``given`` or opened; raises ValueError if the index was built with another."""
    if (kind := parameters.get("encoder")) == "tfidf-svd":
        if given not in (None, "svd"):
            raise ValueError(f"{folder} was built with an encoder of its own, which it holds: give no other")
        return SvdEncoder.open(folder)
    if given is None and kind != "sentence-transformers":
        raise ValueError(f"{folder} was built with the encoder {kind!r}: pass it as encoder=")
    encoder = given if given is not None else parameters["model"]
    if isinstance(encoder, str | Path):
        prefixes = {name: parameters.get(name) for name in ("query_prefix", "passage_prefix")}
        try:
            encoder = PretrainedEncoder(encoder, **prefixes)
        except ValueError as error:
            raise ValueError(
                f"the model that {folder} was built with: {error}. Pass encoder= (--encoder PATH)"
            ) from None
    own = json.loads(json.dumps(encoder.parameters))  # as the manifest holds them: a tuple is a list
    for name in parameters:
        where = ("model", "factory", "search")  # these may differ: a model may have moved
        if name not in where and own.get(name) != parameters[name]:
            raise ValueError(
                f"{folder} was built with another encoder: its {name} was {parameters[name]!r}, and is "
                f"{own.get(name)!r} now. Pass the right one as encoder= (--encoder), or build again."
            )
    return encoder


def _encode(corpus: Corpus, encoder: Encoder, dtype: np.dtype, work: Path | None, track: Track) -> np.ndarray:
    """Encode all passages as vectors, [n passages, dimension]. With `work`, they go to a file from which a later call
    continues, named by corpus, encoder and dtype. A second file holds the number of rows that are safe on disk."""
    shape, starts = (len(corpus), encoder.dimension), range(0, len(corpus), ENCODE_BATCH)
    if work is None:
        encoded = np.empty(shape, dtype)
        for start in track(starts, "Encoding passages", len(starts)):
            encoded[start : start + ENCODE_BATCH] = _encode_rows(corpus, encoder, start)
        return encoded
    identity = json.dumps([corpus.fingerprint, encoder.parameters, dtype.str], sort_keys=True, default=str)
    path = Path(work) / f"vectors-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.npy"
    record = path.with_suffix(".rows")
    if not (path.exists() and record.exists()):
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in (record, path):  # deleted, not overwritten: a saved index may hold a link to it
            old.unlink(missing_ok=True)
        np.lib.format.open_memmap(path, "w+", dtype, shape)
    done = int(record.read_text()) if record.exists() else 0
    starts = range(done, len(corpus), ENCODE_BATCH)
    encoded = np.load(path, mmap_mode="r", allow_pickle=False)
    with open(path, "r+b") as file:
        file.seek(encoded.offset + done * dtype.itemsize * encoder.dimension)
        for start in track(starts, "Encoding passages", len(starts)):
            rows = _encode_rows(corpus, encoder, start)
            file.write(np.ascontiguousarray(rows, dtype).data)
            file.flush()
            os.fsync(file.fileno())
            durable.write_text(record, str(start + len(rows)))
    return encoded


def _encode_rows(corpus: Corpus, encoder: Encoder, start: int) -> np.ndarray:
    texts = [passage_text(p.title, p.text) for p in corpus.passages(start, start + ENCODE_BATCH)]
    return _check_finite(encoder.encode(texts), texts)


def _check_finite(vectors: np.ndarray, texts: list[str]) -> np.ndarray:
    """Return the vectors; raises ValueError for NaN or infinity, for which FAISS finds nothing, without an error."""
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        text = texts[int(finite.argmin())]
        raise ValueError(f"the encoder gives NaN or infinity for {text!r:.80}: its weights are damaged, or overflow")
    return vectors
