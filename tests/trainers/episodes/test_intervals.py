"""Intervals over seeds, and over questions and seeds, against numbers worked out by hand."""

import numpy as np
import pytest

from trainers.episodes.report.intervals import bootstrap, mean_and_half, paired_values


def test_intervals_are_those_of_students_t():
    """Of .1, .2, .3: deviation .1, t(.975, 2) = 4.3027, so 4.3027 x .1 / sqrt 3 = .2484."""
    assert mean_and_half([0.1, 0.2, 0.3]) == pytest.approx((0.2, 0.2484), abs=1e-4)
    assert mean_and_half([0.4]) == (0.4, None)


def test_of_two_seeds_that_differ_alike_on_all_questions_the_interval_is_from_one_to_the_other():
    """A resample of two seeds is twice the first with probability 1/4, above 2.5 %, and so with the second."""
    assert bootstrap(np.array([[0.1] * 4, [0.3] * 4])) == pytest.approx((0.2, 0.1, 0.3))


def test_one_seed_leaves_the_questions():
    assert bootstrap(np.array([[0.0, 1.0]])) == (0.5, 0.0, 1.0)
    mean, low, high = bootstrap(np.array([[0.0] * 50 + [1.0] * 50]))
    # The mean of 100 draws has the deviation sqrt(.25 / 100) = .05.
    assert (mean, low, high) == pytest.approx((0.5, 0.5 - 1.96 * 0.05, 0.5 + 1.96 * 0.05), abs=0.02)


def test_seeds_and_questions_are_drawn_each_for_itself():
    """Of a_s + b_q the variances add up: that of a over the seeds (.04 / 3), that of b over the questions (.25 / 25)."""
    a = np.array([-0.2, 0.0, 0.2]) * np.sqrt(1.5)  # variance .04
    b = np.array([-0.5, 0.5] * 12 + [0.0])
    mean, low, high = bootstrap(a[:, None] + b, samples=20_000)
    deviation = np.sqrt(0.04 / 3 + b.var() / 25)
    assert mean == pytest.approx(0.0, abs=1e-12)
    assert (high - low) / 2 == pytest.approx(1.96 * deviation, rel=0.1)
    # Were every score drawn for itself, it would be .029 wide on each side.
    assert (high - low) / 2 > 0.2


def test_pairs_are_of_the_same_seed_and_question():
    ours = {0: {"a": 1.0, "b": 0.5, "c": 0.0}, 1: {"a": 0.0, "b": 1.0, "c": 0.0}, 2: {"a": 9.0, "b": 9.0, "c": 9.0}}
    theirs = {1: {"b": 0.25, "a": 1.0}, 0: {"a": 0.0, "b": 0.5}}
    assert paired_values(ours, theirs).tolist() == [[1.0, 0.0], [-1.0, 0.75]]
    assert paired_values(ours, {None: {"b": 1.0}}).tolist() == [[-0.5], [0.0], [8.0]]  # what no seed changes
    assert paired_values({None: {"b": 1.0}}, {0: {"b": 0.5}, 1: {"b": 0.0}}).tolist() == [[0.5], [1.0]]
    assert paired_values({0: {"a": 1.0}}, {1: {"a": 1.0}}).size == 0
