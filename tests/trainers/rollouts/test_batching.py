"""DAPO's refill: groups that teach nothing are replaced."""

import pytest

from trainers import grpo
from trainers.rollouts.batching import refill_groups, select_episodes
from trainers.trajectory import Step, Trajectory


def batch(*returns):
    """Two episodes a group, with these returns."""
    return [
        Trajectory(group=g, steps=[Step(prompt=[1], tokens=[2], logprobs=[0.0], reward=value)])
        for g, pair in enumerate(returns)
        for value in pair
    ]


FLAT, MIXED = (1.0, 1.0), (0.0, 1.0)
DAPO = {"filter": "mixed", "questions_per_update": 2, "group_size": 2}


def refill(first, *more, most):
    left = iter(batch(*returns) for returns in more)
    return refill_groups(batch(*first), lambda: next(left), grpo.Args(**DAPO, dynamic_sampling=most))


@pytest.mark.parametrize(
    ("first", "more", "most", "groups", "kept"),
    [
        ((MIXED, MIXED), [], 10, [0, 1], 1.0),
        ((FLAT, (0.0, 2.0)), [(FLAT, FLAT), (MIXED, MIXED)], 10, [1, 4], 4 / 12),
        ((FLAT, FLAT), [(FLAT, MIXED), (FLAT, FLAT)], 2, [3], 2 / 12),  # it gives up, and learns from what there is
        ((FLAT, FLAT), [(FLAT, FLAT)], 1, [0, 1, 2, 3], 0.0),  # the learner gets all and skips its update
        ((FLAT, MIXED), [], 0, [0, 1], None),
    ],
)
def test_it_plays_on_until_the_batch_is_full_and_no_further(first, more, most, groups, kept):
    sampled, trajectories, metrics = refill(first, *more, most=most)
    assert len(sampled) == 4 * (1 + len(more))
    assert [t.group for t in trajectories] == [group for group in groups for _ in range(2)]
    expected = {"filter/kept": pytest.approx(kept), "filter/batches": 1.0 + len(more)}
    assert metrics == (expected if most else {})


def test_episodes_without_a_turn_of_the_policy_are_no_batch():
    """As a program's that answers by itself, if it makes up the only group that a filter keeps."""
    args = grpo.Args(filter="mixed", group_size=2)
    unasked = [Trajectory(group=1, reward_terms={"program": value}) for value in MIXED]
    assert select_episodes(batch(FLAT) + unasked, args) == ([], {"filter/kept": 0.5})
    assert len(select_episodes(batch(MIXED) + unasked, args)[0]) == 4


def test_a_return_that_is_not_finite_is_not_refilled_away():
    with pytest.raises(ValueError, match="not finite"):
        refill(((float("nan"), 1.0), MIXED), (MIXED, MIXED), most=1)
