"""Our GRPO trainer against TRL's on a CPU, and our engine against `generate`: the same model and the same work.

    pip install 'trl==1.16.*'
    python -m benchmarks.training.trl_cpu                                   # the tiny policy, 64 episodes a step
    python -m benchmarks.training.trl_cpu --episodes 8 --steps 3            # a quick look
    python -m benchmarks.training.trl_cpu --against rollout_func --model MODEL --dtype bfloat16 --lora-rank 16 --lr 1e-4 \
        --env AgentR1/HotpotQA-v0 --env-kwargs '{"source": "local", "k": 2}' --max-new-tokens 48   # a pretrained model

Whole training steps, in episodes a second: rollouts with their searches, and one step of AdamW. Both sides start from the same
weights and get the same questions in the same order; as they sample, their episodes differ, and the result says how many turns
and tokens they had. The tiny policy starts after a short cold start in which it learns three turns; a model that is given, or a
LoRA adapter, starts as it is. With bfloat16 TRL has all frozen weights in it, as its users do. Then sampling alone: the first
prompts of a batch and ``decode_tokens`` more tokens for each, which nothing ends early.

Each side is a process, and they take one step each in turn. A ratio is the median over the rounds of how much longer the other
side took; above 1 ours is faster. Ends with one line of JSON.
"""

import importlib.metadata
import json
import math
import multiprocessing
import statistics
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
from transformers import GenerationConfig

from benchmarks.training import trl_side
from trainers import grpo
from trainers.config import Demonstrator
from trainers.engines.engine import generate as generate_turns
from trainers.engines.transformers_engine import TransformersEngine
from trainers.factory import make_envs
from trainers.models.loading import load_policy
from trainers.models.lora import has_lora, trainable_parameters
from trainers.models.policy import Policy
from trainers.rollouts.collector import play_batch
from trainers.runtime.progress import Progress
from trainers.tiny.cold_start import run_cold_start

COLD_START = 400  # gradient steps


