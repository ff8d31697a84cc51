"""The checker has nothing to say of sound environments, and names what is wrong with broken ones."""

import random
import sys

import broken_envs
import gymnasium
import pytest
from broken_envs import Digit, registered

from agent_envs.utils.checker import CheckFailed, check_agent_env, check_step, transcript
from agent_envs.utils.fuzz import make_hostile_turn

STEPS = 60


def test_miniwiki_keeps_its_promises(small):
    check_agent_env(gymnasium.make("AgentR1/MiniWiki-Easy-v0", **small), steps=STEPS)


def test_a_sound_environment_passes_with_and_without_a_spec():
    check_agent_env(Digit(), steps=STEPS)
    with registered(Digit) as id:
        check_agent_env(gymnasium.make(id), steps=STEPS)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("Infinite", r"the reward term .* must give a finite number, got nan"),
        ("Adds", "the reward is .*, and its terms add up to"),
        ("PaysToolText", "0.0 is paid, and 1.0 for other words in the results"),
        ("ReadsToolText", "the check 'tool_text' met AssertionError: where is the town"),
        ("PaysGarbage", "a turn that could not be read earns 1.0"),
        ("Raises", "raised UnicodeEncodeError"),
        ("SurrogateAtReset", r"reset\(seed=0\): the observation has a lone surrogate"),
        ("Surrogate", r"step\('.*'\): the observation has a lone surrogate"),
        ("TooLong", "the observation is not in the observation space|check_env: .*observation"),
        ("NumpyFlags", "must be plain bools"),
        ("Clock", "check_env: .*info are not equivalent"),
        ("OwnDice", "the same seed gives other episodes when it is played again"),
        ("Unpicklable", "cannot be pickled: TypeError"),
        ("Forgetful", "a pickled copy says something else than the original"),
        ("HashOrder", "the same seed gives another episode in a process with another hash seed"),
        ("SharedLane", "a vector gives .*, alone it is"),
    ],
)
def test_a_broken_promise_is_named(name, fault):
    with pytest.raises(CheckFailed, match=f"(?s){fault}"):
        check_agent_env(getattr(broken_envs, name)(), steps=STEPS)


def test_a_check_of_no_steps_is_none():
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        check_agent_env(gymnasium.make("AgentR1/Bandit-v0"), steps=0)


def test_what_the_maker_took_from_a_set_shows_when_it_is_made_anew():
    fault = "made from its spec in a process with another hash seed"
    with registered(broken_envs.HashOrderOfMaker) as id, pytest.raises(CheckFailed, match=fault):
        check_agent_env(gymnasium.make(id), steps=STEPS)


def test_an_environment_may_warn_of_its_data():
    with registered(broken_envs.Warns) as id, pytest.warns(UserWarning, match="this is a stand-in"):
        check_agent_env(gymnasium.make(id), steps=5)


def test_an_environment_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="made from ToolEnv, got CartPoleEnv"):
        check_agent_env(gymnasium.make("CartPole-v1"))


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
        (("", 0.5, False, False, {"reward_terms": {"a": 0.5}, "valid": False}), "could not be read earns 0.5"),
    ],
)
def test_a_single_step(outcome, fault):
    with pytest.raises(CheckFailed, match=rf"step\('x'\): .*{fault}"):
        check_step(Digit(), "x", outcome)


def test_a_transcript_is_that_of_its_seed():
    first, again, other = (transcript(Digit(), 40, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert transcript(Digit(), 40, 1, sampled=False) != first


def test_hostile_turns_repeat_with_the_seed_and_use_what_they_are_given():
    def turns(seed):
        rng = random.Random(seed)
        return [make_hostile_turn(rng, ("<echo>a</echo>",), "Which digit?") for _ in range(300)]

    assert turns(1) == turns(1) != turns(2)
    assert any("<echo>a</echo>" in turn for turn in turns(1)) and any("Which digit?" in turn for turn in turns(1))
    assert any("\ud800" in turn for turn in turns(1)) and "" in turns(1)
    assert all(isinstance(make_hostile_turn(random.Random(i)), str) for i in range(100))
