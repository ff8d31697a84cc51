"""The arguments of `benchmarks.training.trl_cpu`, which all its sides read."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainers import grpo

TRL = ("environment_factory", "rollout_func")
AGAINST = (*TRL, "generate", "vllm")
AT_ONCE = 4  # of a real model's episodes in a pass of TRL's: 4 of 700 tokens take some 6 GiB with 135 M weights


@dataclass(kw_only=True)
class Args:
    """Measure our trainer and engine against TRL, transformers and vLLM on this machine's CPU."""

    model: str = "tiny"
    """A causal language model with a chat template: a folder, a GGUF file or a hub id; or a LoRA adapter of one, such as a
    checkpoint of `trainers.sft`. It starts as it is. "tiny" is made here, and taught to play three turns first."""
    lora_rank: int = 0
    """Train a new LoRA adapter of this rank on all linear layers but the head; 0 trains what the model has: its weights, or
    the adapter that it is. This, what follows and --env are for a model that is given."""
    lora_alpha: int = 32
    """Scale of the new adapter, which is multiplied by alpha / rank."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the layers run in, on every side."""
    at_once: int = 0
    """Episodes in a pass of TRL's updates, a divisor of those of a step; 0 for all of the tiny policy's, and for 4 of a model
    that is given or as many as divide them."""
    env: str = "AgentR1/MiniWiki-Easy-v0"
    """Registered environment id, of a task or a mixture of tasks that have a search and an answer."""
    env_kwargs: str = "{}"
    """Its arguments as JSON."""
    against: tuple[Literal["environment_factory", "rollout_func", "generate", "vllm"], ...] = AGAINST
    """What to measure against; vLLM is left out where it is not installed."""
    episodes: int = 64
    """In a step, and prompts that are sampled from at once."""
    group_size: int = 8
    """Episodes per question."""
    steps: int = 7
    """Of each side that count."""
    warm_up: int = 2
    """Steps of each side before them."""
    max_new_tokens: int = 32
    """Longest turn."""
    decode_tokens: int = 128
    """New tokens for each prompt where sampling alone is measured."""
    lr: float = 1e-5
    """Learning rate of AdamW."""
    threads: int = 2
    """Of torch, on every side."""
    seed: int = 0
    """Seeds the start, the questions and the sampling."""

    def __post_init__(self):
        least = {"episodes": 1, "group_size": 2, "steps": 1, "warm_up": 0, "max_new_tokens": 1, "decode_tokens": 1}
        least |= {"threads": 1, "seed": 0, "lora_rank": 0, "lora_alpha": 1, "at_once": 0}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"{name} must be at least {value}, got {getattr(self, name)}")
        if self.episodes % self.group_size:
            raise ValueError(f"episodes must be a multiple of group_size, {self.group_size}, got {self.episodes}")
        if self.at_once and self.episodes % self.at_once:
            raise ValueError(f"at_once must divide episodes, {self.episodes}, got {self.at_once}")
        if not self.against:
            raise ValueError(f"give something to measure against: {', '.join(AGAINST)}")
        given = ("lora_rank", "lora_alpha", "dtype", "env", "env_kwargs")
        if not self.is_real and (set_ := [name for name in given if getattr(self, name) != getattr(Args, name)]):
            raise ValueError(f"the tiny policy has no {set_[0]}, which is for a model that is given by --model")

    @property
    def is_real(self) -> bool:
        """Whether a model is given."""
        return self.model != "tiny"

    @property
    def rounds(self) -> int:
        return self.warm_up + self.steps

    @property
    def pass_size(self) -> int:
        """Episodes in a pass of TRL's updates."""
        return self.at_once or (math.gcd(AT_ONCE, self.episodes) if self.is_real else self.episodes)

    def trainer_args(self, model: str = "tiny") -> grpo.Args:
        return grpo.Args(
            env=self.env, env_kwargs=self.env_kwargs, model=model, dtype=self.dtype, seed=self.seed, lr=self.lr,
            questions_per_update=self.episodes // self.group_size, group_size=self.group_size,
            max_new_tokens=self.max_new_tokens,
        )  # fmt: skip

    def question_seeds(self) -> list[int]:
        """One per question, in order, of all steps: what `trainers.rollouts.collector` draws."""
        drawn = (np.random.default_rng([self.seed, number]) for number in range(self.rounds))
        return [seed for rng in drawn for seed in rng.integers(2**31, size=self.episodes // self.group_size).tolist()]
