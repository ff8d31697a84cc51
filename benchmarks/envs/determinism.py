"""The same seeds in two processes with different hash seeds: byte-equal transcripts; and a vector equals serial.

    python -m benchmarks.envs.determinism --episodes 1000

Each process plays the episodes of every registered environment with a random agent that mixes valid and hostile turns,
and prints a digest of everything that was said. The two must be equal; so must what a vector of 8 gives.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import warnings
from dataclasses import dataclass
from typing import Annotated

import gymnasium
import tyro

import agent_envs
from agent_envs.utils.fuzz import make_hostile_turn
from agent_envs.vector import ToolVectorEnv

WIDTH = 8


@dataclass
class Args:
    """Compare transcripts between processes, and between vector and serial."""

    episodes: int = 1000
    """Of each environment."""
    ids: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Registered ids; all by default."""
    one: str = ""
    """Used between the processes: play this id and print its digests."""


def action(env, rng: random.Random, observation: str) -> str:
    phrases = env.action_space.phrases
    return rng.choice(phrases) if rng.random() < 0.6 else make_hostile_turn(rng, phrases, observation)


def serial(id: str, episodes: int) -> list[str]:
    """One digest an episode."""
    env = gymnasium.make(id).unwrapped
    return [_episode(env, seed) for seed in range(episodes)]


def _episode(env, seed: int) -> str:
    rng, said = random.Random(f"play:{seed}"), hashlib.sha256()
    observation, info = env.reset(seed=seed)
    said.update(_bytes(observation, info))
    done = False
    while not done:
        outcome = env.step(action(env, rng, observation))
        observation, _, terminated, truncated, _ = outcome
        said.update(_bytes(*outcome))
        done = terminated or truncated
    return said.hexdigest()


def in_a_vector(id: str, episodes: int) -> list[str]:
    """The same digests, from a vector."""
    envs = ToolVectorEnv(lambda: gymnasium.make(id).unwrapped, WIDTH)
    digests = []
    for start in range(0, episodes, WIDTH):
        seeds = [start + i for i in range(WIDTH)]
        rngs = [random.Random(f"play:{seed}") for seed in seeds]
        said = [hashlib.sha256() for _ in seeds]
        observations, infos = envs.reset(seed=seeds)
        for i in range(WIDTH):
            said[i].update(_bytes(observations[i], _own(infos, i)))
        done = [False] * WIDTH
        while not all(done):
            turns = ["" if done[i] else action(envs.envs[i], rngs[i], observations[i]) for i in range(WIDTH)]
            observations, rewards, terminated, truncated, infos = envs.step(turns)
            for i in (i for i in range(WIDTH) if not done[i]):
                flags = bool(terminated[i]), bool(truncated[i])
                said[i].update(_bytes(observations[i], float(rewards[i]), *flags, _own(infos, i)))
                done[i] = any(flags)
        digests += [one.hexdigest() for one in said]
    return digests[:episodes]


def _bytes(*said) -> bytes:
    """What was said, to the last digit; the order of an info's entries is no part of it."""
    return json.dumps(said, sort_keys=True).encode()


def _own(infos: dict, i: int) -> dict:
    """What environment ``i`` said, in plain types."""
    found = {}
    for name, values in infos.items():
        if not name.startswith("_") and infos[f"_{name}"][i]:
            value = _own(values, i) if isinstance(values, dict) else values[i]
            found[name] = value.item() if hasattr(value, "item") else value
    return found


def main(args: Args) -> None:
    if args.one:
        warnings.simplefilter("ignore")
        print(json.dumps(serial(args.one, args.episodes)))
        return
    failures = 0
    for id in args.ids or agent_envs.IDS:
        runs = []
        for hash_seed in ("1", "2"):
            command = [
                sys.executable,
                "-m",
                "benchmarks.envs.determinism",
                "--one",
                id,
                "--episodes",
                str(args.episodes),
            ]
            done = subprocess.run(
                command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True
            )
            runs.append(
                done.stdout.strip().splitlines()[-1] if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
            )
        if not runs[0].startswith("["):
            print(f"{id:32} left out: {runs[0][:120]}")
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            vector = in_a_vector(id, args.episodes)
        here = json.loads(runs[0])
        same, as_vector = runs[0] == runs[1], sum(a == b for a, b in zip(here, vector, strict=True))
        failures += not same or as_vector < args.episodes
        print(
            f"{id:32} {args.episodes} episodes, {len(set(here))} different; processes equal: {same}; vector equal: {as_vector}"
        )
    print(json.dumps({"failures": failures}))


if __name__ == "__main__":
    main(tyro.cli(Args))
