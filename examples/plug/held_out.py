"""Code that the examples with a `Menu` share: the success of an agent in episodes that it was not trained on."""

import argparse
import json
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

import agent_envs  # noqa: F401  (registers the ids)
from agent_envs.integrations import Menu

Agent = Callable[[np.ndarray, np.ndarray], int]  # (observation, masks) -> index in the menu


def arguments(doc: str, *flags: str) -> argparse.Namespace:
    """Parse the arguments of all examples, and the flags of one."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="AgentR1/FrozenLake-v0")
    parser.add_argument("--env-kwargs", type=json.loads, default={}, help="""JSON, such as '{"slippery": false}'""")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


def success(agent: Agent, id: str, episodes: int = 200, **env_kwargs: Any) -> float:
    """Compute the share of held-out episodes in which the agent succeeds."""
    env, successes = Menu(gymnasium.make(id, split="validation", **env_kwargs)), 0.0
    for seed in range(episodes):
        (observation, info), over = env.reset(seed=seed), False
        while not over:
            observation, _, terminated, truncated, info = env.step(agent(observation, env.action_masks()))
            over = terminated or truncated
        successes += info["success"]
    return successes / episodes


def random_agent(masks: bool = False) -> Agent:
    """Make an agent that chooses any action, or any action that the masks allow."""
    rng = np.random.default_rng(0)
    return lambda _, mask: int(rng.choice(np.flatnonzero(mask) if masks else len(mask)))


def report(agent: Agent, id: str, **env_kwargs: Any) -> None:
    """Print the agent's success beside the random agent's."""
    own, random = (success(one, id, **env_kwargs) for one in (agent, random_agent()))
    print(f"{id}: success {own:.3f}, random agent {random:.3f}")
