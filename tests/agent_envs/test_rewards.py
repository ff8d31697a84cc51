"""The algebra of reward terms, by hand-computed numbers, and how a reward is asked for."""

import pickle
from dataclasses import replace

import pytest

from agent_envs.rewards import (
    AtEnd,
    AtLeast,
    Format,
    Gain,
    Gate,
    Invalid,
    Metric,
    Minus,
    PerTurn,
    Repeat,
    Reward,
    Shaping,
    Thought,
    make_reward,
)
from agent_envs.tasks.qa import QAEnv
from agent_envs.types import Turn, TurnContext


def turn_context(**changes):
    return replace(TurnContext(Turn(answer="x"), {}, {}, False, 1, [], False, False), **changes)


GOOD, BAD = Turn(answer="x", thought="so"), Turn(error="?")


P, F = {"metrics": {"p": 0.75}, "previous_metrics": {"p": 0.5}}, {"metrics": {"f": 0.7}}
EM, DONE = {"metrics": {"em": 1.0}}, {"done": True}
TERMS = [
    *((Metric("em"), {"metrics": {"em": 0.5}}, 0.5), (PerTurn(), {"failed": True}, 1.0)),
    *((Invalid(), {"failed": True}, 1.0), (Repeat(), {"repeated": True}, 1.0)),
    (Format(), {"done": True, "turn": GOOD, "previous_turns": [GOOD, BAD, GOOD]}, 0.75),
    *((Format(), {"done": False, "turn": GOOD}, 0.0), (Format(), DONE | {"turn": BAD, "previous_turns": [GOOD]}, 0.0)),
    *((Thought(), {"turn": GOOD}, 1.0), (Thought(), {"turn": Turn(answer="x", thought=" ")}, 0.0)),
    (Thought(), {"turn": Turn(error="?", thought="so")}, 0.0),
    *((Shaping("p"), P, 0.25), (Gain("p"), P, 0.25), (Gain("p"), P | DONE, 0.25), (Shaping("p", 0.5), P, -0.125)),
    (Shaping("p"), {"metrics": {"p": 1.0}, "previous_metrics": {"p": 0.5}, "done": True}, -0.5),
    *((AtEnd(Metric("em")), EM, 0.0), (AtEnd(Metric("em")), EM | DONE, 1.0)),
    *((AtLeast(Metric("f"), 0.3), {"metrics": {"f": share}}, paid) for share, paid in ((0.3, 1.0), (0.29, 0.0))),
    *((Gate(Metric("f"), Invalid()), F | {"failed": True}, 0.7), (Gate(Metric("f"), Invalid()), F, 0.0)),
    (Minus(Metric("f"), 1.0), {"metrics": {"f": 0.25}}, -0.75),
]


@pytest.mark.parametrize(("term", "changes", "value"), TERMS)
def test_each_term_by_hand(term, changes, value):
    assert term(turn_context(**changes)) == value
    assert pickle.loads(pickle.dumps(term)) == term
    assert "object at" not in str(term)


def test_a_reward_is_a_weighted_sum_of_named_terms_and_prints_itself():
    reward = Reward(answer=(2.0, AtEnd(Metric("em"))), time=(-0.1, PerTurn()), bonus=(0.0, Thought()))
    assert reward(turn_context(done=True, metrics={"em": 1.0})) == {"answer": 2.0, "time": -0.1}
    assert str(reward(turn_context())["answer"]) == "0.0"
    assert str(reward).splitlines() == ["answer  2     × em at the end", "time    -0.1  × 1 in every turn"]
    assert dict(pickle.loads(pickle.dumps(reward))) == dict(reward)


def spoken(m: TurnContext) -> float:
    return float(len(m.turn.thought or ""))


def test_a_new_term_is_a_plain_function():
    env = QAEnv(entities=150, questions=20, rewards={"spoken": (0.5, spoken)})
    assert "spoken" in str(env.reward)
    env.reset(seed=0)
    assert env.step("<think>abcd</think><search>town</search>")[4]["reward_terms"]["spoken"] == 2.0


