"""A policy from a folder, a GGUF file or a hub id."""

import inspect
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    FineGrainedFP8Config,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import cached_file, logging
from transformers.utils.quantization_config import Mxfp4Config

from retrieval_index import hub
from trainers.models import gguf, lora
from trainers.models.architecture import find_backbone, layer_kinds
from trainers.models.hidden_states import has_bfloat16_products, round_experts, round_frozen
from trainers.models.policy import Policy, check_finite
from trainers.runtime.errors import UserError

logging.disable_progress_bar()  # the library's bars would disturb ours
_UNPACKED = {"mxfp4": Mxfp4Config, "fp8": FineGrainedFP8Config}  # packed weights, which are unpacked when read


def default_device() -> str:
    """Return "cuda" if there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def episodes_at_once() -> int:
    """Return how many episodes an evaluation rolls out at once: on a GPU four times as many, as a step takes no longer."""
    return 256 if default_device() == "cuda" else 64


def set_matmul_precision(model: PreTrainedModel, dtype: str) -> None:
    """Run the head's float32 products, beside bfloat16 layers on a GPU, in TF32; this holds for the whole process.

    They stay in float32 if the library computes the rotary angles by a matrix product, which needs full precision.
    """
    torch.set_float32_matmul_precision("highest")
    if dtype != "bfloat16" or model.device.type != "cuda":
        return
    try:
        expected = _rotary_angles(model)
        torch.set_float32_matmul_precision("high")
        error = max(float((x - y).abs().max()) for x, y in zip(_rotary_angles(model), expected, strict=True))
    except Exception:  # a model without a rotary embedding, or with another kind
        error = float("inf")
    if error > 1e-3:
        torch.set_float32_matmul_precision("highest")
        advice = "the head is multiplied in float32, which is slow: another version of transformers may do better"
        warnings.warn(advice, stacklevel=2)


@torch.no_grad()
def _rotary_angles(model: PreTrainedModel) -> list[torch.Tensor]:
    rotary: Any = find_backbone(model).rotary_emb
    given = torch.zeros(1, device=model.device), torch.arange(2**13, device=model.device)[None]
    by_kind = "layer_type" in inspect.signature(rotary.forward).parameters
    kinds = [(kind,) for kind in sorted(layer_kinds(model.config.get_text_config()))] if by_kind else [()]
    return [angles for kind in kinds for angles in rotary(*given, *kind)]


def load_policy(
    path_or_id: str | Path, device: str | None = None, dtype: str = "float32", lora_rank: int = 0, lora_alpha: int = 32,
    base_model: str | Path | None = None, chat_template: str | Path = "", thinking: str = "auto",
) -> Policy:  # fmt: skip
    """Load a causal language model with a chat template, or a LoRA adapter of one.

    Trainable weights are float32: in bfloat16 an update of lr 1e-6 is rounded away.

    Args:
        path_or_id: a folder in Hugging Face's format, a GGUF file or a hub id.
        dtype: "bfloat16" runs the layers in it and stores frozen linear layers in it, if the CPU or GPU supports it.
        lora_rank: rank of a new adapter; 0 for none. Its output is scaled by ``lora_alpha / lora_rank``.
        base_model: the base of the adapter in ``path_or_id``, instead of the one that it names.
        chat_template: a file with a chat template, instead of the tokenizer's own.
        thinking: see `Policy`.

    Raises:
        ValueError: there is no such model or base; no chat template, or one that cannot be rendered; ``lora_rank`` with an
            adapter, ``base_model`` without one; NaN weights.
    """
    device = device or default_device()
    _ask_hub(path_or_id)
    if base := _find_base(path_or_id, base_model):
        _ask_hub(base)
    if base and lora_rank:
        raise UserError(f"{path_or_id} is an adapter of {base} already: leave out lora_rank to train it further")
    folder = _to_folder(base or path_or_id, has_template=bool(chat_template))
    try:
        tokenizer = load_tokenizer(path_or_id if base and _has_tokenizer(path_or_id) else folder)
        model = _load_model(folder)
        model.name_or_path = str(base or path_or_id)  # what an adapter names as its base: not a folder of the cache
        if base:
            lora.add_saved_lora(model, path_or_id)
        if chat_template:
            tokenizer.chat_template = Path(chat_template).read_text(encoding="utf-8-sig")
    except (MemoryError, torch.OutOfMemoryError, UserError):
        raise
    except Exception as error:  # libraries raise various errors for damaged or foreign files
        raise _explain(path_or_id, error) from error
    check_finite(model.named_parameters(), path_or_id)
    if lora_rank:
        lora.add_lora(model, lora_rank, lora_alpha)
    if dtype == "bfloat16" and not has_bfloat16_products(device):
        print("This CPU has no bfloat16 matmul: the layers run in float32.", file=sys.stderr)
        dtype = "float32"
    if dtype == "bfloat16":
        round_frozen(model)
        if lora.has_lora(model):
            round_experts(model)
    model = model.to(device)  # type: ignore[arg-type]  # transformers wraps the method without its self
    set_matmul_precision(model, dtype)
    try:
        return Policy(model, tokenizer, getattr(torch, dtype), thinking)
    except ValueError as error:  # of its chat template
        raise UserError(f"{path_or_id} cannot be used: {error}") from error


def _ask_hub(path_or_id: str | Path) -> None:
    """Raise a ValueError at once if a model is given by hub id, and the hub is unreachable or lacks it."""
    if hub.is_hub_id(path_or_id):
        hub.check_model(str(path_or_id))


def _find_base(path_or_id: str | Path, base_model: str | Path | None) -> str | None:
    """Find the base model of an adapter; None for a model that is not an adapter."""
    try:
        named = None if gguf.is_gguf(path_or_id) else lora.find_base_model(path_or_id)
    except (OSError, ValueError) as error:
        raise _explain(path_or_id, error) from error
    if named is None:
        if base_model:
            raise UserError(f"{path_or_id} is not a LoRA adapter, so it has no base model: leave out {base_model}")
        return None
    base = str(base_model or named)
    if not base:
        raise UserError(f"{path_or_id} does not name its base model: give --base-model, or --model with --checkpoint")
    is_path = Path(base).is_absolute() or gguf.is_gguf(base)
    if is_path and not Path(base).exists():
        raise UserError(
            f"{path_or_id} is an adapter of {base}, which is not here: give its base model (--base-model, or --model "
            "with --checkpoint)"
        )
    return base


def _explain(path_or_id: str | Path, error: Exception) -> UserError:
    what = "give a local folder, a GGUF file or a model id"
    fault = " ".join(str(error).split()) or type(error).__name__
    return UserError(f"cannot load a model from {str(path_or_id)!r}: {what}. {fault[:300]}")


def _to_folder(path_or_id: str | Path, has_template: bool) -> str:
    return str(gguf.convert(path_or_id, has_template) if gguf.is_gguf(path_or_id) else path_or_id)


def _load_model(folder: str) -> PreTrainedModel:
    """Load a whole model in float32, with the layers for images if it has them: without them, it would be saved under other
    names of its weights. Raises ValueError if weights are missing, or packed by a method that is not in `_UNPACKED`."""
    config = AutoConfig.from_pretrained(folder)
    of_text: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    is_whole = of_text is not None and of_text.config_class is type(config)
    is_whole |= type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    auto = AutoModelForCausalLM if is_whole else AutoModelForImageTextToText
    packed, options = getattr(config, "quantization_config", None), {}
    if packed is not None:
        method = (packed if isinstance(packed, dict) else packed.to_dict()).get("quant_method")
        if method not in _UNPACKED:
            raise UserError(f"{folder} holds weights packed by {method}: take the model that it was made from")
        options = {"quantization_config": _UNPACKED[method](dequantize=True)}
    loaded: Any = auto.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **options)
    model, found = loaded
    if missing := sorted(found["missing_keys"]):  # the library would initialise them at random
        raise UserError(f"{folder} lacks {len(missing)} weights of {type(model).__name__}, such as {missing[0]}")
    if packed is not None:
        model._weight_conversions = None  # or they would be saved under the names of the packed ones
    ids = {name: getattr(model.generation_config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(
        **ids
    )  # its sampling is not that of training, and may be too odd to be saved
    for parameter in model.parameters():
        if parameter.is_floating_point():  # those that were packed come in bfloat16
            parameter.data = parameter.data.float()
    _align(model)
    return model


@torch.no_grad()
def _align(model: PreTrainedModel) -> None:
    """Copy weights that are not 64-byte aligned, as from safetensors: CPU kernels would round differently after a save."""
    for parameter in model.parameters():
        if parameter.device.type == "cpu" and parameter.data_ptr() % 64:
            parameter.data = parameter.data.clone()


def _has_tokenizer(path_or_id: str | Path) -> bool:
    """Whether an adapter, in a folder or on the hub, has its own tokenizer: many do not, and use that of their base."""
    return cached_file(path_or_id, "tokenizer_config.json", _raise_exceptions_for_missing_entries=False) is not None


def load_tokenizer(path_or_id: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer in tokenizer.json. For some model types AutoTokenizer would replace it by the type's default."""
    path_or_id = _to_folder(path_or_id, has_template=True)
    try:
        # Mistral's older files hold a wrong pattern; of no other tokenizer does this change anything.
        tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(path_or_id, fix_mistral_regex=True)
        # It would be saved, and transformers below 5.4 fails on it.
        tokenizer.init_kwargs.pop("fix_mistral_regex", None)
        return tokenizer
    except (OSError, ValueError):  # no tokenizer.json: a slow tokenizer
        return AutoTokenizer.from_pretrained(path_or_id)