@dataclass(kw_only=True)
class Args:
    """Measure our trainer and engine against TRL and transformers on this machine's CPU."""

    model: str = "tiny"
    """A causal language model with a chat template, or a LoRA adapter of one. "tiny" is made here."""
    lora_rank: int = 0
    """Rank of a new LoRA adapter to train; 0 trains the weights, or the adapter that the model is."""
    lora_alpha: int = 32
    """Scale of the new adapter, which is multiplied by alpha / rank."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the layers run in, on every side."""
    at_once: int = 0
    """Episodes in a pass of TRL's updates; by default all with the tiny policy, 4 (6 GiB at 135 M) with another."""
    env: str = "AgentR1/MiniWiki-Easy-v0"
    """Registered environment id."""
    env_kwargs: str = "{}"
    """Its arguments as JSON."""
    against: tuple[Literal["rollout_func", "generate"], ...] = ("rollout_func", "generate")
    """TRL's trainer, transformers' sampling, or both."""
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
    """Learning rate of AdamW; low, so that both sides go on as they began."""
    threads: int = 2
    """Of torch, on every side."""
    seed: int = 0
    """Seeds the start, the questions and the sampling."""

    def __post_init__(self):
        if self.episodes % self.group_size:
            raise ValueError(f"episodes must be a multiple of group_size, {self.group_size}, got {self.episodes}")
        self.at_once = self.at_once or (self.episodes if self.model == "tiny" else math.gcd(4, self.episodes))
        if self.episodes % self.at_once:
            raise ValueError(f"at_once must divide episodes, {self.episodes}, got {self.at_once}")

    @property
    def rounds(self) -> int:
        return self.warm_up + self.steps

    def question_seeds(self) -> list[int]:
        """One per question, in order, of all steps: what `trainers.rollouts.collector` draws."""
        drawn = (np.random.default_rng([self.seed, number]) for number in range(self.rounds))
        return [seed for rng in drawn for seed in rng.integers(2**31, size=self.episodes // self.group_size).tolist()]


class Pace:
    """What a side calls before its first step and after each one: ends the step, and waits for its turn."""

    def __init__(self, connection: Connection, rounds: int):
        self._connection, self._left, self._begun = connection, rounds, None

    def __call__(self) -> None:
        now = time.perf_counter()
        self._connection.send(None if self._begun is None else now - self._begun)  # None: ready to begin
        if self._left:
            self._connection.recv()
            self._left -= 1
            self._begun = time.perf_counter()


Side = Callable[[Pace], dict]
"""Takes as many steps as there are rounds, and returns what it has to say of them."""


def race(sides: dict[str, Side], rounds: int) -> tuple[dict[str, list[float]], dict[str, dict]]:
    """Run each side in a process of its own, one step each in every round, so that other work on the machine hits all alike.

    Returns:
        By name, the seconds of each step, and what the side said.
    """
    context = multiprocessing.get_context("spawn")
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    pipes, processes = {}, {}
    try:
        for name, side in sides.items():
            pipes[name], theirs = context.Pipe()
            processes[name] = context.Process(target=_run, args=(side, theirs, rounds), daemon=True)
            processes[name].start()
            theirs.close()  # or its end would not be seen here, as an EOFError
            pipes[name].recv()  # one after the other: what is loaded does not slow what is timed
        names = list(sides)
        for number in range(rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                pipes[name].send(None)
                seconds[name].append(pipes[name].recv())
        return seconds, {name: pipes[name].recv() for name in names}
    finally:
        for process in processes.values():
            process.join(timeout=10)
            process.kill()


def _run(side: Side, connection: Connection, rounds: int) -> None:
    connection.send(side(Pace(connection, rounds)))


def load(args: Args, start: Path) -> Policy:
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    return load_policy(start, "cpu", args.dtype)


def our_trainer(args: Args, start: Path, pace: Pace) -> dict:
    """What `trainers.grpo` does between two evaluations."""
    policy = load(args, start)
    settings = grpo.Args(
        seed=args.seed, lr=args.lr, questions_per_update=args.episodes // args.group_size, group_size=args.group_size,
        max_new_tokens=args.max_new_tokens,
    )  # fmt: skip
    envs = make_envs(args.env, args.env_kwargs, "train", args.episodes)
    engine, lines = TransformersEngine(policy, envs.envs[0].stop), []
    optimizer = grpo.make_optimizer(policy, [{"params": trainable_parameters(policy.model), "lr": settings.lr}])
    pace()
    for number in range(args.rounds):
        batch = play_batch(settings, envs, policy, engine, number)
        grpo.update(settings, policy, optimizer, None, grpo.compute_advantages, batch.episodes, batch.rng)
        pace()
        steps, returns = [e.steps for e in batch.played], np.array([e.episode_return for e in batch.played])
        line = {"policy_tokens": sum(len(step.tokens) for turns in steps for step in turns) / len(steps)}
        line |= {"return": float(returns.mean()), "turns": statistics.mean(map(len, steps))}
        lines.append(line | {"zero_std_groups": float((np.ptp(returns.reshape(-1, args.group_size), 1) < 1e-6).mean())})
    return {name: statistics.mean(line[name] for line in lines) for name in lines[0]}


def their_trainer(args: Args, start: Path, pace: Pace) -> dict:
    policy = load(args, start)
    for parameter in policy.model.parameters():
        if not parameter.requires_grad:  # a head in float32 would be rounded once a token
            parameter.data = parameter.data.to(policy.dtype)
    work = trl_side.Work(
        env=args.env, env_kwargs=args.env_kwargs, seeds=args.question_seeds(), episodes=args.episodes,
        group_size=args.group_size, max_new_tokens=args.max_new_tokens, at_once=args.at_once, lr=args.lr,
    )  # fmt: skip
    return trl_side.train(policy, work, pace)


def our_engine(args: Args, start: Path, prompts: list[list[int]], pace: Pace) -> dict:
    policy = load(args, start)
    policy.end_ids = set()  # nothing ends a turn but its length
    engine = TransformersEngine(policy, ())

    def decode() -> list[list[int]]:
        engine.reset()
        done = generate_turns(engine, dict(enumerate(prompts)), args.decode_tokens, 1.0)
        return [completion.tokens for completion in done.values()]

    return _decode(decode, args, pace)


def their_engine(args: Args, start: Path, prompts: list[list[int]], pace: Pace) -> dict:
    """`transformers.generate`, with an adapter merged."""
    policy = load(args, start)
    for module in policy.model.modules() if has_lora(policy.model) else ():
        if hasattr(module, "lora_A"):
            module.merge()  # type: ignore[operator]
    policy.model.to(policy.dtype)
    width = max(map(len, prompts))
    ids = torch.tensor([[policy.pad_id] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    policy.model.generation_config = GenerationConfig(
        max_new_tokens=args.decode_tokens, do_sample=True, temperature=1.0, top_k=0, pad_token_id=policy.pad_id
    )

    def decode() -> list[list[int]]:
        with torch.no_grad():
            return policy.model.generate(ids, attention_mask=mask)[:, width:].tolist()

    return _decode(decode, args, pace)


def _decode(decode: Callable[[], list[list[int]]], args: Args, pace: Pace) -> dict:
    pace()
    for _ in range(args.rounds):
        lengths = set(map(len, decode()))
        if lengths != {args.decode_tokens}:
            raise RuntimeError(f"every prompt gets {args.decode_tokens} new tokens, these got {sorted(lengths)}")
        pace()
    return {}


def start_policy(args: Args) -> Policy:
    """The given model, or the tiny policy after a cold start in which it learns to search twice before it answers."""
    if args.model != "tiny":
        torch.manual_seed(args.seed)  # draws the first matrices of a new adapter
        return load_policy(args.model, "cpu", args.dtype, args.lora_rank, args.lora_alpha)
    envs, patient = make_envs(args.env, args.env_kwargs, "train", 64), Demonstrator(continue_probability=1.0)
    with Progress(COLD_START, description="cold start") as progress:
        return run_cold_start(
            envs, args.seed, COLD_START, lambda step, _, loss: progress.update(step, loss=loss), patient
        )[0]


def first_prompts(args: Args, policy: Policy) -> list[list[int]]:
    envs = make_envs(args.env, args.env_kwargs, "train", args.episodes)
    seeds = args.question_seeds()[: args.episodes // args.group_size]
    observations, infos = envs.reset(seed=[seed for seed in seeds for _ in range(args.group_size)])
    return [policy.prompt_ids(*both) for both in zip(infos["instructions"], observations, strict=True)]


def compare(args: Args, ours: Side, theirs: Side, amount: int, unit: str) -> dict:
    """How many times as fast our side is, and what each did."""
    seconds, said = race({"ours": ours, "theirs": theirs}, args.rounds)
    counted = {name: values[args.warm_up :] for name, values in seconds.items()}
    for name, values in counted.items():
        said[name] |= {f"{unit}_per_second": round(amount / statistics.median(values), 3)}
        said[name] |= {"seconds": [round(value, 4) for value in values]}
    ratios = [b / a for a, b in zip(counted["ours"], counted["theirs"], strict=True)]
    return {"ratio": round(statistics.median(ratios), 2), **said}


def main(args: Args) -> dict:
    torch.set_num_threads(args.threads)
    policy = start_policy(args)
    prompts = first_prompts(args, policy)
    result: dict = {"settings": asdict(args), "parameters": policy.model.num_parameters()}
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder)
        policy.model.save_pretrained(start)
        policy.tokenizer.save_pretrained(start)
        if "rollout_func" in args.against:
            sides = partial(our_trainer, args, start), partial(their_trainer, args, start)
            result["rollout_func"] = compare(args, *sides, args.episodes, "episodes")
        if "generate" in args.against:
            engines = partial(our_engine, args, start, prompts), partial(their_engine, args, start, prompts)
            result["generate"] = compare(args, *engines, args.episodes * args.decode_tokens, "tokens")
    result["versions"] = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
