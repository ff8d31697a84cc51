"""Our GRPO trainer against TRL's on a CPU: the same model and the same work.

    pip install 'trl==1.16.*'
    python -m benchmarks.training.trl_cpu                                   # the tiny policy, 64 episodes a step
    python -m benchmarks.training.trl_cpu --episodes 8 --steps 3            # a quick look
    python -m benchmarks.training.trl_cpu --model MODEL --dtype bfloat16 --lora-rank 16 --lr 1e-4 \
        --env AgentR1/HotpotQA-v0 --env-kwargs '{"source": "local", "k": 2}' --max-new-tokens 48   # a pretrained model

A training step is rollouts with their searches, and one step of AdamW. Both sides start from the same weights and get the same
questions in the same order. Their sampled episodes differ, so the result reports turns and tokens. The tiny policy first learns
three turns in a short cold start; a given model or LoRA adapter starts as it is. With bfloat16, all frozen weights of TRL's side
are bfloat16, as its users have them.

Each side is a process, and they take steps in turn, so that other work on the machine slows both equally. The ratio is the
median over the rounds of TRL's time divided by ours; above 1, ours is faster. Ends with one line of JSON.
"""

import importlib.metadata
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro

from benchmarks.training import trl_side
from trainers import grpo
from trainers.config import Demonstrator
from trainers.engines.transformers_engine import TransformersEngine
from trainers.factory import make_envs
from trainers.models.loading import load_policy
from trainers.models.lora import trainable_parameters
from trainers.models.policy import Policy
from trainers.rollouts.collector import collect_batch
from trainers.runtime.progress import Progress
from trainers.tiny.cold_start import run_cold_start

COLD_START = 400  # gradient steps


@dataclass(kw_only=True)
class Args:
    """Measure our trainer against TRL's on this machine's CPU."""

    model: str = "tiny"
    """Causal language model with a chat template, or a LoRA adapter of one. "tiny" is made by a cold start."""
    lora_rank: int = 0
    """Rank of a new LoRA adapter to train; 0 trains all weights, or the given adapter."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the layers, on both sides."""
    env: str = "AgentR1/MiniWiki-Easy-v0"
    """Registered environment id."""
    env_kwargs: str = "{}"
    """Arguments of the environment, as JSON."""
    episodes: int = 64
    """Episodes of a step."""
    group_size: int = 8
    """Episodes per question."""
    steps: int = 7
    """Measured steps of each side."""
    warm_up: int = 2
    """Steps of each side before the measured ones."""
    max_new_tokens: int = 32
    """Longest turn, in tokens."""
    lr: float = 1e-5
    """Learning rate of AdamW; low, so that both policies stay close to the start."""
    threads: int = 2
    """Threads of torch, on each side."""
    seed: int = 0
    """Seed of the first weights, the questions and the sampling."""

    def __post_init__(self):
        if self.episodes % self.group_size:
            raise ValueError(f"episodes must be a multiple of group_size, {self.group_size}, got {self.episodes}")

    @property
    def rounds(self) -> int:
        return self.warm_up + self.steps

    @property
    def questions(self) -> int:
        """Questions of a step."""
        return self.episodes // self.group_size


class Pace:
    """Callback that a side calls before its first step and after each one: it ends the step, and waits for the side's turn."""

    def __init__(self, connection: Connection, rounds: int):
        self._connection, self._left, self._begun = connection, rounds, None

    def __call__(self) -> None:
        now = time.perf_counter()
        self._connection.send(None if self._begun is None else now - self._begun)  # None: ready to begin
        if self._left:
            self._connection.recv()
            self._left -= 1
            self._begun = time.perf_counter()


def race(sides: dict[str, Callable[[Pace], dict]], rounds: int) -> tuple[dict[str, list[float]], dict[str, dict]]:
    """Run each side in its own process; in every round each takes one step.

    Returns:
        The seconds of each step, and the result of each side, both by name.
    """
    context = multiprocessing.get_context("spawn")
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    pipes, processes = {}, []
    try:
        for name, side in sides.items():
            pipes[name], theirs = context.Pipe()
            processes.append(context.Process(target=_run, args=(side, theirs, rounds), daemon=True))
            processes[-1].start()
            theirs.close()  # otherwise its end would raise no EOFError here
            pipes[name].recv()  # one after the other, so that loading slows no timed step
        for number in range(rounds):
            for name in sorted(sides, reverse=number % 2 == 1):
                pipes[name].send(None)
                seconds[name].append(pipes[name].recv())
                print(f"round {number + 1}/{rounds}, {name}: {seconds[name][-1]:.1f} s", file=sys.stderr, flush=True)
        return seconds, {name: pipe.recv() for name, pipe in pipes.items()}
    finally:
        for process in processes:
            process.join(timeout=10)
            process.kill()


