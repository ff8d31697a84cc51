"""GRPO: group relative policy optimisation over multi-turn episodes, top to bottom.

For each of ``questions_per_update`` questions the policy plays ``group_size`` episodes. An episode's advantage is its
return minus the mean return of its group (Shao et al. 2024, arXiv 2402.03300), and the clipped policy-gradient loss
raises the log-probability of every token of the better episodes. Where this departs from the paper:

- no division by the group's standard deviation, and no per-sequence length normalisation, both of which bias the
  gradient (Dr. GRPO, arXiv 2503.20783); ``--scale-by-std`` and ``--normalize sequences`` bring them back;
- one loss over all tokens of the batch, and a wider upper clip, "clip-higher" (DAPO, arXiv 2503.14476);
- no KL penalty to a reference model unless ``--kl-coef`` is set.

``--filter mixed --refill 10`` and ``--overlong-buffer`` are DAPO's, ``--loss gspo`` and ``--loss cispo`` other surrogates, and
``--turn-credit`` compares the returns from each turn on, so that process rewards are heard (GTPO); ``--process-weight`` adds
what each turn brought by itself to the advantage of the episode (after MT-GRPO, Zeng et al. 2025, arXiv 2505.11821).

The invariant of everything below: only tokens that the policy sampled carry gradient. What a tool returned is context.

    python -m trainers.grpo                                              # the tiny policy learns to search, on a laptop
    python -m trainers.grpo --env AgentR1/HotpotQA-v0 --model PATH_OR_ID --lr 1e-6
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # `python trainers/grpo.py` finds the packages beside it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import tyro

from trainers.algorithms.advantages import group_advantage, to_tokens
from trainers.algorithms.optimize import Episodes, PolicyArgs, policy_learner
from trainers.algorithms.turn_advantages import turn_advantage
from trainers.runs.training import train


@dataclass(kw_only=True)
class Args(PolicyArgs):
    """Train a policy with GRPO in a tool-using environment, and compare it with baselines on held-out questions."""

    scale_by_std: bool = False
    """Divide advantages by the standard deviation of their group, as GRPO's paper does."""
    turn_credit: bool = False
    """Compare the return from each turn on with those of the same turn in the group, in place of whole episodes."""
    turn_gamma: float = 1.0
    """Discount of a turn, with ``turn_credit``."""
    process_weight: float = 0.0
    """How much a turn's own rewards count, compared with those of the same turn in the group, on top of the advantage of
    the whole episode. What a turn brings is then heard at once, and whatever came of it later. After MT-GRPO, but a last
    turn's own reward has the outcome in it, so that a right answer is compared with searches of the same turn."""

    def __post_init__(self):
        super().__post_init__()
        self.check_share("turn_gamma")
        self.check_least(process_weight=0)
        if self.turn_credit and self.process_weight:
            raise ValueError("turn_credit compares the returns from each turn on already: leave out process_weight")


def advantages(args: Args, episodes: Episodes) -> torch.Tensor:
    """How much better an attempt did than the others at its question, at each of its tokens: float [N, A]."""
    e = episodes
    if args.turn_credit:
        return turn_advantage(e.rewards, e.turns, e.mask, e.groups, args.turn_gamma, args.scale_by_std, e.valid)
    whole = to_tokens(group_advantage(e.returns, e.groups, args.scale_by_std, e.valid), e.mask)
    if not args.process_weight:
        return whole
    own = turn_advantage(e.rewards, e.turns, e.mask, e.groups, 0.0, args.scale_by_std, e.valid)
    return whole + args.process_weight * own


def main(args: Args, name: str = "grpo") -> dict:
    """``name``: of a preset, where it is one."""
    title = f"Trained with {'GRPO' if name == 'grpo' else name}"
    return train(args, name, title, partial(policy_learner, args, partial(advantages, args)))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
