"""Hostile text against every environment: no exception, no reward for a turn that cannot be read, terms that add up.

    python -m benchmarks.envs.fuzz --steps 1000000

Every registered environment that can be made here gets an equal share of the steps, in its own format and in two
others. Each step is checked by `agent_envs.utils.checker.check_step`; every tenth thousand is a turn of a megabyte.
"""

import json
import random
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import gymnasium
import tyro
from rich.progress import Progress

import agent_envs
from agent_envs.formats import FORMATS
from agent_envs.utils.checker import check_step
from agent_envs.utils.fuzz import make_hostile_turn


@dataclass
class Args:
    """Fuzz the environments."""

    steps: int = 1_000_000
    """In all."""
    seed: int = 0
    """Of the hostile text."""
    ids: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Registered ids; all by default."""
    data: Path | None = None
    """Folder with real benchmarks; without it their stand-in is played."""


def in_formats(id: str, number: int, data: Path | None) -> list:
    """The environment in its own format and in two others, other ones for each environment."""
    own = {"data": str(data)} if data and id.split("/")[1][:-3] in ("HotpotQA", "2WikiMultihopQA", "MuSiQue") else {}
    names = list(FORMATS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a stand-in
        envs = [gymnasium.make(id, **own).unwrapped]
        for format in names[number % len(names) :] + names[: number % len(names)]:
            try:
                if len(envs) < 3 and format != envs[0].format.name:
                    envs.append(gymnasium.make(id, format=format, **own).unwrapped)
            except ValueError:  # RAGEN's form is not for every task
                continue
    return envs


def fuzz(env, steps: int, rng: random.Random) -> dict[str, float]:
    """Play ``steps`` hostile turns; returns how many were readable, and the largest reward of a turn."""
    counts, done, observation = {"readable": 0, "episodes": 0, "largest": float("-inf")}, True, ""
    for step in range(steps):
        if done:
            observation, _ = env.reset(seed=rng.getrandbits(31))
            counts["episodes"] += 1
        action = make_hostile_turn(rng, env.action_space.phrases, observation)
        if step % 10_000 == 9_999:
            action = (action or "x") * (1_000_000 // max(len(action), 1) + 1)
        action = action[:1_000_000]
        outcome = env.step(action)
        check_step(env, action, outcome)
        if outcome[1] > 0.5 and not outcome[4].get(env.PRIMARY_METRIC):
            raise AssertionError(f"{action[:200]!r} earned {outcome[1]} and solved nothing: {outcome[4]}")
        counts["readable"] += outcome[4]["valid"]
        counts["largest"] = max(counts["largest"], outcome[1])
        observation, done = outcome[0], outcome[2] or outcome[3]
    return counts


def main(args: Args) -> None:
    ids, rows, started = args.ids or agent_envs.IDS, [], time.perf_counter()
    with Progress(transient=True) as progress:
        for number, id in enumerate(progress.track(ids)):
            try:
                envs = in_formats(id, number, args.data)
            except (ImportError, FileNotFoundError, RuntimeError) as error:
                rows.append({"id": id, "left out": str(error).splitlines()[0][:100]})
                continue
            share = -(-args.steps // (len(ids) * len(envs)))
            for env in envs:
                begun, name = time.perf_counter(), env.format.name
                counts = fuzz(env, share, random.Random(f"{args.seed}:{id}:{name}"))
                seconds = round(time.perf_counter() - begun, 1)
                rows.append({"id": id, "format": name, "steps": share, **counts, "seconds": seconds})
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))
    steps = sum(row.get("steps", 0) for row in rows)
    print(json.dumps({"steps": steps, "exceptions": 0, "seconds": round(time.perf_counter() - started)}))


if __name__ == "__main__":
    main(tyro.cli(Args))
