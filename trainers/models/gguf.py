"""Models in GGUF files, the format of llama.cpp: converted once into a folder of the cache."""

import hashlib
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from agent_envs.data.local import cache_folder
from retrieval_index import durable
from trainers.runtime.errors import UserError

SUFFIX = ".gguf"
_VERSION = 2  # of the conversion
_SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def is_gguf(path_or_id: str | Path) -> bool:
    """Whether a name is that of a GGUF file."""
    return str(path_or_id).lower().endswith(SUFFIX)


def read_config(path_or_id: str | Path, **options: Any) -> PreTrainedConfig:
    """Read the configuration of a model, also from a GGUF file, without its weights. Raises as `AutoConfig` does."""
    if is_gguf(path_or_id):
        return AutoConfig.from_pretrained(Path(path_or_id).parent, gguf_file=Path(path_or_id).name, **options)
    return AutoConfig.from_pretrained(path_or_id, **options)


def convert(path: str | Path, has_template: bool = False) -> Path:
    """Convert a GGUF file once into a folder of the cache in Hugging Face's format, in float32; return that folder.

    The cache key is the file's path, size and modification time.

    Args:
        has_template: whether another chat template is given, so that the file needs none.

    Raises:
        ImportError: the package gguf is not installed.
        ValueError: it is no readable GGUF file of a known architecture with all weights and a chat template, or the cache is not
            writable.
    """
    path = Path(path).absolute()
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    state = path.stat()
    identity = f"{path}\n{state.st_size}\n{state.st_mtime_ns}\n{transformers.__version__}\n{_VERSION}"
    root = cache_folder() / "gguf"
    folder = root / hashlib.sha256(identity.encode()).hexdigest()[:16]
    if folder.is_dir():
        return folder
    architecture, special_ids, holds_template = _read_header(path)
    if not has_template and not holds_template:
        raise UserError(f"{path.name} has no chat template: use an instruction-tuned model, or --chat-template FILE")
    print(f"{path.name} ({architecture}) is converted once, into {folder}", file=sys.stderr)
    try:
        durable.make_folder(root)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=root) as staging:
            target = Path(staging) / "model"
            _write_folder(path, architecture, special_ids, target)
            durable.publish(target, folder)
    except OSError as error:
        if not folder.is_dir():  # else another process was faster, and wrote the same
            advice = "set AGENT_ENVS_CACHE to a folder with room for it"
            raise UserError(f"{path.name} cannot be converted into {root}: {error}; {advice}") from error
    return folder


def _read_header(path: Path) -> tuple[str, dict[str, int], bool]:
    """Read the architecture, the ids of special tokens by their names in a tokenizer, and whether there is a chat template."""
    try:
        import gguf
    except ImportError as error:
        raise ImportError(f"{path.name} needs the package gguf: pip install -e '.[gguf]' in the clone") from error
    try:
        with warnings.catch_warnings(action="ignore"):
            reader = gguf.GGUFReader(path)
            architecture = reader.get_field("general.architecture")
            template = reader.get_field("tokenizer.chat_template")
            fields = {name: reader.get_field(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIAL_TOKENS.items()}
    except Exception as error:  # gguf may fail in any way on other bytes
        raise UserError(f"{path} is not a GGUF file, or an incomplete one: {error}") from error
    ids = {name: int(field.contents()) for name, field in fields.items() if field}
    return str(architecture.contents()) if architecture else "unknown", ids, bool(template and template.contents())


def _write_folder(path: Path, architecture: str, special_ids: dict[str, int], target: Path) -> None:
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(**where)
        loaded: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, output_loading_info=True)
    except (ValueError, NotImplementedError, LookupError, AttributeError, TypeError) as error:
        raise UserError(
            f"{path.name}: transformers {transformers.__version__} cannot read a GGUF of the architecture "
            f"{architecture!r}: {' '.join(str(error).split())[:200]}"
        ) from error
    model, found = loaded
    if missing := sorted(found["missing_keys"]):  # the library would initialise them at random
        raise UserError(f"{path.name} lacks {len(missing)} weights of {type(model).__name__}, such as {missing[0]}")
    _restore_rope_scaling(path, architecture, model.config)
    # Some versions of transformers take bos for eos.
    for name, id in special_ids.items():
        setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(id))
    # The weights are plain numbers here; these entries would still describe them as packed.
    del model.hf_quantizer, model.config.quantization_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _restore_rope_scaling(path: Path, architecture: str, config: PreTrainedConfig) -> None:
    """Write the file's scaling of rotary angles into the configuration; transformers reads it for gpt-oss only (5.23).

    Raises:
        ValueError: the scaling is of another kind.
    """
    import gguf

    if architecture == "gpt-oss":
        return
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}

    def read(key: str) -> Any:
        field = reader.get_field(f"{architecture}.rope.scaling.{key}")
        return field and field.contents()

    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)  # Gemma 3 scales those layers only
    kind, factors = read("type") or "none", tensors.get("rope_freqs.weight")
    if factors is not None:  # llama.cpp has no other sign of this kind, which Llama 3.1 and later have
        kind = "llama3"
        known = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        rope |= {"rope_type": kind, "factor": float(factors.max()), **known}
        scaled, _ = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        plain = rope["rope_theta"] ** -(torch.arange(len(scaled)) / len(scaled))
        is_known = len(factors) == len(scaled) and np.allclose(factors, plain / scaled, rtol=1e-3)
    else:
        is_known = kind in ("none", "linear", "yarn") and not any("rope_factors_" in name for name in tensors)
        if is_known and kind != "none":
            rope |= {"rope_type": kind, "factor": float(read("factor"))}
        if kind == "yarn":
            rope["original_max_position_embeddings"] = int(read("original_context_length"))
    if not is_known:
        raise UserError(
            f"{path.name} scales rotary angles in a way that is not read from GGUF: take the original model"
        )
