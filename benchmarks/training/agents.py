"""Compare whole training steps of a program with the environment's own rollout: the cost of calls, threads and client.

    python -m benchmarks.training.agents                               # the tiny policy, a minute
    python -m benchmarks.training.agents --model examples/smollm2-hotpotqa --base-model MODEL --episodes 8 --steps 2

The program is examples/openai_agent.py by default. Both sides take steps in turn, with the same weights, questions and noise.
Their episodes are the same, token by token, except some with a malformed turn: ``equal`` is the share of the same ones. A ratio
is the median over the steps of the program's time divided by the environment's. Ends with one line of JSON.
"""

import json
import statistics
import time
from array import array
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import tyro

from trainers import grpo
from trainers.agents.calls import seed_of
from trainers.engines.engine import SamplingParams
from trainers.engines.transformers_engine import TransformersEngine
from trainers.factory import make_envs
from trainers.models.loading import load_policy
from trainers.models.lora import trainable_parameters
from trainers.rollouts.agent_rollout import AgentRollout, draw_seeds
from trainers.rollouts.collector import collect_batch
from trainers.runtime.progress import to_json_types
from trainers.tiny.cold_start import SHIPPED


@dataclass(kw_only=True)
class Args:
    """Measure the time of a program's steps against the environment's own rollout of the same episodes."""

    model: str = str(SHIPPED)
    """Causal language model with a chat template, or a LoRA adapter of one; by default the shipped tiny policy."""
    base_model: str | None = None
    """Base model of the adapter, instead of the one that the adapter names."""
    agent: str = "examples.openai_agent:solve"
    """The program: a function, "module:function", or a command."""
    env: str = "AgentR1/MiniWiki-v0"
    """Registered environment id."""
    env_kwargs: str = "{}"
    """Arguments of the environment, as JSON."""
    episodes: int = 64
    """Episodes of a step, all at once, in groups of 8."""
    max_new_tokens: int = 64
    """Longest turn, in tokens."""
    steps: int = 10
    """Measured steps of each side."""
    warm_up: int = 1
    """Steps of each side before the measured ones."""
    seed: int = 0
    """Seed of the questions; the noise of a step depends only on its number."""
    out: Path | None = None
    """File to write the JSON to, in addition to printing it."""


class SeededEngine(TransformersEngine):
    """Engine that gives the turns of the environment's own rollout the same noise as those of a program."""

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
    policy = load_policy(args.model, base_model=args.base_model)
    settings = grpo.Args(
        seed=args.seed, lr=1e-9, questions_per_update=args.episodes // 8, max_new_tokens=args.max_new_tokens
    )
    envs = make_envs(args.env, args.env_kwargs, "train", args.episodes)
    stop, roll_out = envs.envs[0].stop, AgentRollout(args.agent)
    sides = {"environment": (SeededEngine(policy, stop), None), "program": (TransformersEngine(policy, stop), roll_out)}
    optimizer = grpo.make_optimizer(policy, [{"params": trainable_parameters(policy.model), "lr": settings.lr}])
    rounds: list[dict[str, Step]] = []
    for number in range(args.warm_up + args.steps):
        rounds.append({})
        for name in sorted(sides, reverse=number % 2 == 1):
            torch.manual_seed(number)
            engine, how = sides[name]
            begin, cpu = time.perf_counter(), time.process_time()
            batch = collect_batch(settings, envs, policy, engine, number, how)
            rollout = time.perf_counter() - begin
            grpo.update(settings, policy, optimizer, None, grpo.compute_advantages, batch.trajectories, batch.rng)
            ids = [[(step.prompt, step.tokens) for step in episode.steps] for episode in batch.sampled]
            rounds[-1][name] = Step(time.perf_counter() - begin, time.process_time() - cpu, rollout, ids)
    roll_out.close()
    counted = rounds[args.warm_up :]
    ids = [(a, b) for one in counted for a, b in zip(one["program"].ids, one["environment"].ids, strict=True)]
    result = {
        **{f"ratio_{name}": compare(counted, name) for name in ("seconds", "processor_seconds", "rollout_seconds")},
        **{name: round(statistics.median(one[name].seconds for one in counted), 2) for name in sides},
        "equal": round(statistics.mean(a == b for a, b in ids), 3),
        "calls_per_step": round(sum(len(a) for a, _ in ids) / len(counted), 1),
        "settings": to_json_types(asdict(args)),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(result))
    if args.out:
        args.out.write_text(json.dumps(result) + "\n")
    return result


class Step(NamedTuple):
    """Times of a step in seconds (the first two with its update), and the ids of its episodes."""

    seconds: float
    processor_seconds: float
    rollout_seconds: float
    ids: list


def compare(rounds: list[dict[str, Step]], name: str) -> float:
    """Compute the median over the steps of the program's time divided by the environment's."""
    return round(statistics.median(getattr(r["program"], name) / getattr(r["environment"], name) for r in rounds), 3)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
