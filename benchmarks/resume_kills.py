"""Test whether runs that are killed and resumed end like undisturbed ones: five kinds of runs, killed at random moments.

    python -m benchmarks.resume_kills --kills 200

Each run is killed with SIGKILL at a random moment and resumed, until it ends: by --resume if it has a checkpoint, otherwise by
the same command. Most runs are killed several times, some during the cold start. Their weights, optimizer state and metrics are
then compared bit by bit with those of an undisturbed run. All runs use one thread, which keeps the order of sums. The processes
are forks of one that has imported the trainers, to save time. Ends with a table and one line of JSON; the exit status is 1 if a
run differed or could not be resumed.
"""

import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.progress import Progress

TIMED = ("seconds", "time/", "tokens/per_second")  # metrics that no two runs have in common
WORLD = {"env_kwargs": '{"entities": 60, "questions": 20, "max_turns": 3}'}
TINY = {"model": "tiny", "cold_start_steps": 30}
SHORT = {"updates": 6, "questions_per_update": 2, "group_size": 4}
SHORT |= {"eval_every": 2, "eval_questions": 4, "final_questions": 4}
DEMONSTRATIONS = {"script": ("oracle",), "demonstrations": 12}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "GRPO, MiniWiki": ("grpo", WORLD | TINY | SHORT | {"save_every": 1}),
    "PPO, MiniWiki": ("ppo", WORLD | TINY | SHORT | {"save_every": 2}),
    "PPO, FrozenLake": ("ppo", {"env": "AgentR1/FrozenLake-v0"} | TINY | SHORT | {"save_every": 2}),
    "GRPO with LoRA, bfloat16": ("grpo", WORLD | SHORT | {"lora_rank": 4, "dtype": "bfloat16", "save_every": 2}),
    "SFT, MiniWiki": ("sft", WORLD | DEMONSTRATIONS | {"updates": 12, "eval_every": 4, "save_every": 2}),
}


@dataclass(kw_only=True)
class Args:
    """Kill runs, resume them, and compare their results with those of undisturbed runs."""

    kills: int = 200
    """Kills in all, shared among the kinds of runs."""
    seed: int = 0
    """Seed of the moments of the kills."""


def run(kind: str, folder: Path, model: Path) -> None:
    """Start the run in ``folder``, or resume it. Called in a new process."""
    import importlib

    import torch

    from trainers.runtime import integrity

    os.setsid()
    os.environ["AGENT_ENVS_CACHE"] = str(folder.parent / "cache")
    torch.set_num_threads(1)
    module, options = KINDS[kind]
    trainer = importlib.import_module(f"trainers.{module}")
    where = {"resume": folder} if integrity.step_folders(folder) else {"out": folder}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "console.txt").open("a") as console, redirect_stdout(console), redirect_stderr(console):
        trainer.main(trainer.Args(**({"model": str(model)} | options | where)))


def make_pretrained(folder: Path) -> None:
    """Save a small model with random weights and a chat template, as a stand-in for a pretrained one."""
    import torch

    from agent_envs.integrations import Episode
    from trainers.tiny import model as tiny

    torch.manual_seed(0)
    episode = Episode("AgentR1/MiniWiki-Easy-v0", **json.loads(WORLD["env_kwargs"]))
    tokenizer = tiny.make_tokenizer(message["content"] for seed in range(20) for message in episode.start(seed))
    tokenizer.save_pretrained(folder)
    tiny.make_model(len(tokenizer), hidden_size=64, layers=2, intermediate_size=64).save_pretrained(folder)


def read_end(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read a finished run: tensors and optimizer states of its last checkpoint by name, and its metrics without times."""
    import torch
    from safetensors.torch import load_file

    from trainers.runtime import integrity
    from trainers.runtime.progress import METRICS_FILE, read_metrics

    assert (folder / "summary.json").exists(), "it has not ended"
    last = max(integrity.step_folders(folder), key=lambda path: int(path.name.rpartition("-")[2]))
    state: dict[str, Any] = {}
    for path in sorted(last.glob("*.safetensors")):
        state |= load_file(path)
    state["trainer"] = torch.load(last / integrity.STATE_FILE, weights_only=True)["optimizers"]
    metrics = [
        {name: value for name, value in line.items() if not name.startswith(TIMED)}
        for line in read_metrics(folder / METRICS_FILE)
    ]
    return state, metrics


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, without tolerance, also as tensors in dicts and lists."""
    import torch

    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    return len(one) == len(other) and all(map(is_same, one, other)) if isinstance(one, list | tuple) else one == other


class Attack:
    """Runs of all kinds in turn, each killed repeatedly until it ends."""

    def __init__(self, args: Args, root: Path):
        self.args, self.root, self.draw = args, root, random.Random(args.seed)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["trainers.grpo", "trainers.ppo", "trainers.sft"])
        self.counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
        self.kills = 0
        make = self.context.Process(target=make_pretrained, args=(root / "model",))
        make.start()
        make.join()
        self.seconds, self.ends = {}, {}  # of the undisturbed runs
        for kind in KINDS:
            begun = time.monotonic()
            self.start(kind, root / kind / "run").join()
            self.seconds[kind] = time.monotonic() - begun
            self.ends[kind] = read_end(root / kind / "run")

    def start(self, kind: str, folder: Path) -> Any:
        process = self.context.Process(target=run, args=(kind, folder, self.root / "model"))
        process.start()
        return process

    def attack(self, number: int) -> None:
        """Start run ``number``, kill and resume it until it ends, and compare its results."""
        kind, folder = list(KINDS)[number % len(KINDS)], self.root / f"{number}" / "run"
        counts = self.counts[kind]
        counts["runs"] += 1
        while True:
            process = self.start(kind, folder)
            process.join(self.draw.uniform(0, 1.1 * self.seconds[kind]) if self.kills < self.args.kills else None)
            if not process.is_alive():
                break
            process.kill()
            process.join()
            self.kills += 1
            counts["kills"] += 1
            counts["kills before the first checkpoint"] += not list(folder.glob("checkpoint-*"))
        if process.exitcode == 0 and is_same(read_end(folder), self.ends[kind]):
            counts["bit-equal"] += 1
        else:
            counts["different"] += 1
            print(f"{kind}, run {number}: it differs, or ended with status {process.exitcode}", file=sys.stderr)
        shutil.rmtree(folder.parent, ignore_errors=True)


def main(args: Args) -> dict:
    """Run the attack; returns the counts by kind of run."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before the fork server imports torch
    with tempfile.TemporaryDirectory() as root, Progress(console=Console(stderr=True)) as bars:
        attack = Attack(args, Path(root))
        number, bar = 0, bars.add_task("kills", total=args.kills)
        while attack.kills < args.kills or number % len(KINDS):
            attack.attack(number)
            number += 1
            bars.update(bar, completed=attack.kills)
    for kind, counts in attack.counts.items():
        print(f"{kind}: " + ", ".join(f"{counts[name]} {name}" for name in ("runs", "kills", "bit-equal", "different")))
    result = {"seed": args.seed, **{kind: dict(counts) for kind, counts in attack.counts.items()}}
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    ended = main(tyro.cli(Args, description=__doc__))
    sys.exit(any(counts.get("different") for kind, counts in ended.items() if kind != "seed"))
