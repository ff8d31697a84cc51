"""DAPO's refill: groups that teach nothing are replaced."""

import pytest

from trainers import grpo
from trainers.rollouts.batching import refill_groups
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


def play(*batches):
    left = iter(batches)
    return lambda: next(left)


def test_it_plays_on_until_the_batch_is_full_and_no_further():
    more = play(batch(FLAT, FLAT), batch(MIXED, MIXED), batch(MIXED, MIXED))
    played, episodes, metrics = refill_groups(batch(FLAT, (0.0, 2.0)), more, grpo.Args(**DAPO, dynamic_sampling=10))
    assert len(played) == 12
    assert [(t.group, t.episode_return) for t in episodes] == [(1, 0.0), (1, 2.0), (4, 0.0), (4, 1.0)]
    assert metrics == {"filter/kept": pytest.approx(4 / 12), "filter/batches": 3.0}  # of what is learned from


def test_a_full_batch_needs_no_more():
    played, episodes, metrics = refill_groups(batch(MIXED, MIXED), play(), grpo.Args(**DAPO, dynamic_sampling=10))
    assert played == episodes
    assert metrics == {"filter/kept": 1.0, "filter/batches": 1.0}


def test_it_gives_up_and_learns_from_what_there_is():
    more = play(batch(FLAT, MIXED), batch(FLAT, FLAT))
    played, episodes, metrics = refill_groups(batch(FLAT, FLAT), more, grpo.Args(**DAPO, dynamic_sampling=2))
    assert len(played) == 12
    assert [t.group for t in episodes] == [3, 3]
    assert metrics["filter/batches"] == 3


def test_where_nothing_differs_the_learner_gets_all_and_skips_its_update():
    played, episodes, metrics = refill_groups(
        batch(FLAT, FLAT), play(batch(FLAT, FLAT)), grpo.Args(**DAPO, dynamic_sampling=1)
    )
    assert episodes == played
    assert metrics["filter/kept"] == 0


def test_a_return_that_is_not_finite_is_not_refilled_away():
    with pytest.raises(ValueError, match="not finite"):
        refill_groups(
            batch((float("nan"), 1.0), MIXED), play(batch(MIXED, MIXED)), grpo.Args(**DAPO, dynamic_sampling=1)
        )


def test_by_default_nothing_is_played_again():
    first = batch(FLAT, MIXED)
    assert refill_groups(first, play(), grpo.Args(**DAPO)) == (first, first, {})
