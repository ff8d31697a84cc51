"""What a training step costs as the work grows: turns, group size, length of the observations, environments.

    python -m benchmarks.training.growth --threads 2

An untrained tiny policy plays an environment that talks for as many turns, and as long, as it is told. It says something
else in every attempt, so attempts share their first prompt and nothing more. One thing grows at a time; the others stay at 64
episodes in groups of 8, 4 turns of 16 tokens, observations of 50. Each step is measured ``repeats`` times, the middle one counts.
Ends with one line of JSON: seconds, and by which power of the thing that grows they grow (1 is linear).
"""

import itertools
import json
import math
import statistics
import time
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from agent_envs.generators.miniwiki import vocabulary
from agent_envs.rewards import Metric, Reward
from agent_envs.tool_env import ToolEnv
from agent_envs.types import Turn, TurnOutcome
from agent_envs.vector import ToolVectorEnv
from trainers import grpo
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models.lora import trainable_parameters
from trainers.models.policy import Policy
from trainers.rollouts.collector import play_batch
from trainers.tiny import model as tiny

NEW_TOKENS = 16
GROWS = {
    "turns": (2, 4, 8, 16, 32),
    "group_size": (2, 4, 8, 16, 32),
    "observation": (25, 50, 100, 200, 400),
    "episodes": (16, 32, 64, 128, 256),
}


@dataclass(frozen=True, kw_only=True)
class Work:
    """``observation``: tokens that come back after each turn."""

    turns: int = 4
    group_size: int = 8
    observation: int = 50
    episodes: int = 64


@dataclass(kw_only=True)
class Args:
    """Measure rollouts and updates as one thing grows at a time."""

    grows: tuple[str, ...] = tuple(GROWS)
    """What grows: turns, group_size, observation, episodes."""
    repeats: int = 3
    """Steps for each size, after one that is not counted."""
    threads: int = 1
    """Of torch."""
    seed: int = 0
    """Of the weights, and of the sampling."""

    def __post_init__(self):
        if unknown := set(self.grows) - set(GROWS):
            raise ValueError(f"unknown {sorted(unknown)}; known are {list(GROWS)}")


class AnyText:
    """A format in which any text is a turn that calls nothing and answers nothing."""

    stop, special_tokens = (), False

    def instructions(self) -> str:
        return ""

    def parse(self, text: str) -> Turn:
        return Turn(error="")


class Talker(ToolEnv):
    """Says so many words after each turn; each copy pays something else."""

    REWARD = Reward(paid=(1.0, Metric("em")))

    def __init__(self, work: Work, words: list[str], pays: float):
        super().__init__((), instructions="", max_turns=work.turns)
        self.format, self.work, self.words, self.pays = AnyText(), work, words, pays

    def begin(self, options):
        return self._talk(), {}

    def evaluate_turn(self, turn, results, done):
        return TurnOutcome({"em": self.pays if done else 0.0})

    def _observe(self, turn, results):
        return self._talk()

    def _talk(self) -> str:
        return " ".join(self.np_random.choice(self.words, self.work.observation))


def step(args: Args, work: Work) -> tuple[float, float]:
    """Seconds of a rollout, and of an update."""
    torch.manual_seed(args.seed)
    words = [word for word in vocabulary() if word.isalpha()][:500]
    tokenizer = tiny.make_tokenizer([" ".join(words)])
    policy = Policy(tiny.make_model(len(tokenizer)), tokenizer)
    policy.end_ids = set()  # every turn is as long as it may be
    settings = grpo.Args(
        questions_per_update=work.episodes // work.group_size, group_size=work.group_size, max_new_tokens=NEW_TOKENS, lr=1e-9
    )  # fmt: skip
    pays = itertools.count()
    envs = ToolVectorEnv(lambda: Talker(work, words, float(next(pays) % 7)), work.episodes)
    engine = TransformersEngine(policy, ())
    optimizer = grpo.make_optimizer(policy, [{"params": trainable_parameters(policy.model), "lr": settings.lr}])
    learn = partial(grpo.update, settings, policy, optimizer, None, grpo.compute_advantages)
    rollouts, updates = [], []
    for number in range(1 + args.repeats):
        begin = time.perf_counter()
        batch = play_batch(settings, envs, policy, engine, number)
        middle = time.perf_counter()
        learn(batch.episodes, np.random.default_rng(number))
        rollouts.append(middle - begin)
        updates.append(time.perf_counter() - middle)
    return statistics.median(rollouts[1:]), statistics.median(updates[1:])


def main(args: Args) -> dict:
    torch.set_num_threads(args.threads)
    console, results = Console(), {}
    for name in args.grows:
        table = Table(name, "rollout, s", "update, s", "ms a turn")
        seconds = {}
        for size in GROWS[name]:
            work = replace(Work(), **{name: size})
            seconds[size] = step(args, work)
            rollout, update = seconds[size]
            turns = work.episodes * work.turns
            table.add_row(f"{size}", f"{rollout:.2f}", f"{update:.2f}", f"{(rollout + update) / turns * 1e3:.2f}")
        (first, a), (last, b) = list(seconds.items())[1], list(seconds.items())[-1]
        power = {
            n: math.log(y / x) / math.log(last / first) for n, x, y in zip(("rollout", "update"), a, b, strict=True)
        }
        console.print(table)
        console.print(f"grows by the power {power['rollout']:.2f} (rollout), {power['update']:.2f} (update)\n")
        results[name] = {"seconds": seconds, "power": power}
    print(json.dumps({"settings": asdict(args), "base": asdict(Work()), "grows": results}))
    return results


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
