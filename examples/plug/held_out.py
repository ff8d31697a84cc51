"""How often an agent that chooses from a `Menu` succeeds, in episodes that no training has seen."""

import argparse
from collections.abc import Callable

import gymnasium
import numpy as np

from agent_envs.plug import Menu


def arguments(doc: str) -> argparse.Namespace:
    """Those of the examples."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="AgentR1/FrozenLake-v0")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def success(id: str, choose: Callable[[np.ndarray, np.ndarray], int], episodes: int = 200) -> float:
    """The share of held-out episodes that succeed; ``choose`` gets the observation and the masks."""
    env, successes = Menu(gymnasium.make(id, split="validation")), 0.0
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        over = False
        while not over:
            choice = choose(observation, env.action_masks())
            observation, _, terminated, truncated, info = env.step(choice)
            over = terminated or truncated
        successes += info["success"]
    return successes / episodes


def random_agent(masks: bool = False) -> Callable[[np.ndarray, np.ndarray], int]:
    """Chooses anything, or anything that the masks allow."""
    rng = np.random.default_rng(0)
    return lambda _, mask: int(rng.choice(np.flatnonzero(mask) if masks else len(mask)))


def report(id: str, choose: Callable[[np.ndarray, np.ndarray], int]) -> None:
    """Print the success of an agent beside the random one's."""
    print(f"{id}: success {success(id, choose):.3f}, random agent {success(id, random_agent()):.3f}")
