"""What every task keeps to: its scripted agents, its formats, its splits and its reset options. The contract of a single
environment (seeds, spaces, pickling, processes, vectors) is checked in test_registration.py."""

import itertools

import gymnasium
import numpy as np
import pytest

from agent_envs import sandbox
from agent_envs.formats import FORMATS
from agent_envs.tool_env import ToolEnv
from agent_envs.types import TurnOutcome
from agent_envs.utils.scripts import roll_out

ISOLATED = any(state == "ok" for name, state in sandbox.available().items() if name != "unsafe")
WORLD = {"entities": 300, "questions": 150}

# Task -> arguments, the return of the oracle (None: it depends on the instance), and bounds of the mean score of the agents
# "random" and "scripted" over 24 episodes.
TASKS = {
    "MiniWiki": ({**WORLD, "types": ["chain", "comparison", "yes_no"]}, 1.05, 0.2, 0.4),
    "MiniWiki-Easy": (WORLD, 1.05, 0.1, 0.4),
    "MiniWiki-Hard": (WORLD, 1.05, 0.1, 0.5),
    "HotpotQA": ({}, 1.05, 1.0, 1.0),
    "Calculator": ({"difficulty": "easy"}, 1.05, 0.1, 0.6),
    "SQL": ({"difficulty": "easy"}, 1.05, 0.12, 0.6),
    "API": ({"difficulty": "easy"}, 1.05, 0.15, 0.5),
    "Mixed": ({"entities": 200}, 1.05, 0.1, 0.5),
    "Python": ({"kinds": ["days_after", "recurrence", "counting"]}, 1.05, 0.2, 0.9),
    "Bandit": ({}, None, 0.8, 0.8),
    "Sokoban": ({}, None, 0.4, 0.99),
    "FrozenLake": ({"slippery": False}, 1.0, 0.6, 1.0),
    "Countdown": ({}, 1.0, 0.1, 0.98),
    "Mixture": ({}, None, 0.4, 0.9),
}


@pytest.fixture(params=TASKS)
def make(request, folder):
    """A function that makes one of the tasks, with further arguments."""
    name = request.param
    if name == "Python" and not ISOLATED:
        pytest.skip(f"no isolation here: {sandbox.available()}")
    arguments = {"data": folder} if name == "HotpotQA" else TASKS[name][0]

    def make(**more):
        return gymnasium.make(f"AgentR1/{name}-v0", **{**arguments, **more}).unwrapped

    make.task = name
    return make


def splits(make):
    return [make(split=split) for split in ("train", "validation")]


def test_the_oracle_solves_everything_and_chance_does_not(make):
    _, paid, chance, rule = TASKS[make.task]
    envs, means = splits(make), {}
    for name in ("random", "scripted", "oracle"):
        scores = []
        for env, seed in itertools.product(envs, range(4 if make.task == "Python" else 12)):
            episode = roll_out(env, env.SCRIPTS[name], seed)
            assert all(turn["reward"] == sum(turn["reward_terms"].values()) for turn in episode)
            scores.append(episode[-1][env.PRIMARY_METRIC])
            if name == "oracle" and paid is not None:
                assert sum(turn["reward"] for turn in episode) == pytest.approx(paid)
        means[name] = np.mean(scores)
    assert means["oracle"] == 1.0 and means["random"] <= chance and means["scripted"] <= rule, means
    assert means["random"] < means["scripted"] or make.task in ("HotpotQA", "Bandit")


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "ragen"])  # that cannot call and answer
def test_any_format_will_do(make, format):
    env, usual = make(format=format), make(format="tags")
    for name in ("scripted", "oracle"):
        turns, others = (roll_out(one, one.SCRIPTS[name], 5) for one in (env, usual))
        assert all(turn["valid"] for turn in turns)
        assert [turn["reward"] for turn in turns] == [turn["reward"] for turn in others]


def test_held_out_instances_are_never_trained_on(make):
    if make.task == "Bandit":
        train, validation = ({word for s in range(60) for word in env.reset(seed=s)[1]["arms"]} for env in splits(make))
    else:
        train, validation = ({env.reset(seed=seed)[0] for seed in range(30)} for env in splits(make))
    if make.task == "HotpotQA":  # whose rows are told apart by their ids here
        train, validation = ({question.id for question in env.questions} for env in splits(make))
    assert train and validation and not train & validation


class Numbers(ToolEnv):
    """A task that makes no difference between splits itself."""

    def begin(self, options):
        return str(self.np_random.integers(2**62)), {}

    def evaluate_turn(self, turn, results, done):
        return TurnOutcome({"success": 0.0})


