"""RLOO: REINFORCE with the mean of the group's other episodes as the baseline (Ahmadian et al. 2024, arXiv 2402.14740).

An episode's advantage is its return minus the mean return of the *other* episodes of its group, so the gradient is unbiased. For
a group of G it is GRPO's advantage times G / (G − 1). Loop and loss are those of trainers/grpo.py.

Differences from the paper: the ratio is clipped (--clip-low, --clip-high), which has no effect with one epoch and one minibatch.
The KL penalty in the reward is off by default (--kl-coef 0.01 --kl k1).

    python -m trainers.rloo
"""

from dataclasses import dataclass

from trainers.cli import parse
from trainers.config import TrainArgs


@dataclass(kw_only=True)
class Args(TrainArgs):
    """Train with RLOO in a tool-using environment, beside baselines."""


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "rloo")  # before torch is imported, so that --help and errors appear at once

import torch

from trainers import grpo
from trainers.algorithms.advantages import leave_one_out, to_tokens
from trainers.trajectory import PackedTrajectories


def compute_advantages(args: Args, packed: PackedTrajectories) -> torch.Tensor:
    """Compute RLOO's advantage of each action token, float32 [N, A]."""
    return to_tokens(leave_one_out(packed.returns, packed.groups, packed.valid), packed.mask)


def main(args: Args) -> dict:
    """Run the command; return the summary of the run."""
    return grpo.train(args, compute_advantages, "rloo", "RLOO")


if __name__ == "__main__":
    main(ARGS)