def test_weights_go_over_the_defaults():
    default = QAEnv.REWARD
    assert make_reward(None, default) is default
    asked = make_reward({"f1": 1, "answer": 0, "gamma": 0.5}, default)
    assert (asked["f1"], asked["answer"][0]) == ((1.0, AtEnd(Metric("f1"))), 0.0)
    assert asked["progress"] == (0.3, Shaping("support_recall", 0.5)) and default["progress"][1].gamma == 1.0
    assert dict(make_reward({"preset": "search_r1", "progress": 0.2}, default, QAEnv.PRESETS)) == {
        "answer": (1.0, AtEnd(Metric("em"))),
        "progress": (0.2, Shaping("support_recall")),
    }
    own = Reward(x=(1.0, Gate(PerTurn(), AtLeast(Shaping("p"), 0.1))))
    assert make_reward(own, default) is own
    assert own.with_gamma(0.5)["x"] == (1.0, Gate(PerTurn(), AtLeast(Shaping("p", 0.5), 0.1)))


def played(preset, actions, gold="Zug"):
    env = QAEnv(entities=150, questions=20, rewards=preset, max_turns=3)
    env.reset(seed=0)
    object.__setattr__(env.question, "answer", gold), object.__setattr__(env.question, "aliases", ())
    return sum(env.step(action)[1] for action in actions)


NO, LOOK, THINK = "nonsense", "<search>a</search>", "<think>t</think>"
RIGHT, LAKE, X = "<answer>zug</answer>", "<answer>Zug lake</answer>", "<answer>x</answer>"
PLAYED = {
    "search_r1": [([LOOK, RIGHT], 1.0), ([NO, RIGHT], 1.0), ([LAKE], 0.0)],
    # of a turn of two that cannot be read, the right answer does not count
    "em_if_well_formed": [([LOOK, RIGHT], 1.0), ([LOOK, X], 0.0), ([NO, RIGHT], -0.5), ([NO] * 3, -1.0)],
    # −1 + format + (1 for a gold answer in the answer, or .2 for one in the last turn), the latter from format ½ on
    "agent_r1": [
        *(([THINK + LOOK, THINK + RIGHT], 1.0), (["<think></think>" + LOOK, "<think></think>" + LAKE], 1.0)),
        *(([THINK + LOOK, "<think>Zug?</think>" + X], 0.2), ([THINK + LOOK, THINK + X], 0.0)),
        *(([THINK + LOOK, RIGHT], 0.5), ([THINK + RIGHT], 0.5)),  # the first has no thought in its last turn
        *(([LOOK, RIGHT], -1.0), ([NO, THINK + X], -0.5), ([NO] * 3, -1.0)),  # without thoughts nothing is paid
        ([THINK + LOOK] * 2 + [f"{THINK}<search>zug</search>"], 0.2),
    ],
    # F1 = 2/8 is below .3
    "ragen": [([RIGHT], 1.0), ([LAKE], 2 / 3), (["<answer>Zug a1 b2 c3 d4 e5 f6</answer>"], 0.0), ([NO, RIGHT], 1.0)],
}


@pytest.mark.parametrize(
    ("preset", "actions", "reward"), [(preset, *case) for preset, cases in PLAYED.items() for case in cases]
)
def test_published_rewards_by_hand(preset, actions, reward):
    assert played(preset, actions) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"anwser": 1.0}, "unknown reward weight 'anwser'.*answer"),
        ("agent_r2", "unknown reward preset 'agent_r2'.*agent_r1"),
        ({"gamma": 1.5}, "gamma must be"),
        ({"answer": "1"}, "answer must be a finite number"),
        ({"format": float("nan")}, "format must be a finite number"),
        ({"invalid": None}, "invalid must be a finite number"),
        ({"repeat": True}, "repeat must be a finite number"),
        ({"new": (1.0, "em")}, "'new' must be a function"),
    ],
)
def test_bad_rewards_are_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        make_reward(asked, QAEnv.REWARD, QAEnv.PRESETS)
