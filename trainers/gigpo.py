"""GiGPO: compare an episode with its group, and a turn with turns in the same state (Feng et al. 2025, arXiv 2505.10978).

A = A_episode + ω A_step. Two turns of a group are compared if the environment labels their states equally (`ToolEnv.anchor`). The
state is the evidence found in question answering, and the board in a game. The step returns are discounted (--step-gamma). They
include process rewards that sum to zero over a whole episode.

Differences from the paper: means are over trajectories and not over their steps. There is no division by the standard deviation
unless --scale-by-std, and the upper clip is wider (DAPO). Loop and loss are those of trainers/grpo.py.

    python -m trainers.gigpo
"""

from dataclasses import dataclass

from trainers.cli import parse
from trainers.config import NotNegative, Share, TrainArgs


@dataclass(kw_only=True)
class Args(TrainArgs):
    """Train with GiGPO in a tool-using environment, beside baselines."""

    step_gamma: Share = 0.95
    """Discount of turn returns, from turn to turn."""
    step_weight: NotNegative = 1.0
    """ω, the weight of the advantage over turns in the same state."""
    scale_by_std: bool = False
    """Divide both advantages by the standard deviation of their group, as GiGPO's paper does."""


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "gigpo")  # before torch is imported, so that --help and errors appear at once

import torch

from trainers import grpo
from trainers.algorithms.turn_advantages import gigpo
from trainers.trajectory import PackedTrajectories


def compute_advantages(args: Args, packed: PackedTrajectories) -> torch.Tensor:
    """Compute A_episode + ω A_step at each action token, float32 [N, A]."""
    turns = packed.rewards, packed.turns, packed.mask, packed.groups, packed.anchors
    return gigpo(*turns, args.step_gamma, args.step_weight, args.scale_by_std, packed.valid, packed.returns)


def main(args: Args) -> dict:
    """Run the command; return the summary of the run."""
    return grpo.train(args, compute_advantages, "gigpo", "GiGPO")


if __name__ == "__main__":
    main(ARGS)
