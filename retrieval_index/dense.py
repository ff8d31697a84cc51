"""Dense retrieval: vectors from an encoder, searched by FAISS (Douze et al. 2024, arXiv 2401.08281)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from retrieval_index import store
from retrieval_index.corpus import Corpus, Passage
from retrieval_index.encoder import Encoder, SvdEncoder
from retrieval_index.progress import Track, silent
from retrieval_index.search import check_request, passages_of
from retrieval_index.tokenizer import passage_text

VECTORS_FILE = "vectors.faiss"
FACTORY = "Flat"  # exact search; FAISS's own name for the kind of index, kept in the manifest
ENCODE_BATCH = 1024


class DenseIndex:
    """Exact maximum inner product search over encoded passages. Scores are cosines, from -1 to 1.

    Every passage matches to some degree, so `search` gives `k` passages even for a poor query; only a query that the
    encoder knows nothing of (a zero vector) has an empty list. FAISS sums in another order for small batches than for
    large ones: the same query may score differently in the seventh digit.
    """

    backend = "dense"
    folder: Path | None = None  # where it was loaded from

    def __init__(self, corpus: Corpus, encoder: Encoder, vectors):
        self.corpus = corpus
        self.encoder = encoder
        self.vectors = vectors  # a faiss.Index with one vector a passage
        self.parameters = {**encoder.parameters, "factory": FACTORY}

    def __reduce__(self):
        if self.folder is not None:
            from retrieval_index.build import load

            return load, (self.folder,)  # worker processes map the same files
        return DenseIndex, (self.corpus, self.encoder, self.vectors)

    @classmethod
    def build(cls, corpus: Corpus, *, encoder: Encoder | None = None, track: Track = silent) -> DenseIndex:
        """Encode title and text of every passage. Without an `encoder`, an `SvdEncoder` is fitted to the corpus."""
        import faiss

        if encoder is None:
            encoder = SvdEncoder.fit([passage_text(passage.title, passage.text) for passage in corpus], track=track)
        vectors = faiss.index_factory(encoder.dimension, FACTORY, faiss.METRIC_INNER_PRODUCT)
        batches = range(0, len(corpus), ENCODE_BATCH)
        for start in track(batches, "Encoding passages", len(batches)):
            rows = range(start, min(start + ENCODE_BATCH, len(corpus)))
            vectors.add(encoder.encode([passage_text(corpus[row].title, corpus[row].text) for row in rows]))
        return cls(corpus, encoder, vectors)

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        """See `Searcher.search`."""
        return passages_of(self.corpus, *self.top_k(queries, k))

    def top_k(self, queries: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Searcher.top_k`."""
        k = min(check_request(queries, k), len(self.corpus))
        if len(queries) == 0:
            return np.zeros((0, k), np.int64), np.zeros((0, k), np.float32)
        encoded = self.encoder.encode(queries)
        scores, rows = self.vectors.search(encoded, k)
        order = np.lexsort((rows, -scores))  # best first, equal scores by row
        rows, scores = np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)
        unknown = ~encoded.any(axis=1)
        rows[unknown], scores[unknown] = -1, 0
        return rows, scores

    def save(self, folder: str | Path) -> None:
        """See `Searcher.save`."""
        store.save(self, folder)

    def write(self, folder: Path) -> None:
        """Write what the backend needs beside the corpus."""
        import faiss

        self.encoder.write(folder)
        faiss.write_index(self.vectors, str(folder / VECTORS_FILE))

    @classmethod
    def open(cls, folder: Path, corpus: Corpus, parameters: dict) -> DenseIndex:
        """Read what `write` wrote; the vectors stay on disk, memory-mapped."""
        import faiss

        if parameters["encoder"] != "tfidf-svd":
            raise ValueError(
                f"this index was built with the encoder {parameters['encoder']!r}, which is not known here"
            )
        vectors = faiss.read_index(str(folder / VECTORS_FILE), faiss.IO_FLAG_MMAP_IFC)
        return cls(corpus, SvdEncoder.open(folder), vectors)
