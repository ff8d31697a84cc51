"""FrozenLake: maps, planning and the task."""

import itertools
import random

import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as Lake

from agent_envs.games import frozenlake
from agent_envs.games.boards import canonical_form
from agent_envs.generators.instances import split_of
from agent_envs.tasks.frozenlake import FrozenLakeEnv

ROWS = ["SFFF", "FHFH", "FFFH", "HFFG"]


def make():
    env = FrozenLakeEnv(slippery=False)
    env.reset(seed=0)
    env.rows, env.lake = ROWS, Lake(desc=ROWS, is_slippery=False)
    env.lake.reset(seed=0)
    return env


def walk(env, *actions):
    return env.step(f"<think>x</think><answer>{' || '.join(actions)}</answer>")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_goal_can_be_reached_in_time(split):
    for seed in range(100):
        rows = frozenlake.generate(random.Random(seed), 4, 0.8, 10, split)
        assert sum(row.count("S") for row in rows) == sum(row.count("G") for row in rows) == 1
        r, c = next((r, row.index("S")) for r, row in enumerate(rows) if "S" in row)
        for action in frozenlake.shortest_path(rows, (r, c)):
            r, c = r + frozenlake.STEPS[action][0], c + frozenlake.STEPS[action][1]
            assert rows[r][c] != "H"
        assert rows[r][c] == "G" and split_of(canonical_form(rows)) == split


def test_directions_are_those_of_gymnasium():
    lake = Lake(desc=["FFF", "FSF", "FFG"], is_slippery=False)
    for number, action in enumerate(frozenlake.ACTIONS):
        lake.reset(seed=0)
        state = lake.step(number)[0]
        assert divmod(state, 3) == (1 + frozenlake.STEPS[action][0], 1 + frozenlake.STEPS[action][1])


def test_drawing_and_reading():
    text = frozenlake.render(ROWS, (0, 0))
    assert text == "P _ _ _\n_ O _ O\n_ _ _ O\nO _ _ G"
    assert frozenlake.render(ROWS, (1, 1)).splitlines()[1] == "_ X _ O"
    assert frozenlake.render(ROWS, (3, 3)).splitlines()[3] == "O _ _ √"
    rows, position = frozenlake.read(f"<information>{text}\nActions left: 10</information>")
    assert position == (0, 0) and rows == ["FFFF", "FHFH", "FFFH", "HFFG"]
    with pytest.raises(ValueError, match="not a lake"):
        frozenlake.read("_ _\n_ G")


def chance(lake, state, turns, left, longest):
    """The best chance of reaching the goal, by trying every plan: the definition, spelled out."""
    row, column = divmod(state, lake.ncol)
    if lake.desc[row, column] == b"G":
        return 1.0
    if not turns or not left or lake.desc[row, column] == b"H":
        return 0.0
    best = 0.0
    for length in range(1, min(longest, left) + 1):
        for plan in itertools.product(range(4), repeat=length):
            where = {state: 1.0}
            for action in plan:
                following = {}
                for s, p in where.items():
                    for q, to, *_ in lake.P[s][action]:
                        following[to] = following.get(to, 0.0) + p * q
                where = following
            best = max(best, sum(p * chance(lake, s, turns - 1, left - length, longest) for s, p in where.items()))
    return best


def test_best_plan_is_the_best_of_all_plans():
    lake = Lake(desc=["SFF", "FHF", "FFG"], is_slippery=True)
    for turns, left, longest in ((1, 4, 4), (2, 4, 3), (2, 3, 2), (3, 4, 2)):
        _, value = frozenlake.best_plan(lake, 5, turns, left, longest)
        assert value == pytest.approx(chance(lake, 5, turns, left, longest))


def test_reaching_the_goal_pays_one_and_a_hole_ends_the_walk():
    env = make()
    _, reward, terminated, truncated, info = walk(env, "Down", "Down", "Right", "Down", "Right")
    assert reward == 0.0 and not terminated and not truncated
    observation, reward, terminated, truncated, info = walk(env, "Right", "Right")
    assert reward == 1.0 and terminated is True and truncated is False and "√" in observation
    assert info["reward_terms"] == {"goal": 1.0, "invalid": 0.0} and info["moves"] == 1.0 and info["success"] == 1.0
    observation, reward, terminated, _, info = walk(make(), "Right", "Down", "Down")
    assert reward == 0.0 and terminated is True and info["hole"] == 1.0 and info["moves"] == 2.0 and "X" in observation