def _run(side: Callable[[Pace], dict], connection: Connection, rounds: int) -> None:
    connection.send(side(Pace(connection, rounds)))


def load(args: Args, start: Path) -> Policy:
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    return load_policy(start, "cpu", args.dtype)


def our_trainer(args: Args, start: Path, pace: Pace) -> dict:
    """Do what `trainers.grpo` does between two evaluations."""
    policy = load(args, start)
    settings = grpo.Args(
        seed=args.seed, lr=args.lr, questions_per_update=args.questions, group_size=args.group_size,
        max_new_tokens=args.max_new_tokens, max_tokens_per_micro_batch=4096,
    )  # fmt: skip
    envs = make_envs(args.env, args.env_kwargs, "train", args.episodes)
    engine, lines = TransformersEngine(policy, envs.envs[0].stop), []
    optimizer = grpo.make_optimizer(policy, [{"params": trainable_parameters(policy.model), "lr": settings.lr}])
    pace()
    for number in range(args.rounds):
        batch = collect_batch(settings, envs, policy, engine, number)
        grpo.update(settings, policy, optimizer, None, grpo.compute_advantages, batch.trajectories, batch.rng)
        steps, returns = [e.steps for e in batch.sampled], np.array([e.episode_return for e in batch.sampled])
        line = {"policy_tokens": sum(len(step.tokens) for turns in steps for step in turns) / len(steps)}
        line |= {"return": float(returns.mean()), "turns": statistics.mean(map(len, steps))}
        lines.append(line | {"zero_std_groups": float((np.ptp(returns.reshape(-1, args.group_size), 1) < 1e-6).mean())})
        pace()
    return {name: statistics.mean(line[name] for line in lines) for name in lines[0]}


def their_trainer(args: Args, start: Path, pace: Pace) -> dict:
    policy = load(args, start)
    for parameter in policy.model.parameters():
        if not parameter.requires_grad:  # otherwise a float32 head would be rounded for each token
            parameter.data = parameter.data.to(policy.dtype)
    at_once = args.episodes if args.model == "tiny" else math.gcd(2, args.episodes)  # 6 GiB with 135 M weights
    drawn = (np.random.default_rng([args.seed, number]) for number in range(args.rounds))  # as in our collector
    seeds = [seed for rng in drawn for seed in rng.integers(2**31, size=args.questions).tolist()]
    work = trl_side.Work(
        env=args.env, env_kwargs=args.env_kwargs, seeds=seeds, episodes=args.episodes,
        group_size=args.group_size, max_new_tokens=args.max_new_tokens, at_once=at_once, lr=args.lr,
    )  # fmt: skip
    return trl_side.train(policy, work, pace)


def start_policy(args: Args) -> Policy:
    """Load the given model, or make the tiny policy by a cold start that teaches it to search twice before it answers."""
    if args.model != "tiny":
        torch.manual_seed(args.seed)  # draws the first matrices of a new adapter
        return load_policy(args.model, "cpu", args.dtype, args.lora_rank)
    envs, patient = make_envs(args.env, args.env_kwargs, "train", 64), Demonstrator(continue_probability=1.0)
    with Progress(COLD_START, description="cold start") as progress:
        return run_cold_start(
            envs, args.seed, COLD_START, lambda step, _, loss: progress.update(step, loss=loss), patient
        )[0]


def main(args: Args) -> dict:
    torch.set_num_threads(args.threads)
    policy = start_policy(args)
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder)
        policy.model.save_pretrained(start)
        policy.tokenizer.save_pretrained(start)
        sides = {"ours": partial(our_trainer, args, start), "trl": partial(their_trainer, args, start)}
        seconds, said = race(sides, args.rounds)
    counted = {name: values[args.warm_up :] for name, values in seconds.items()}
    for name, values in counted.items():
        said[name] |= {"episodes_per_second": args.episodes / statistics.median(values), "seconds": values}
    ratio = statistics.median(b / a for a, b in zip(counted["ours"], counted["trl"], strict=True))
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "trl")}
    result = {"ratio": round(ratio, 2), **said, "settings": asdict(args), "versions": versions}
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
