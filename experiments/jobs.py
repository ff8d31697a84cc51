"""Run several agents of a comparison at once, each seed of each agent in its own process."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from experiments.recipe import Recipe
from trainers.runtime.errors import UserError

_FIRST = ("naive-rag", "base", "zero-shot", "sft")  # agents that others start from, or that are not trained


def run_jobs(recipe: Recipe, args: Any, left_out: Iterable[str], out: Path) -> list[str]:
    """Run the agents that ``args`` ask for, ``args.jobs`` at once. Returns a line for each that failed, with its log file."""
    if recipe.budget:
        raise UserError(f"with jobs, agents must not wait for {recipe.budget!r}, which is the budget: give seconds")
    waiting = [job for job in _list_jobs(recipe, args) if job[0] not in left_out]
    running: dict[str, subprocess.Popen] = {}
    failed = []
    (out / "jobs").mkdir(parents=True, exist_ok=True)
    env = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // args.jobs)), **os.environ}
    try:
        while waiting or running:
            while waiting and len(running) < args.jobs:
                name, seed = waiting.pop(0)
                label = name if seed is None else f"{name}-{seed}"
                own = {"start": None, "seeds": ()} if seed is None else {"seeds": (seed,)}
                words = _write_options(args, runs=(name,), jobs=1, out=out, **own)
                with (out / "jobs" / f"{label}.log").open("a") as log:
                    command = [sys.executable, "-m", "experiments.compare", *words]
                    # In a session of its own, it gets one signal and saves: of Ctrl-C it would get a second.
                    running[label] = subprocess.Popen(
                        command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True
                    )
                print(f"{label} begins, {len(waiting)} are waiting", file=sys.stderr)
            time.sleep(0.2)
            for label in [label for label, process in running.items() if process.poll() is not None]:
                if status := running.pop(label).returncode:
                    failed.append(f"{label} ended with status {status}: {out / 'jobs' / label}.log")
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
    return failed


def _list_jobs(recipe: Recipe, args: Any) -> list[tuple[str, int | None]]:
    agents = [name for name in (*recipe.baselines, *recipe.runs) if name in (args.runs or (name,))]
    seeds = (None, *(args.seeds or recipe.seeds))
    jobs = [(name, seed) for seed in seeds for name in agents if seed in recipe.seeds_of(name)]
    return sorted(jobs, key=lambda job: job[1] is not None and job[0] not in _FIRST)


def _write_options(args: Any, **changes: Any) -> list[str]:
    """Write arguments as words of the command line; those with their default are left out."""
    words = []
    for option in fields(args):
        value = changes.get(option.name, getattr(args, option.name))
        if value not in (option.default, None):
            words += [f"--{option.name.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else (value,))]
    return words
