import pytest
import torch

import trainers.gigpo
from trainers import reinforce
from trainers.algorithms.turn_advantages import gigpo, turn_advantage
from trainers.trajectory import PackedTrajectories


def test_equal_returns_give_exactly_zero_in_any_order():
    """.1 + .2 + .3 is not .3 + .2 + .1 in single precision."""
    paid = torch.tensor([[0.1, 0.2, 0.3, 1.0], [0.3, 0.2, 0.1, 1.0], [0.2, 0.3, 0.1, 1.0], [0.3, 0.1, 0.2, 1.0]])
    turns, groups = torch.arange(4).expand(4, 4), torch.zeros(4, dtype=torch.long)
    mask = turns >= 0
    assert turn_advantage(paid, turns, mask, groups, 1.0, True)[:, 0].eq(0).all()
    assert gigpo(paid, turns, mask, groups, [[None] * 4] * 4, 1.0, scale_by_std=True).eq(0).all()


def test_an_episode_in_which_the_policy_was_not_asked_counts_with_what_it_was_paid():
    """One of two equal episodes of a program has no turn."""
    rewards, mask = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.tensor([[True, True], [False, False]])
    packed = PackedTrajectories(
        returns=torch.ones(2), rewards=rewards, mask=mask, turns=torch.where(mask, 0, -1),
        groups=torch.zeros(2, dtype=torch.long), valid=torch.ones(2, dtype=torch.bool), anchors=[[None], []],
    )  # fmt: skip
    assert trainers.gigpo.compute_advantages(trainers.gigpo.Args(), packed).eq(0).all()
    assert reinforce.compute_advantages(reinforce.Args(baseline="group"), packed).eq(0).all()


@pytest.mark.parametrize(
    ("anchors", "message"),
    [([["s", "x"]] * 3, "3 lists of anchors for 4"), ([["s", "x"]] * 3 + [["s"]], "trajectory 3 has 1 anchors")],
)
def test_missing_anchors_are_named(anchors, message):
    turns = torch.tensor([[0, 1]] * 4)
    with pytest.raises(ValueError, match=message):
        gigpo(torch.zeros(4, 2), turns, turns >= 0, torch.zeros(4), anchors)
