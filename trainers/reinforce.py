"""REINFORCE++: returns to go, whitened over the whole batch; no critic, no groups (Hu 2025, arXiv 2501.03262).

--baseline group is REINFORCE++-baseline: it subtracts the mean of the group first, then whitens over the batch.

Differences from the paper: the upper clip is wider (DAPO), and the KL penalty is off by default. --kl-coef 0.01 --kl k1 puts it
into the reward, as REINFORCE++ does; --kl k2 puts it into the loss, as REINFORCE++-baseline does. Loop and loss are those of
trainers/grpo.py.

    python -m trainers.reinforce
    python -m trainers.reinforce --baseline group
"""

from dataclasses import dataclass
from typing import Literal

from trainers.cli import parse
from trainers.config import TrainArgs


@dataclass(kw_only=True)
class Args(TrainArgs):
    """Train with REINFORCE++ in a tool-using environment, beside baselines."""

    baseline: Literal["batch", "group"] = "batch"
    """Baseline of a return: the mean of the batch, or first the mean of its group."""

    def compares_attempts(self) -> bool:
        return self.baseline == "group" or self.filter != "none"


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "reinforce")  # before torch is imported, so that --help and errors appear at once

import torch

from trainers import grpo
from trainers.algorithms.advantages import reinforce_plus_plus, reinforce_plus_plus_baseline
from trainers.trajectory import PackedTrajectories


def compute_advantages(args: Args, packed: PackedTrajectories) -> torch.Tensor:
    """Compute whitened returns to go at each action token, float32 [N, A]."""
    if args.baseline == "group":
        return reinforce_plus_plus_baseline(packed.rewards, packed.mask, packed.groups, packed.valid, packed.returns)
    return reinforce_plus_plus(packed.rewards, packed.mask, valid=packed.valid)


def main(args: Args) -> dict:
    """Run the command; return the summary of the run."""
    name = "reinforce++" + "-baseline" * (args.baseline == "group")
    return grpo.train(args, compute_advantages, name, name.replace("reinforce", "REINFORCE"))


if __name__ == "__main__":
    main(ARGS)
