"""Aggregates over seeds and tasks, against numbers worked out by hand."""

import numpy as np
import pytest

from experiments import report
from experiments.aggregates import (
    bootstrap_over_seeds,
    correct_for_number,
    interquartile_mean,
    paired_p_value,
    probability_of_improvement,
)


def test_the_interquartile_mean_is_that_of_the_middle_half():
    assert interquartile_mean(np.array([[100.0, 3, 4, 5], [6.0, 1, 2, -50]])) == 3.5  # 2, 3, 4, 5 of 8


def test_probability_of_improvement_counts_pairs_on_the_same_task():
    ours, theirs = np.array([[0.5, 0.1], [0.7, 0.1]]), np.array([[0.6, 0.1]])
    assert probability_of_improvement(ours, theirs) == 0.5  # (1 of 2) and (two ties of 2)
    assert probability_of_improvement(theirs, ours) == 0.5
    assert probability_of_improvement(ours + 1, theirs) == 1.0
    # Never across tasks: on each of them the first is better.
    assert probability_of_improvement(np.array([[0.2, 0.9]]), np.array([[0.1, 0.8]])) == 1.0


def test_seeds_are_drawn_again_with_all_their_tasks():
    """Two tasks far apart: their difference varies in no draw, as in no seed; nor does a mean that is the same in each seed."""
    scores = np.array([[0.1, 0.9], [0.1, 0.9], [0.12, 0.92], [0.08, 0.88]])
    found = bootstrap_over_seeds(lambda s: (s[..., 1] - s[..., 0]).mean(-1), scores)
    assert found == pytest.approx((0.8, 0.8, 0.8))
    assert bootstrap_over_seeds(lambda s: s.mean((-2, -1)), np.array([[0.0, 1.0], [1.0, 0.0]])) == (0.5, 0.5, 0.5)
    # Of two runs 0 and 1, a mean over two drawn again is 0, .5 or 1, the ends each with probability 1/4.
    assert bootstrap_over_seeds(lambda s: s.mean((-2, -1)), np.array([[0.0] * 9, [1.0] * 9])) == (0.5, 0.0, 1.0)


def test_p_values_are_students_and_corrected_for_their_number():
    """Of .1, .2, .3: t = .2 / (.1 / sqrt 3) = 3.4641 with two degrees of freedom, p = 1 - 3.4641 / sqrt(2 + 12) = .0742."""
    assert paired_p_value([0.1, 0.2, 0.3]) == pytest.approx(1 - 12**0.5 / 14**0.5)
    assert paired_p_value([0.0, 0.0]) == paired_p_value([0.4]) == 1.0
    # Without a deviation the signs are left: all of n the same way, in either direction.
    assert paired_p_value([0.2, 0.2]) == 0.5 and paired_p_value([0.302 - 0.3, 0.412 - 0.41, 0.522 - 0.52]) == 0.25
    assert correct_for_number({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx({"a": 0.06, "b": 0.03, "c": 0.06})
    assert correct_for_number({"a": 0.9, "b": 0.6}) == {"a": 1.0, "b": 1.0}


def results(count):
    """Three agents on two columns; the second is .1 better than the first in every run."""
    rng = np.random.default_rng(0)
    start = rng.uniform(0.2, 0.4, (count, 2))
    agents = {"First": start, "Second": start + 0.1, "Third": start + rng.normal(0, 0.01, (count, 2))}
    return {
        "recipe": {"tasks": {"A": {}, "B": {}}, "reference": ["first"], "runs": {"first": {"title": "First"}}},
        "rows": {n: [{"A": {"score": a}, "B": {"score": b}} for a, b in own] for n, own in agents.items()},
        "seeds": {name: list(range(count)) for name in agents},
    }


def test_the_table_of_aggregates():
    first, second, third = report._aggregate_table(results(5))[-3:]
    assert first.startswith("| First |") and first.endswith("| – | – |")
    assert second.endswith("| 0.125 |")  # the difference is the same in all five seeds: 2 · 2/2^5, of two comparisons
    assert float(third.split("|")[-2]) > 0.05
    assert report._aggregate_table(results(2)) == [], "of two seeds there is nothing to aggregate"


def test_what_shares_no_seed_has_no_p_value_and_counts_for_none():
    found = results(3)
    alone = report._aggregate_table(found | {"rows": {n: found["rows"][n] for n in ("First", "Second")}})[-1]
    found["seeds"]["Third"] = [7, 8, 9]
    _, second, third = report._aggregate_table(found)[-3:]
    assert third.endswith("| – |") and second == alone and second.endswith("| 0.250 |")
