"""The arguments of `benchmarks.training.trl_cpu`, which all its sides read."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainers import grpo

TRL = ("environment_factory", "rollout_func")
AGAINST = (*TRL, "generate", "vllm")


@dataclass(kw_only=True)
class Args:
    """Measure our trainer and engine against TRL, transformers and vLLM on this machine's CPU."""

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

    env = "AgentR1/MiniWiki-v0"

    def __post_init__(self):
        least = {"episodes": 1, "group_size": 2, "steps": 1, "warm_up": 0, "max_new_tokens": 1, "decode_tokens": 1}
        for name, value in (least | {"threads": 1, "seed": 0}).items():
            if getattr(self, name) < value:
                raise ValueError(f"{name} must be at least {value}, got {getattr(self, name)}")
        if self.episodes % self.group_size:
            raise ValueError(f"episodes must be a multiple of group_size, {self.group_size}, got {self.episodes}")
        if not self.against:
            raise ValueError(f"give something to measure against: {', '.join(AGAINST)}")

    @property
    def rounds(self) -> int:
        return self.warm_up + self.steps

    def trainer_args(self, model: str = "tiny") -> grpo.Args:
        return grpo.Args(
            env=self.env, model=model, seed=self.seed, questions_per_update=self.episodes // self.group_size,
            group_size=self.group_size, lr=self.lr, max_new_tokens=self.max_new_tokens,
        )  # fmt: skip

    def question_seeds(self) -> list[int]:
        """One per question, in order, of all steps: what `trainers.collector` draws."""
        drawn = (np.random.default_rng([self.seed, number]) for number in range(self.rounds))
        return [seed for rng in drawn for seed in rng.integers(2**31, size=self.episodes // self.group_size).tolist()]
