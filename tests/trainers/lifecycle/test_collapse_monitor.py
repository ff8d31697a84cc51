import math

import pytest
import torch

from trainers.lifecycle.collapse_monitor import CollapseMonitor, mutual_information
from trainers.rollouts.statistics import repeated_ngrams


def named(symptoms):
    return [symptom.name for symptom in symptoms]


def run(monitor, name, values):
    """At which of ``values`` which symptom was reported."""
    return [(i, s) for i, value in enumerate(values) for s in named(monitor.update(**{name: value}))]


@pytest.mark.parametrize(
    ("name", "healthy", "ill", "symptom"),
    [
        ("reward_deviation", 0.5, 0.04, "reward deviation collapsed"),
        ("entropy", 2.0, 0.1, "entropy collapsed"),
        ("entropy", 2.0, 7.0, "entropy exploded"),
        ("response_length", 100.0, 20.0, "responses shrank"),
        ("response_length", 100.0, 500.0, "responses grew"),
        ("repetition", 0.15, 0.4, "text repeats itself"),
        ("repetition", 0.01, 0.15, None),  # is ordinary text
        ("search_rate", 0.8, 0.05, "search was given up"),
        ("valid_turns", 1.0, 0.4, "turns became invalid"),
        ("mutual_information", 2.0, 0.1, "template collapse"),
    ],
)
def test_a_symptom_is_named_after_ten_updates_in_a_row_and_once(name, healthy, ill, symptom):
    assert run(CollapseMonitor(), name, [healthy] * 40) == []
    assert run(CollapseMonitor(), name, [healthy] * 10 + [ill] * 30) == ([(19, symptom)] if symptom else [])
    recovering = [healthy] * 10 + [ill] * 9 + [healthy] + [ill] * 10
    assert run(CollapseMonitor(), name, recovering) == ([(29, symptom)] if symptom else [])


@pytest.mark.parametrize(
    ("name", "values", "symptom"),
    [
        ("entropy", [0.1, 0.2, 0.4, 0.6, 1.2, 2.1, 3.0, 4.2, 4.3, 3.6, 3.4, 3.6, 3.3, 3.4, 3.7], "entropy exploded"),
        ("entropy", [1.1, 0.9, 1.0, 0.3] + [0.01] * 20, "entropy collapsed"),
        ("valid_turns", [0.9] * 4 + [0.2] * 20, "turns became invalid"),
    ],
)
def test_what_collapses_at_once_is_no_measure_of_itself(name, values, symptom):
    ((when, said),) = run(CollapseMonitor(), name, values)
    assert said == symptom
    assert when < 16


def test_the_rule_of_the_paper_is_against_all_of_the_first_updates():
    assert run(CollapseMonitor(), "reward_deviation", [0.5] * 3 + [0.0] * 16) == []
    assert run(CollapseMonitor(), "reward_deviation", [0.5] * 3 + [0.0] * 17) == [(19, "reward deviation collapsed")]


def test_only_the_rules_of_the_papers_ask_to_stop():
    monitor = CollapseMonitor()
    for _ in range(10):
        monitor.update(reward_deviation=0.5, entropy=2.0)
    found = [s for _ in range(10) for s in monitor.update(reward_deviation=0.01, entropy=0.01)]
    assert [(s.name, s.stop) for s in found] == [("reward deviation collapsed", True), ("entropy collapsed", False)]
    assert "0.01" in found[0].message
    assert "0.5" in found[0].message


def test_five_empty_filters_in_a_row():
    assert run(CollapseMonitor(), "empty_filter", [True] * 4 + [False] + [True] * 6) == [(9, "no signal left")]


def test_gradient_spikes_against_the_moving_average():
    norms = [1.0] * 5 + [50.0] + [1.0] * 40 + [6.0, 1.0]  # the first ten only make the average
    assert run(CollapseMonitor(), "gradient_norm", norms) == [(46, "gradient norm spiked")]
    # average 1, then .9 x 1 + .1 x 6 = 1.5: 7 is under five times that, 8 is not
    spike = "gradient norm spiked"
    assert run(CollapseMonitor(), "gradient_norm", [1.0] * 20 + [6.0, 7.0]) == [(20, spike)]
    assert run(CollapseMonitor(), "gradient_norm", [1.0] * 20 + [6.0, 8.0]) == [(20, spike), (21, spike)]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_named_and_not_remembered(value):
    for name in ("gradient_norm", "response_length"):
        monitor = CollapseMonitor()
        (symptom,) = monitor.update(**{name: value})
        assert symptom.name == f"{name.replace('_', ' ')} is not finite"
        assert symptom.stop
        assert run(monitor, name, [1.0] * 30) == []


def test_five_validations_without_success():
    monitor = CollapseMonitor()
    rates = [0.0] * 4 + [0.01] + [0.009] * 6
    assert [i for i, rate in enumerate(rates) if monitor.validate(rate)] == [9]


NOISE = [0.1, -0.1] * 10
RISING, FALLING = ([(a if i < 10 else b) + n for i, n in enumerate(NOISE)] for a, b in ((0.5, 1.5), (0.4, 0.1)))


def test_a_reward_is_hacked_where_returns_rise_and_scores_fall():
    """By hand: .5 ± .1, then 1.5 ± .1, ten updates each, is many standard errors; the score falls likewise. It is named once."""
    monitor = CollapseMonitor()
    assert monitor.check_reward(math.nan, 0.5) == monitor.check_reward(0.5, math.inf) == []  # are passed over
    found = [monitor.check_reward(*pair) for pair in zip(RISING, FALLING, strict=True)]
    assert found[:-1] == [[]] * 19
    assert [(s.name, s.stop) for s in found[-1]] == [("reward hacked", False)]
    assert found[-1][0].message == "the return rose from 0.5 to 1.5, the score fell from 0.4 to 0.1"


@pytest.mark.parametrize(
    ("returns", "scores"),
    [(RISING, [0.4 + n for n in NOISE]), (RISING, [0.4 + 0.02 * i for i in range(20)]), (FALLING, FALLING)],
)
def test_scores_that_do_not_fall_or_returns_that_do_are_no_hack(returns, scores):
    monitor = CollapseMonitor()
    assert not any(monitor.check_reward(*pair) for pair in zip(returns, scores, strict=True))


def test_repeated_ngrams_by_hand():
    # 1 2 1 2 1: pairs 12 21 12 21, two of four came before.
    assert repeated_ngrams([1, 2, 1, 2, 1], 2) == 0.5
    assert repeated_ngrams([1, 2, 3, 4, 5, 6]) == 0.0
    assert repeated_ngrams([7] * 103) == 0.99
    assert repeated_ngrams([1, 2, 3]) == repeated_ngrams([]) == 0.0


def test_mutual_information_by_hand():
    # Reasoning 0: log(.8 / mean(.8, .2)) = log 1.6 = .470004; reasoning 1 fits both prompts equally: 0.
    logprobs = torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log()
    assert mutual_information(logprobs) == pytest.approx(0.235002, abs=1e-6)
