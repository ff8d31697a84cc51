"""RLOO: REINFORCE with the mean of the other attempts as the baseline (Ahmadian et al. 2024, arXiv 2402.14740).

An episode's advantage is its return minus the mean return of the *other* episodes of its group, which leaves the
gradient unbiased. It is G / (G − 1) times GRPO's without the division by the standard deviation. Where this departs from
the paper: the ratio is clipped (``--clip-low``, ``--clip-high``), which does nothing with one epoch and one minibatch,
and the KL penalty in the reward is off by default (``--kl-coef .01 --kl k1``). ``--turn-credit`` compares the returns from
each turn on, so that process rewards are heard.

    python -m trainers.rloo
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # run as a file, it finds the packages beside it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import tyro

from trainers.algorithms.advantages import leave_one_out, to_tokens
from trainers.algorithms.optimize import Episodes, PolicyArgs, policy_learner
from trainers.algorithms.turn_advantages import turn_advantage
from trainers.runs.training import train


@dataclass(kw_only=True)
class Args(PolicyArgs):
    """Train a policy with RLOO in a tool-using environment, and compare it with baselines on held-out questions."""

    turn_credit: bool = False
    """Compare the return from each turn on with those of the same turn in the others, in place of whole episodes."""
    turn_gamma: float = 1.0
    """Discount of a turn, with ``turn_credit``."""

    def __post_init__(self):
        super().__post_init__()
        self.check_share("turn_gamma")


def advantages(args: Args, episodes: Episodes) -> torch.Tensor:
    """An attempt's return against the mean of the others at its question, at each of its tokens: float [N, A]."""
    e = episodes
    if args.turn_credit:
        return turn_advantage(e.rewards, e.turns, e.mask, e.groups, args.turn_gamma, valid=e.valid, leave_out=True)
    return to_tokens(leave_one_out(e.returns, e.groups, e.valid), e.mask)


def main(args: Args) -> dict:
    return train(args, "rloo", "Trained with RLOO", partial(policy_learner, args, partial(advantages, args)))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
