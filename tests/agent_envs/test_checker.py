"""The checker has nothing to say of sound environments, and names what is wrong with broken ones."""

import sys

import broken_envs
import gymnasium
import pytest
from broken_envs import Digit, registered

from agent_envs.utils.checker import CheckFailed, check_agent_env, check_step

STEPS = 60


def test_a_sound_environment_passes_with_and_without_a_spec():
    check_agent_env(Digit(), steps=STEPS)
    check_agent_env(broken_envs.LooksAtItsReward(), steps=STEPS)
    with registered(Digit) as id:
        check_agent_env(gymnasium.make(id), steps=STEPS)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("Unmeasured", "no episode ends with PRIMARY_METRIC, 'rihgt', in its info; it has .*right"),
        ("Weighed", "no episode ends with PRIMARY_METRIC, 'rihgt', in its info"),
        ("Adds", "the reward is .*, and its terms add up to"),
        ("PaysToolText", "the reward is 0.0, but 1.0 if the tool results read"),
        ("PaysItsTool", r"step\('<echo>five</echo>'\): the reward is 1.0, but 0.0 if the tool results read '"),
        ("ReadsToolText", r"AssertionError: where is the town\? \(.*broken_envs\.py, line \d+\)"),
        ("Raises", r"raised UnicodeEncodeError: .* \(.*broken_envs\.py, line \d+\)"),
        ("RaisesElsewhere", r"check_env: JSONDecodeError: .* \(.*broken_envs\.py, line \d+\)"),
        ("Surrogate", r"step\('.*'\): the observation has a lone surrogate"),
        ("Clock", "check_env: .*info are not equivalent"),
        ("OwnDice", "the same seed gives other episodes the second time"),
        ("Unpicklable", "cannot be pickled: TypeError"),
        ("Forgetful", "of a pickled copy returns other values than that of the original"),
        ("HashOrder", "the same seed gives another episode in a process with another hash seed"),
        ("SharedLane", "a vector gives .*, by itself it is"),
    ],
)
def test_a_broken_promise_is_named(name, fault):
    with pytest.raises(CheckFailed, match=f"(?s){fault}"):
        check_agent_env(getattr(broken_envs, name)(), steps=STEPS)


def test_what_the_maker_took_from_a_set_shows_when_it_is_made_anew():
    fault = "made from its spec in a process with another hash seed"
    with registered(broken_envs.HashOrderOfMaker) as id, pytest.raises(CheckFailed, match=fault):
        check_agent_env(gymnasium.make(id), steps=STEPS)


def test_an_environment_may_warn_of_its_data():
    with registered(broken_envs.Warns) as id, pytest.warns(UserWarning, match="this is a stand-in"):
        check_agent_env(gymnasium.make(id), steps=5)


def test_metrics_that_a_reward_reads_in_vain_are_named():
    with pytest.warns(UserWarning, match="no turn of this check reports: close, naer, turns$"):
        check_agent_env(broken_envs.ReadsNothing(), steps=5)


def test_an_environment_that_no_other_process_can_import_is_named(monkeypatch):
    monkeypatch.setattr("sys.path", [place for place in sys.path if not place.endswith("agent_envs")])
    with pytest.raises(CheckFailed, match=r"(?s)another process could not play it: .*broken_envs"):
        check_agent_env(Digit(), steps=5)


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        ((3, 0.0, False, False, {}), "observation space"),
        (("", 1, False, False, {}), "finite float, got 1"),
        (("", 0.0, 0, False, {}), "plain bools"),
        (("", 0.0, False, False, {"reward_terms": {"a": float("inf"), "b": 0.0}}), "terms must be finite .*{'a': inf}"),
        (("", 1.0, False, False, {"reward_terms": {"a": 0.5}}), "add up to 0.5"),
        (
            ("", 0.5, False, False, {"reward_terms": {"a": 0.5}, "valid": False}),
            "a malformed turn is rewarded with 0.5",
        ),
    ],
)
def test_a_single_step(outcome, fault):
    with pytest.raises(CheckFailed, match=rf"step\('x'\): .*{fault}"):
        check_step(Digit(), "x", outcome)
