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
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from agent_envs.data.local import cache_folder
from retrieval_index import durable
from trainers.runtime.errors import UserError

SUFFIX = ".gguf"
# Of other architectures, transformers ignores settings, or was not compared.
ARCHITECTURES = "llama", "qwen2", "qwen3", "gemma3"
SPLITS = ["default", "gpt-2"]  # ways to split text into words that transformers knows
if tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 18):
    SPLITS += ["llama-bpe", "llama3", "llama-v3", "qwen2", "tekken"]
_VERSION = 3  # of the conversion
_CONTROL = 3  # the type of a control token
_YARN = [f"yarn_{name}" for name in ("attn_factor", "ext_factor", "beta_fast", "beta_slow", "log_multiplier")]
_SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def is_gguf(path_or_id: str | Path) -> bool:
    """Whether a name is that of a GGUF file."""
    return str(path_or_id).lower().endswith(SUFFIX)


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
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UserError(f"{path.name}: GGUF is read of {known}, not of {architecture!r}: take the original model")
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
            f"{path.name}: transformers {transformers.__version__} cannot read it: {' '.join(str(error).split())[:200]}"
        ) from error
    model, found = loaded
    if missing := sorted(found["missing_keys"]):  # the library would initialise them at random
        raise UserError(f"{path.name} lacks {len(missing)} weights of {type(model).__name__}, such as {missing[0]}")
    # What transformers leaves out without a word (5.23) is restored, or the file is refused.
    file = _File(path, architecture)
    for problem in (file.find_unread(model), file.restore_angles(model.config), file.restore_words(tokenizer)):
        if problem:
            raise UserError(f"{path.name} {problem}, which is not read from GGUF: take the original model")
    # Some versions of transformers take bos for eos.
    for name, id in special_ids.items():
        setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(id))
    if ends := file.find_ends():
        model.generation_config.eos_token_id = ends[0] if len(ends) == 1 else ends
    # The weights are plain numbers here; these entries would still describe them as packed.
    del model.hf_quantizer, model.config.quantization_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


class _File:
    """The metadata and tensors of a GGUF file. Checks return what a model made of it would lack; "" if nothing."""

    def __init__(self, path: Path, architecture: str):
        import gguf

        self._reader, self._architecture = gguf.GGUFReader(path), architecture

    def _read(self, key: str) -> Any:
        field = self._reader.get_field(key)
        return field and field.contents()

    def find_unread(self, model: PreTrainedModel) -> str:
        """Find weights that the model class has no place for, and a scale that the file does not hold."""
        held = sum(int(tensor.n_elements) for tensor in self._reader.tensors if not tensor.name.startswith("rope_"))
        if held > sum({weight.data_ptr(): weight.numel() for weight in model.state_dict().values()}.values()):
            return f"holds weights that {type(model).__name__} lacks"
        size, scale = (getattr(model.config, name, None) for name in ("head_dim", "query_pre_attn_scalar"))
        return "scales attention" if scale not in (None, size) else ""  # Gemma 3 with 27 B weights

    def restore_angles(self, config: PreTrainedConfig) -> str:
        """Write the scaling of rotary angles into the configuration."""
        prefix, problem = f"{self._architecture}.rope.scaling.", "scales rotary angles"
        tensors = {tensor.name: tensor.data for tensor in self._reader.tensors}
        rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
        rope = rope.get("full_attention", rope)  # Gemma 3 scales those layers only
        kind, factors = self._read(f"{prefix}type") or "none", tensors.get("rope_freqs.weight")
        if factors is not None:  # llama.cpp has no other sign of this kind, which Llama 3.1 and later have
            known = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
            rope |= {"rope_type": "llama3", "factor": float(factors.max()), **known}
            scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
            plain = rope["rope_theta"] ** -(torch.arange(len(scaled)) / len(scaled))
            is_same = len(factors) == len(scaled) and np.allclose(factors, plain / scaled, rtol=1e-3)
            return "" if is_same else problem
        more = [name for name in ("attn_factor", *_YARN) if self._read(f"{prefix}{name}")]
        if kind not in ("none", "linear", "yarn") or more or any("rope_factors_" in name for name in tensors):
            return problem
        if kind != "none":
            rope |= {"rope_type": kind, "factor": float(self._read(f"{prefix}factor"))}
        if kind == "yarn":
            rope["original_max_position_embeddings"] = int(self._read(f"{prefix}original_context_length"))
        return ""

    def restore_words(self, tokenizer: Any) -> str:
        """Let the tokenizer split text as the original does, and check its control tokens."""
        splits = self._read("tokenizer.ggml.pre") or "default"
        if splits == "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        elif splits not in SPLITS and self._read("tokenizer.ggml.model") == "gpt2":
            return f"splits text in the way {splits!r}"
        kinds, tokens = self._read("tokenizer.ggml.token_type") or (), self._read("tokenizer.ggml.tokens") or ()
        for id, (kind, token) in enumerate(zip(kinds, tokens, strict=False)):
            if kind == _CONTROL and tokenizer.encode(token, add_special_tokens=False) != [id]:
                return f"has the control token {token!r}"
        return ""

    def find_ends(self) -> list[int]:
        """Find the ids of tokens that end a turn."""
        ids = (self._read(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
        return sorted({int(id) for id in ids if id is not None})
