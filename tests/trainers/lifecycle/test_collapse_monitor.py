import math

import pytest

from trainers.lifecycle.collapse_monitor import CollapseMonitor
from trainers.rollouts.statistics import repeated_ngrams
from trainers.runtime.progress import Progress


def find(name, values, score="em"):
    """At which of the ``values`` of a metric which symptom was named."""
    monitor = CollapseMonitor(score)
    for i, value in enumerate(values):
        monitor.record(i, {name: value})
    return [(s["update"], s["name"]) for s in monitor.symptoms]


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
        ("valid_turns", 0.0, 0.0, None),  # what never was cannot be lost
        ("mutual_information", 2.0, 0.1, "template collapse"),
    ],
)
def test_a_symptom_is_named_after_ten_updates_in_a_row_and_once(name, healthy, ill, symptom):
    name = f"monitor/{name}"
    assert find(name, [healthy] * 40) == []
    assert find(name, [healthy] * 10 + [ill] * 30) == ([(19, symptom)] if symptom else [])
    recovering = [healthy] * 10 + [ill] * 9 + [healthy] + [ill] * 10
    assert find(name, recovering) == ([(29, symptom)] if symptom else [])


@pytest.mark.parametrize(
    ("name", "values", "symptom"),
    [
        ("entropy", [0.1, 0.2, 0.4, 0.6, 1.2, 2.1, 3.0, 4.2, 4.3, 3.6, 3.4, 3.6, 3.3, 3.4, 3.7], "entropy exploded"),
        ("entropy", [1.1, 0.9, 1.0, 0.3] + [0.01] * 20, "entropy collapsed"),
        ("valid_turns", [0.9] * 4 + [0.2] * 20, "turns became invalid"),
    ],
)
def test_what_collapses_at_once_is_no_measure_of_itself(name, values, symptom):
    ((when, said),) = find(f"monitor/{name}", values)
    assert said == symptom
    assert when < 16


NOISE = [0.1, -0.1] * 10
RISING, FALLING = ([(a if i < 10 else b) + n for i, n in enumerate(NOISE)] for a, b in ((0.5, 1.5), (0.4, 0.1)))
SPIKE = "gradient norm spiked"


@pytest.mark.parametrize(
    ("name", "values", "symptoms"),
    [
        # The rule of the paper is against all of the first ten updates.
        ("monitor/reward_deviation", [0.5] * 3 + [0.0] * 16, []),
        ("monitor/reward_deviation", [0.5] * 3 + [0.0] * 17, [(19, "reward deviation collapsed")]),
        ("monitor/empty_filter", [1.0] * 4 + [0.0] + [1.0] * 6, [(9, "no signal left")]),
        ("eval/em", [0.0] * 4 + [0.01] + [0.009] * 6, [(9, "no success")]),
        ("eval/em", [i / 10 - 5 for i in range(30)], []),  # a return below zero is no rate of success
        ("train/failed", [0.0, 0.2, 0.1], [(1, "episodes failed")]),
        ("train/cut_turns", [0.3, 0.4, 0.9], [(1, "turns are cut")]),
        # The first ten gradients only make the average: 1, then .9 x 1 + .1 x 6 = 1.5; 7 is under five times that.
        ("monitor/gradient_norm", [1.0] * 5 + [50.0] + [1.0] * 40 + [6.0, 1.0], [(46, SPIKE)]),
        ("monitor/gradient_norm", [1.0] * 20 + [6.0, 7.0], [(20, SPIKE)]),
        ("monitor/gradient_norm", [1.0] * 20 + [6.0, 8.0], [(20, SPIKE), (21, SPIKE)]),
        *(
            (f"monitor/{n}_{unit}", [value] + [1.0] * 30, [(0, f"{n} {unit} is not finite")])
            for n, unit in (("gradient", "norm"), ("response", "length")) for value in (math.nan, math.inf)
        ),
    ],
)  # fmt: skip
def test_when_other_symptoms_are_named(name, values, symptoms):
    assert find(name, values) == symptoms


def test_what_a_line_lacks_neither_continues_nor_ends_a_symptom():
    monitor = CollapseMonitor("em")
    for i in range(30):
        lost = {"monitor/gradient_norm": None} if i == 20 else {}  # was not finite
        monitor.record(i, {"monitor/entropy": 2.0 if i < 12 else 0.01, "eval/em": 0.5 * (i < 3)} | lost)
    assert [(s["name"], s["update"]) for s in monitor.symptoms] == [("no success", 7), ("entropy collapsed", 21)]


def test_a_symptom_that_comes_back_is_warned_of_once_and_the_papers_rules_ask_to_stop(capsys):
    monitor = CollapseMonitor("em")
    with Progress(100) as progress:
        stops = [
            monitor.record(i, {"monitor/entropy": 2.0 if i < 10 or i == 30 else 0.01}, progress) for i in range(60)
        ]
        assert not any(stops)
        assert monitor.record(60, {"monitor/gradient_norm": math.nan}, progress)
    assert [s["name"] for s in monitor.symptoms] == ["entropy collapsed"] * 2 + ["gradient norm is not finite"]
    assert monitor.symptoms[0]["message"] == "entropy 0.01, 10 updates beyond 0.1 x its first ones (2)"
    assert capsys.readouterr().err.count("entropy collapsed") == 1


@pytest.mark.parametrize(
    ("returns", "scores", "named"),
    [
        (RISING, FALLING, True),  # by hand: .5 ± .1, then 1.5 ± .1, ten updates each, is many standard errors
        (RISING, [0.4 + n for n in NOISE], False),
        (RISING, [0.4 + 0.02 * i for i in range(20)], False),
        (FALLING, FALLING, False),
    ],
)
def test_a_reward_is_hacked_where_returns_rise_and_scores_fall(returns, scores, named):
    monitor = CollapseMonitor("em")
    monitor.record(0, {"train/return": math.nan, "train/em": 0.5})  # is passed over
    for i, (paid, score) in enumerate(zip(returns, scores, strict=True)):
        monitor.record(i, {"train/return": paid, "train/em": score})
    message = "the return rose from 0.5 to 1.5, the score fell from 0.4 to 0.1"
    expected = {"update": 19, "name": "reward hacked", "message": message, "stop": False}
    assert monitor.symptoms == [expected] * named


def test_repeated_ngrams_by_hand():
    # 1 2 1 2 1: pairs 12 21 12 21, two of four came before.
    assert repeated_ngrams([1, 2, 1, 2, 1], 2) == 0.5
    assert repeated_ngrams([1, 2, 3, 4, 5, 6]) == 0.0
    assert repeated_ngrams([7] * 103) == 0.99
    assert repeated_ngrams([1, 2, 3]) == repeated_ngrams([]) == 0.0
