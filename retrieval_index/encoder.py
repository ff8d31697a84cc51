"""Text to vectors for dense retrieval: the `Encoder` protocol, and an embedded encoder that needs no download."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from retrieval_index.corpus import Corpus
from retrieval_index.held import read_array, read_bytes
from retrieval_index.progress import Track, silent
from retrieval_index.tokenizer import VERSION, passage_text, tokenize

TERMS_FILE = "encoder_terms.json"
IDF_FILE = "encoder_idf.npy"
COMPONENTS_FILE = "encoder_components.npy"
FITTED_ON = 200_000  # passages; more would teach it little and are not held in memory


class Encoder(Protocol):
    """Maps texts to vectors whose inner products are similarities.

    Threads may share an encoder.
    """

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        ...

    @property
    def parameters(self) -> dict:
        """JSON-able: they tell in the manifest which encoder made an index, and must differ between any two encoders
        that give different vectors."""
        ...

    def encode(self, texts: list[str]) -> np.ndarray:
        """float32 [len(texts), dimension], each row of norm 1, or 0 where the encoder knows nothing of the text."""
        ...

    def encode_queries(self, texts: list[str]) -> np.ndarray:
        """The same for queries, which some models encode in another way than passages."""
        ...

    def write(self, folder: Path) -> None:
        """Store in `folder` whatever encoding will need later."""
        ...


class SvdEncoder:
    """Latent semantic analysis (Deerwester et al. 1990): TF-IDF, projected on its leading right singular vectors.

    A term weighs (1 + ln tf) · idf with idf = 1 + ln((1 + N) / (1 + df)); the term vector is normalised, projected,
    and normalised again. It finds passages by topic more than by name: a weak dense baseline that always works, not a
    rival of trained encoders.

    Attributes:
        terms: term -> column.
        idf: float32 [n terms].
        components: float32 [n terms, dimension].
        tokenizer: version of the one that the terms come from.
    """

    def __init__(self, terms: dict[str, int], idf: np.ndarray, components: np.ndarray, tokenizer: int = VERSION):
        self.terms, self.idf, self.components, self.tokenizer = terms, idf, components, tokenizer
        self.dimension = components.shape[1]

    @cached_property
    def parameters(self) -> dict:
        """See `Encoder`. The fingerprint reads all of the components."""
        digest = hashlib.sha256(json.dumps(list(self.terms)).encode())
        for array in (self.idf, self.components):
            digest.update(np.ascontiguousarray(array).data)
        own = {"encoder": "tfidf-svd", "dimension": self.dimension, "tokenizer": self.tokenizer}
        return {**own, "fingerprint": digest.hexdigest()}

    @classmethod
    def fit(
        cls, texts: list[str], *, dimension: int = 512, max_terms: int = 50_000, track: Track = silent
    ) -> SvdEncoder:
        """Learn from the corpus itself, deterministically.

        `dimension` is cut to what the corpus can fill; of more than `max_terms` terms those in most texts are kept,
        because a term of one text has no company to learn from. Raises ValueError where there is no word to learn.
        """
        from sklearn.utils.extmath import randomized_svd

        frequencies: dict[str, int] = {}
        for text in track(texts, "Counting words", len(texts)):
            for term in dict.fromkeys(tokenize(text)):
                frequencies[term] = frequencies.get(term, 0) + 1
        if not frequencies:
            raise ValueError(
                f"nothing to index: none of the {len(texts)} passages holds a word that is not a stop word"
            )
        kept = sorted(frequencies, key=frequencies.__getitem__, reverse=True)[:max_terms]  # of equals the first seen
        counts = np.array([frequencies[term] for term in kept])
        idf = (1 + np.log((1 + len(texts)) / (1 + counts))).astype(np.float32)
        terms = {term: column for column, term in enumerate(kept)}
        weights = _tf_idf(track(texts, "Weighing words", len(texts)), terms, idf, VERSION)
        dimension = min(dimension, *weights.shape)
        for _ in track([None], "Factorising", 1):
            _, _, components = randomized_svd(weights, dimension, n_iter=5, random_state=0)
        return cls(terms, idf, np.ascontiguousarray(components.T, dtype=np.float32))

    def encode(self, texts: list[str]) -> np.ndarray:
        """See `Encoder.encode`. Texts without a known word have the zero vector."""
        vectors = np.asarray(_tf_idf(texts, self.terms, self.idf, self.tokenizer) @ self.components, dtype=np.float32)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.where(norms > 0, norms, 1)

    encode_queries = encode

    def write(self, folder: Path) -> None:
        """See `Encoder.write`."""
        (folder / TERMS_FILE).write_text(json.dumps(list(self.terms), ensure_ascii=False), encoding="utf-8")
        np.save(folder / IDF_FILE, self.idf, allow_pickle=False)
        np.save(folder / COMPONENTS_FILE, self.components, allow_pickle=False)

    @classmethod
    def open(cls, folder: Path, parameters: dict) -> SvdEncoder:
        """Read what `write` wrote; `parameters` are those of the manifest."""
        terms = json.loads(read_bytes(folder / TERMS_FILE))
        idf, components = read_array(folder / IDF_FILE), read_array(folder / COMPONENTS_FILE)
        return cls({term: column for column, term in enumerate(terms)}, idf, components, parameters.get("tokenizer", 1))


def encoder_for(corpus: Corpus, encoder: Encoder | str | Path | None, track: Track = silent) -> Encoder:
    """An encoder by name: "svd" or None for one fitted to (at most 200,000 passages of) the corpus, else see
    `PretrainedEncoder`; an encoder is returned as it is."""
    if encoder is None or encoder == "svd":
        rows = np.arange(len(corpus))
        if len(corpus) > FITTED_ON:
            rows = np.sort(np.random.default_rng(0).choice(len(corpus), FITTED_ON, replace=False))
        passages = map(corpus.__getitem__, rows.tolist())
        return SvdEncoder.fit([passage_text(p.title, p.text) for p in passages], track=track)
    return resolve_encoder(encoder)


def resolve_encoder(encoder: Encoder | str | Path) -> Encoder:
    """An encoder by name, see `PretrainedEncoder`; an encoder is returned as it is."""
    if isinstance(encoder, str | Path):
        from retrieval_index.pretrained import PretrainedEncoder

        return PretrainedEncoder(encoder)
    return encoder


def _tf_idf(texts, terms: dict[str, int], idf: np.ndarray, tokenizer: int):
    """Normalised TF-IDF rows as a scipy CSR matrix, float32 [n texts, n terms]."""
    from scipy.sparse import csr_matrix

    columns, weights, starts = [], [], [0]
    for text in texts:
        counts: dict[int, int] = {}
        for word in tokenize(text, tokenizer):
            if (column := terms.get(word)) is not None:
                counts[column] = counts.get(column, 0) + 1
        row = np.fromiter(counts, np.int32, len(counts))
        weight = (1 + np.log(np.fromiter(counts.values(), np.float32, len(counts)))) * idf[row]
        columns.append(row)
        weights.append(weight / (np.linalg.norm(weight) or 1))
        starts.append(starts[-1] + len(row))
    flat = [np.concatenate(parts) if parts else np.zeros(0, np.float32) for parts in (weights, columns)]
    return csr_matrix((flat[0], flat[1].astype(np.int32), starts), shape=(len(starts) - 1, len(terms)))
