"""Make the environments and the policy that the command line asks for."""

import json
from pathlib import Path

import gymnasium
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging

import agent_envs  # noqa: F401  (registers the ids)
from agent_envs.vector import ToolVectorEnv
from trainers.policy import Policy

logging.disable_progress_bar()  # they would draw into ours


def make_envs(id: str, kwargs: str, split: str, num_envs: int) -> ToolVectorEnv:
    """A vector of environments from command-line values; ``kwargs`` is a JSON object."""
    try:
        arguments = json.loads(kwargs)
    except json.JSONDecodeError as error:
        raise ValueError(f"the environment arguments are not valid JSON: {error}; got {kwargs!r}") from error
    if not isinstance(arguments, dict):
        raise ValueError(f"the environment arguments must be a JSON object, got {kwargs!r}")
    if taken := {"split", "num_envs"} & set(arguments):
        raise ValueError(f"{sorted(taken)} cannot be among the environment arguments: the command sets them itself")
    return gymnasium.make_vec(id, num_envs=num_envs, split=split, **arguments)


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_policy(path_or_id: str | Path, device: str | None = None) -> Policy:
    """Any Hugging Face causal language model with a chat template.

    Weights are float32: in bfloat16, with 8 bits of precision, an update of lr 1e-6 is rounded away.
    """
    device = device or default_device()
    try:
        tokenizer = _load_tokenizer(path_or_id)
        model = AutoModelForCausalLM.from_pretrained(path_or_id, dtype=torch.float32).to(device)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"cannot load a model from {path_or_id!r}: give a local folder or a model id. {error}"
        ) from error
    return Policy(model, tokenizer)


def _load_tokenizer(path_or_id: str | Path):
    """The tokenizer exactly as tokenizer.json has it. AutoTokenizer decides by the model type and would silently
    replace the word-level tokenizer of a Qwen2-architecture model by Qwen's own byte-level one."""
    try:
        return PreTrainedTokenizerFast.from_pretrained(path_or_id)
    except (OSError, ValueError):  # no tokenizer.json: a slow tokenizer
        return AutoTokenizer.from_pretrained(path_or_id)
