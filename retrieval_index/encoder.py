"""Text to vectors for dense retrieval: the `Encoder` protocol, and an embedded encoder that needs no download."""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from retrieval_index import durable
from retrieval_index.corpus import Corpus
from retrieval_index.pretrained import PretrainedEncoder
from retrieval_index.progress import Track, silent
from retrieval_index.tokenizer import passage_text, tokenize
from retrieval_index.vectors import sample_rows
from retrieval_index.verified_array import read_array, read_bytes

TERMS_FILE = "encoder_terms.json"
IDF_FILE = "encoder_idf.npy"
COMPONENTS_FILE = "encoder_components.npy"
MAX_TERMS = 50_000
FITTED_ON = 200_000  # maximum number of passages; more would add little, and all are held in memory


class Encoder(Protocol):
    """Protocol of encoders: texts to vectors with similarities as inner products."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    def parameters(self) -> dict:
        """JSON-able description of the encoder for the manifest. It must differ between any two encoders that give
        different vectors."""

    def encode(self, texts: list[str]) -> np.ndarray:
        """Encode passages: float32 [len(texts), dimension], rows of norm 1, or 0 if the encoder knows nothing of a text."""

    def encode_queries(self, texts: list[str]) -> np.ndarray:
        """Encode queries, which some models encode in another way than passages."""

    def write(self, folder: Path) -> None:
        """Store in `folder` what the encoder needs when the index is loaded."""


class SvdEncoder:
    """Latent semantic analysis (Deerwester et al. 1990): TF-IDF with a truncated SVD.

    The term vector is normalised, projected on the leading right singular vectors, and normalised again. It finds passages by
    topic more than by name: a weak dense baseline that needs no download.
    """

    def __init__(self, terms: list[str], idf: np.ndarray, components: np.ndarray):  # [n terms], [n terms, dimension]
        self.terms, self.idf, self.components = terms, idf, components
        self.dimension = components.shape[1]

    @cached_property
    def parameters(self) -> dict:
        digest = hashlib.sha256(json.dumps(self.terms).encode())
        for array in (self.idf, self.components):
            digest.update(np.ascontiguousarray(array).data)
        return {"encoder": "tfidf-svd", "dimension": self.dimension, "fingerprint": digest.hexdigest()}

    @classmethod
    def fit(cls, texts: list[str], *, dimension: int = 512, track: Track = silent) -> Self:
        """Fit the encoder to texts, deterministically. The `MAX_TERMS` most frequent terms are kept."""
        from sklearn.utils.extmath import randomized_svd

        vectorizer = _vectorizer(max_features=MAX_TERMS)
        weights = vectorizer.fit_transform(track(texts, "Weighing words", len(texts)))
        for _ in track([None], "Factorising", 1):
            _, _, components = randomized_svd(weights, min(dimension, *weights.shape), n_iter=5, random_state=0)
        terms = vectorizer.get_feature_names_out().tolist()
        return cls(terms, vectorizer.idf_, np.ascontiguousarray(components.T, dtype=np.float32))

    @cached_property
    def _fitted(self):
        vectorizer = _vectorizer(vocabulary=self.terms)
        vectorizer.idf_ = self.idf
        return vectorizer

    def encode(self, texts: list[str]) -> np.ndarray:
        vectors = np.asarray(self._fitted.transform(texts) @ self.components, dtype=np.float32)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.where(norms > 0, norms, 1)

    encode_queries = encode

    def write(self, folder: Path) -> None:
        (folder / TERMS_FILE).write_text(json.dumps(self.terms, ensure_ascii=False), encoding="utf-8")
        durable.write_array(folder / IDF_FILE, self.idf)
        durable.write_array(folder / COMPONENTS_FILE, self.components)

    @classmethod
    def open(cls, folder: Path) -> Self:
        idf, components = read_array(folder / IDF_FILE), read_array(folder / COMPONENTS_FILE)
        return cls(json.loads(read_bytes(folder / TERMS_FILE)), idf, components)


def encoder_for(corpus: Corpus, encoder: Encoder | str | Path | None, track: Track = silent) -> Encoder:
    """Return the encoder of a name, see `PretrainedEncoder`. "svd" or None fits one to at most 200,000 of the passages."""
    if encoder is not None and encoder != "svd":
        return PretrainedEncoder(encoder) if isinstance(encoder, str | Path) else encoder
    passages = map(corpus.__getitem__, sample_rows(len(corpus), FITTED_ON).tolist())
    return SvdEncoder.fit([passage_text(p.title, p.text) for p in passages], track=track)


def _vectorizer(**options):
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(analyzer=tokenize, sublinear_tf=True, dtype=np.float32, **options)
