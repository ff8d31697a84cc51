"""The bandit whose arms are words."""

import itertools
import random

import numpy as np
import pytest

from agent_envs.games.bandit import FAMILIES, Arms, draw_arms
from agent_envs.generators.instances import make_noise_rng
from agent_envs.tasks.bandit import BanditEnv


def pull(env, name):
    return env.step(f"<think>bold</think><answer>{name}</answer>")


def other(env):
    return next(name for name in env.arms.names if name != env.arms.risky)


def test_the_arms_pay_what_they_should():
    arms, rng = Arms(("Ox", "Wolf"), risky="Wolf"), random.Random(0)
    risky = [arms.pull("Wolf", rng) for _ in range(4000)]
    assert set(risky) == {0.0, 1.0} and abs(np.mean(risky) - 0.25) < 0.03
    assert {arms.pull("Ox", rng) for _ in range(50)} == {0.1}
    assert (arms.expected("Wolf"), arms.expected("Ox")) == (0.25, 0.1)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_more_daring_name_is_the_risky_one(split):
    order = {word: (i, rank) for i, family in enumerate(FAMILIES[split]) for rank, word in enumerate(family)}
    for seed in range(200):
        arms = draw_arms(random.Random(seed), split)
        (family, a), (same, b) = (order[name] for name in arms.names)
        assert family == same and arms.risky == arms.names[0 if a > b else 1]


def test_neither_place_nor_word_gives_the_risky_arm_away():
    drawn = [draw_arms(random.Random(seed), "train") for seed in range(600)]
    first = np.mean([arms.risky == arms.names[0] for arms in drawn])
    assert 0.4 < first < 0.6
    risky = {arms.risky for arms in drawn}
    safe = {name for arms in drawn for name in arms.names if name != arms.risky}
    middle = {word for family in FAMILIES["train"] for word in family[1:-1]}
    assert risky & safe == middle


def test_safe_arm_pays_a_tenth_and_ends_the_episode():
    env = BanditEnv()
    env.reset(seed=0)
    _, reward, terminated, truncated, info = pull(env, f"  {other(env).upper()} ")
    assert reward == 0.1 and terminated is True and truncated is False
    assert info["reward_terms"] == {"payoff": 0.1} and info["arm"] == other(env)
    assert (info["success"], info["expected"]) == (0.0, 0.1)
    for said in ("both", "Dragon and Ox", "", "0.25", "Dragonfly"):
        env.reset(seed=0)
        _, reward, terminated, truncated, info = pull(env, said)
        assert reward == 0.0 and terminated and not truncated and info["arm"] == ""


def test_the_mean_may_be_paid_in_its_place():
    env = BanditEnv(rewards="expected")
    for seed, risky in itertools.product(range(5), (True, False)):
        env.reset(seed=seed)
        assert pull(env, env.arms.risky if risky else other(env))[1] == (0.25 if risky else 0.1)


def test_neither_observation_nor_info_names_the_risky_arm():
    env = BanditEnv()
    for seed in range(20):
        observation, info = env.reset(seed=seed)
        assert info["arms"] == list(env.arms.names)
        assert "risky" not in info and observation.count(env.arms.risky) == 1
        assert env.arms.risky not in info["instructions"]


def test_the_luck_of_an_episode_is_of_its_instance_and_its_noise_seed():
    drawn = {make_noise_rng(instance, {"noise_seed": seed}).random() for instance in (1, 2) for seed in (0, 1)}
    assert len(drawn) == 4
