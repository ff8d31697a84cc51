"""Whole training steps of a program against the environment's own rollout: what calls, threads and their client cost.

    python -m benchmarks.training.agents                               # the tiny policy, a minute
    python -m benchmarks.training.agents --model MODEL --episodes 64   # a pretrained model: a folder, a GGUF file or a hub id

The program is examples/openai_agent.py. Both sides take steps in turn, with the same weights, questions and noise, so that their
episodes are the same, token by token: ``equal`` is the share that is. The ratio is the median over the steps of how much longer
the program's took, rollout and update together. Ends with one line of JSON.
"""

import json
import statistics
import time
from array import array
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro

from trainers import grpo
from trainers.agents.calls import seed_of
from trainers.engines.engine import SamplingParams
from trainers.engines.transformers_engine import TransformersEngine
from trainers.factory import make_envs
from trainers.models.loading import load_policy
from trainers.rollouts.agent_rollout import AgentRollout, draw_seeds
from trainers.rollouts.collector import collect_batch
from trainers.tiny.cold_start import SHIPPED


@dataclass(kw_only=True)
class Args:
    """Measure what a program's steps take, against the environment's own rollout of the same episodes."""

    model: str = str(SHIPPED)
    """A causal language model with a chat template; by default the shipped tiny policy."""
    agent: str = "examples.openai_agent:solve"
    """The program."""
    env: str = "AgentR1/MiniWiki-v0"
    """Registered environment id."""
    env_kwargs: str = "{}"
    """Its arguments as JSON."""
    episodes: int = 64
    """At once, in groups of 8."""
    max_new_tokens: int = 64
    """Longest turn."""
    steps: int = 10
    """Of each side that count, after one that does not."""
    seed: int = 0
    """Seeds the questions and the sampling."""
    out: Path | None = None
    """Where to write the result as JSON besides."""


class SeededEngine(TransformersEngine):
    """Gives the turns of the environment's own rollout the noise that those of a program have."""

    def reset(self) -> None:
        super().reset()
        self._episodes: list[int] = []
        self._prompts: Counter[tuple[int, bytes]] = Counter()

    def submit(self, prompts: dict[int, list[int]], params: SamplingParams, seeds: None = None) -> None:
        self._episodes = self._episodes or draw_seeds(len(prompts))
        noise = {}
        for key, prompt in prompts.items():
            said = array("q", prompt).tobytes()
            self._prompts[key, said] += 1
            noise[key] = seed_of(self._episodes[key], said, self._prompts[key, said])
        super().submit(prompts, params, noise if params.temperature else None)


def main(args: Args) -> dict:
    policy = load_policy(args.model, "cpu")
    settings = grpo.Args(
        seed=args.seed, lr=1e-9, questions_per_update=args.episodes // 8, max_new_tokens=args.max_new_tokens
    )
    envs = make_envs(args.env, args.env_kwargs, "train", args.episodes)
    stop, roll_out = envs.envs[0].stop, AgentRollout(args.agent)
    sides = {
        "environment": (SeededEngine(policy, stop), None),
        "program": (TransformersEngine(policy, stop), roll_out),
    }
    optimizer = grpo.make_optimizer(policy, [{"params": policy.model.parameters(), "lr": settings.lr}])
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    rollouts: dict[str, list[float]] = {name: [] for name in sides}
    processor: dict[str, list[float]] = {name: [] for name in sides}
    equal, turns = [], []
    for number in range(args.steps + 1):
        ids = {}
        for name in sorted(sides, reverse=number % 2 == 1):
            engine, how = sides[name]
            torch.manual_seed(number)
            begin, cpu = time.perf_counter(), time.process_time()
            batch = collect_batch(settings, envs, policy, engine, number, how)
            rollouts[name].append(time.perf_counter() - begin)
            grpo.update(settings, policy, optimizer, None, grpo.compute_advantages, batch.episodes, batch.rng)
            seconds[name].append(time.perf_counter() - begin)
            processor[name].append(time.process_time() - cpu)
            ids[name] = [[(step.prompt, step.tokens) for step in episode.steps] for episode in batch.sampled]
        equal += [a == b for a, b in zip(*ids.values(), strict=True)]
        turns += [len(steps) for steps in ids["program"]]
    roll_out.close()
    result = {
        "ratio": ratio(seconds),
        "rollout_ratio": ratio(rollouts),
        "processor_ratio": ratio(processor),
        "equal": statistics.mean(equal),
        "calls_per_episode": statistics.mean(turns),
        "seconds": {name: [round(value, 3) for value in values[1:]] for name, values in seconds.items()},
        "rollout_seconds": {name: [round(value, 3) for value in values[1:]] for name, values in rollouts.items()},
        "settings": asdict(args) | {"out": None},
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(result))
    if args.out:
        args.out.write_text(json.dumps(result) + "\n")
    return result


def ratio(seconds: dict[str, list[float]]) -> float:
    """The median of how much longer the program's steps took, without the first."""
    pairs = zip(seconds["program"][1:], seconds["environment"][1:], strict=True)
    return round(statistics.median(program / environment for program, environment in pairs), 3)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
