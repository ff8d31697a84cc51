"""A policy from a folder or a hub id."""

import warnings
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from trainers.models import lora as adapters
from trainers.models.hidden_states import round_frozen
from trainers.models.policy import Policy

logging.disable_progress_bar()  # they would draw into ours


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def exact_enough(model: PreTrainedModel, dtype: str) -> None:
    """On a GPU, beside layers in bfloat16, let what stays float32, the head, be multiplied in TF32: with more digits than
    bfloat16 has, and several times as fast. For the whole process, until a model is to run in float32.

    Not where the library finds the angles of positions by a product of matrices: those need all of their digits.
    """
    torch.set_float32_matmul_precision("highest")
    if dtype != "bfloat16" or model.device.type != "cuda":
        return
    rotary = getattr(model.base_model, "rotary_emb", None)
    try:
        expected = _angles(rotary, model.device)
        torch.set_float32_matmul_precision("high")
        error = max(float((x - y).abs().max()) for x, y in zip(_angles(rotary, model.device), expected, strict=True))
    except Exception:  # a model that has its positions in another way
        error = float("inf")
    if error > 1e-3:
        torch.set_float32_matmul_precision("highest")
        advice = "the head is multiplied in float32, which is slow: another version of transformers may do better"
        warnings.warn(advice, stacklevel=2)


@torch.no_grad()
def _angles(rotary: torch.nn.Module, device: torch.device) -> tuple[torch.Tensor, ...]:
    return rotary(torch.zeros(1, device=device), torch.arange(2**13, device=device)[None])


def load_policy(
    path_or_id: str | Path, device: str | None = None, dtype: str = "float32", lora_rank: int = 0, lora_alpha: int = 32
) -> Policy:
    """Any Hugging Face causal language model with a chat template, or a LoRA adapter of one.

    Weights that can be trained are float32: in bfloat16, with 8 bits of precision, an update of lr 1e-6 is rounded away.

    Args:
        dtype: "bfloat16" runs the layers in it, and stores in it the linear layers that an adapter leaves frozen.
        lora_rank: puts a new adapter of this rank on the model; 0 puts none.

    Raises:
        ValueError: there is no such model, or it is an adapter already and ``lora_rank`` asks for another.
    """
    device = device or default_device()
    try:
        tokenizer = _load_tokenizer(path_or_id)
        base = adapters.base_of(path_or_id)
        model = AutoModelForCausalLM.from_pretrained(base or path_or_id, dtype=torch.float32)
        if base:
            adapters.add_saved(model, path_or_id)
    except (OSError, ValueError) as error:
        what = "give a local folder or a model id"
        raise ValueError(f"cannot load a model from {path_or_id!r}: {what}. {error}") from error
    if base and lora_rank:
        raise ValueError(f"{path_or_id} is an adapter of {base} already: leave out lora_rank to train it further")
    if lora_rank:
        adapters.add_lora(model, lora_rank, lora_alpha)
    if dtype == "bfloat16":
        round_frozen(model)
    model = model.to(device)
    exact_enough(model, dtype)
    return Policy(model, tokenizer, getattr(torch, dtype))


def _load_tokenizer(path_or_id: str | Path):
    """The tokenizer exactly as tokenizer.json has it. AutoTokenizer decides by the model type and would silently
    replace the word-level tokenizer of a Qwen2-architecture model by Qwen's own byte-level one."""
    try:
        return PreTrainedTokenizerFast.from_pretrained(path_or_id)
    except (OSError, ValueError):  # no tokenizer.json: a slow tokenizer
        return AutoTokenizer.from_pretrained(path_or_id)
