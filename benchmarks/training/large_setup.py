"""What both sides of `benchmarks.training.large` share: arguments, models of random weights, environments, clocks."""

import json
import resource
import time
from dataclasses import dataclass
from typing import Literal

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from agent_envs.generators.miniwiki import vocabulary
from trainers.factory import make_envs
from trainers.models import lora
from trainers.models.hidden_states import recompute_activations, round_frozen
from trainers.models.loading import default_device, set_matmul_precision
from trainers.models.policy import Policy
from trainers.tiny import model as tiny

# of Qwen2.5: width, of the feed-forward layers, layers, heads, heads of keys and values, whether embedding and head are one
SHAPES = {
    "tiny": (128, 128, 3, 4, 2, True),
    "0.5b": (896, 4864, 24, 14, 2, True),
    "1.5b": (1536, 8960, 28, 12, 2, True),
    "3b": (2048, 11008, 36, 16, 2, True),
    "7b": (3584, 18944, 28, 28, 4, False),
    "14b": (5120, 13824, 48, 40, 8, False),
}
VOCABULARY = 151_936  # of all but the smallest


@dataclass(kw_only=True)
class Args:
    """Measure models of Qwen2.5's shapes on this device."""

    shapes: tuple[Literal["tiny", "0.5b", "1.5b", "3b", "7b", "14b"], ...] = ("0.5b", "1.5b", "3b")
    """Models; "tiny" is for a look at it on a CPU."""
    lora_ranks: tuple[int, ...] = (0,)
    """0 trains all weights, another number an adapter of that rank."""
    env: str = "AgentR1/MiniWiki-Easy-v0"
    """Registered environment id, of a task in which there is a search."""
    env_kwargs: str = "{}"
    """Its arguments as JSON, such as data and index."""
    turns: int = 4
    """Of each episode."""
    episodes: int = 64
    """In a batch."""
    group_size: int = 8
    """Attempts at each question."""
    max_new_tokens: int = 128
    """Of each turn."""
    decode_batches: tuple[int, ...] = (64, 256)
    """Conversations of which tokens are sampled at once where decoding alone is measured."""
    updates: int = 3
    """That count, after one that does not."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass."""
    max_tokens_per_micro_batch: int = 8192
    """In one pass of an update."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the layers."""
    against_trl: bool = False
    """Measure TRL's `GRPOTrainer` too, with a `rollout_func` that samples by `generate`."""
    device: str = ""
    """By default a GPU where there is one."""
    seed: int = 0
    """Of weights and sampling."""

    def __post_init__(self):
        if self.episodes % self.group_size:
            raise ValueError(f"episodes must be a multiple of group_size, {self.group_size}, got {self.episodes}")
        self.device = self.device or default_device()


class Searcher(Policy):
    """Whatever it samples is a search for some words."""

    def __init__(self, *args):
        super().__init__(*args)
        self.end_ids = set()  # nothing ends a turn but its length
        self.words = [word for word in vocabulary() if word.isalpha()]

    def decode(self, ids: list[int]) -> str:
        return f"<search>{' '.join(self.words[i % len(self.words)] for i in ids[:3])}</search>"


def searcher(args: Args, shape: str, lora_rank: int = 0) -> Searcher:
    width, inner, layers, heads, shared, tied = SHAPES[shape]
    torch.manual_seed(args.seed)
    tokenizer = tiny.make_tokenizer(vocabulary())
    config = Qwen2Config(
        vocab_size=len(tokenizer) if shape == "tiny" else VOCABULARY, hidden_size=width, intermediate_size=inner,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=shared, tie_word_embeddings=tied,
        max_position_embeddings=32768,
    )  # fmt: skip
    with torch.device(args.device):
        model = Qwen2ForCausalLM(config)
    if lora_rank:
        lora.add_lora(model, lora_rank, 2 * lora_rank)
    if args.dtype == "bfloat16":
        round_frozen(model)
    model = model.to(args.device)
    set_matmul_precision(model, args.dtype)
    policy = Searcher(model, tokenizer, getattr(torch, args.dtype))
    if args.gradient_checkpointing:
        recompute_activations(policy.model)
    return policy


def environments(args: Args):
    return make_envs(
        args.env, json.dumps(json.loads(args.env_kwargs) | {"max_turns": args.turns}), "train", args.episodes
    )


def now(args: Args) -> float:
    if args.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def reset_peak(args: Args) -> None:
    if args.device != "cpu":
        torch.cuda.reset_peak_memory_stats()


def peak_memory(args: Args) -> float:
    """GiB, of the GPU since `reset_peak`; on a CPU of the whole process since it began."""
    if args.device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
