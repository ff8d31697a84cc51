"""GiGPO: an episode against its group, and a turn against turns taken in the same state (Feng et al. 2025, 2505.10978).

A = A_episode + ω A_step. Two turns of a group are compared where the environment says that they were taken in the same
state (`ToolEnv.anchor`): in question answering, with the same evidence found; in a game, on the same board. The step
returns are discounted (``--step-gamma``), and hear process rewards that cancel over a whole episode. Where this departs
from the paper: means are over trajectories and not over their steps, there is no division by the standard deviation
unless ``--scale-by-std``, and the upper clip is wider (DAPO).

    python -m trainers.gigpo
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # run as a file, it finds the packages beside it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import tyro

from trainers.algorithms.optimize import Episodes, PolicyArgs, policy_learner
from trainers.algorithms.turn_advantages import gigpo
from trainers.runs.training import train


@dataclass(kw_only=True)
class Args(PolicyArgs):
    """Train a policy with GiGPO in a tool-using environment, and compare it with baselines on held-out questions."""

    step_gamma: float = 0.95
    """Discount of the returns from a turn on."""
    step_weight: float = 1.0
    """ω, the weight of the comparison of turns."""
    scale_by_std: bool = False
    """Divide both advantages by the standard deviation of what they are compared with."""

    def __post_init__(self):
        super().__post_init__()
        self.check_share("step_gamma")
        self.check_least(step_weight=0)


def advantages(args: Args, episodes: Episodes) -> torch.Tensor:
    """A_episode + ω A_step at each of an episode's own tokens: float [N, A]."""
    e = episodes
    return gigpo(
        e.rewards, e.turns, e.mask, e.groups, e.anchors, args.step_gamma, args.step_weight, args.scale_by_std, e.valid
    )


def main(args: Args) -> dict:
    return train(args, "gigpo", "Trained with GiGPO", partial(policy_learner, args, partial(advantages, args)))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