def test_seeds_that_are_held_out_are_none_that_training_draws():
    train, held_out = Numbers(), Numbers(split="validation")
    first = [held_out.reset(seed=seed)[0] for seed in (0, 1)]
    assert first == [train.reset(seed=2**31 + seed)[0] for seed in (0, 1)]  # training's seeds are below 2**31
    train.hold_out("validation")
    assert train.reset(seed=0)[0] == first[0]


def test_an_instance_can_be_picked_and_unknown_options_are_refused(make):
    env = make()
    text, info = env.reset(seed=5)
    if "instance" in info:
        assert env.reset(seed=6, options={"instance": info["instance"]})[0] == text
    if env.questions is not None:
        assert env.reset(options={"question": 1})[0] == env.questions[1].question
    option = "instance" if "instance" in info else "question" if env.questions is not None else None
    for wrong in (-1, 2**31, 1.5, True, "1") if option else ():
        with pytest.raises(ValueError, match=f"{option} must be an integer in 0.."):
            env.reset(options={option: wrong})
    with pytest.raises(ValueError, match="unknown reset options"):
        env.reset(options={"nothing": 3})


@pytest.mark.parametrize(("name", "instance"), [("Bandit", "arms"), ("FrozenLake", "board")])
def test_a_noise_seed_changes_what_comes_out_and_not_the_instance(name, instance):
    env = gymnasium.make(f"AgentR1/{name}-v0").unwrapped
    outcomes = {}
    for noise in (*range(12), 3):
        info = env.reset(seed=2, options={"noise_seed": noise})[1]
        assert info[instance] == env.reset(seed=2)[1][instance]
        episode = roll_out(env, env.SCRIPTS["oracle"], 2, {"noise_seed": noise})
        said = repr([(turn["next_observation"], turn["reward"]) for turn in episode])
        assert outcomes.setdefault(noise, said) == said
    assert len(set(outcomes.values())) > 1
    for wrong in ("yes", True, 1.5):
        with pytest.raises(ValueError, match="noise_seed must be an integer"):
            env.reset(options={"noise_seed": wrong})


WRONG = {
    "Calculator": [{"source": "web"}, {"difficulty": "extreme"}, {"data": "somewhere"},
                   {"source": "gsm8k", "difficulty": "hard"}],
    "SQL": [{"difficulty": "extreme"}],
    "API": [{"difficulty": "extreme"}],
    "Mixed": [{"kinds": []}, {"kinds": "query"}, {"kinds": ["sql"]}, {"entities": 3}, {"k": 0}],
    "Python": [{"kinds": []}, {"kinds": "roads"}, {"kinds": ["riddles"]}, {"timeout": 0}, {"memory_mb": 1},
               {"memory_mb": 100.5}, {"memory_mb": 10**9}],
    "Sokoban": [{"size": 4}, {"boxes": 0}, {"moves": 5}, {"moves": (5, 2)}, {"moves": (2, 11)}, {"max_actions": 0},
                {"size": 6.5}, {"moves": (2.0, 3)}],
    "FrozenLake": [{"size": 2}, {"frozen": 1.0}, {"frozen": 0.1}, {"actions_per_turn": 0},
                   {"max_actions": 2.5}, {"slippery": "no"}],
    "Countdown": [{"numbers": (1, 3)}, {"numbers": (4, 3)}, {"numbers": 4}, {"numbers": (2, 9)}, {"largest": 2},
                  {"largest": 50.5}, {"numbers": (2.5, 3)}],
    "Bandit": [],
    "MiniWiki-Easy": [{"k": 0}, {"k": "3"}, {"k": True}, {"max_chars": 0}, {"max_chars": 10.5}, {"hops": 5}, {"types": []},
                      {"types": ["riddle"]}, {"questions": 0}, {"questions": 10.5}, {"entities": 3},
                      {"entities": 100.5}, {"hops": True}, {"difficulty": "mad"}, {"holdout": 1},
                      {"rewards": {"x": 1}}, {"rewards": {"judge": 1.0}}, {"benchmark": "squad"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "wrong"),
    [(name, wrong) for name, own in WRONG.items() for wrong in ({"split": "test"}, {"max_turns": 0}, *own)],
)
def test_wrong_arguments_are_refused_in_one_line(name, wrong):
    with pytest.raises(ValueError) as error:
        env = gymnasium.make(f"AgentR1/{name}-v0", **wrong).unwrapped
        env.reset(seed=0)  # a world is made when it is needed
    assert str(error.value) and "\n" not in str(error.value)
