"""FrozenLake: maps, planning and the task."""

import itertools
import pickle
import random

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as Lake

from agent_envs.games import frozenlake
from agent_envs.games.boards import canonical_form
from agent_envs.games.split import split_of
from agent_envs.tasks.frozenlake import FrozenLakeEnv, make_vector
from agent_envs.utils.checker import check_agent_env
from agent_envs.utils.scripts import begin, roll_out

ROWS = ["SFFF", "FHFH", "FFFH", "HFFG"]


def make(rows=None, **arguments):
    env = FrozenLakeEnv(**arguments)
    env.reset(seed=0)
    if rows:
        env.rows, env.lake = rows, Lake(desc=rows, is_slippery=env.slippery)
        env.lake.reset(seed=0)
    return env


def say(*actions):
    return f"<think>x</think><answer>{' || '.join(actions)}</answer>"


def start(rows):
    return next((r, row.index("S")) for r, row in enumerate(rows) if "S" in row)


# -- the game ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_goal_can_be_reached_in_time(split):
    for seed in range(200):
        rows = frozenlake.generate(random.Random(seed), 4, 0.8, 10, split)
        assert sum(row.count("S") for row in rows) == sum(row.count("G") for row in rows) == 1
        r, c = start(rows)
        for action in frozenlake.shortest_path(rows, (r, c)):
            r, c = r + frozenlake.STEPS[action][0], c + frozenlake.STEPS[action][1]
            assert rows[r][c] != "H"
        assert rows[r][c] == "G"
        assert split_of(canonical_form(rows)) == split


def test_splits_are_disjoint_up_to_symmetry():
    def keys(split):
        maps = (frozenlake.generate(random.Random(seed), 4, 0.8, 10, split) for seed in range(300))
        return {canonical_form(rows) for rows in maps}

    assert not keys("train") & keys("validation")


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


def test_best_plan_on_firm_ice_is_the_shortest_path():
    plan, value = frozenlake.best_plan(Lake(desc=ROWS, is_slippery=False), 0, 2, 10, 5)
    assert value == 1.0
    lake = Lake(desc=ROWS, is_slippery=False)
    lake.reset(seed=0)
    for action in plan:
        lake.step(frozenlake.ACTIONS.index(action))
    rest, value = frozenlake.best_plan(lake, int(lake.s), 1, 10 - len(plan), 5)
    assert value == 1.0 and len(plan) + len(rest) == 6


# -- the task ----------------------------------------------------------------------------------------------------------


def test_gymnasium_and_our_own_checker_have_nothing_to_say():
    check_agent_env(FrozenLakeEnv(), steps=120)


def test_reaching_the_goal_pays_one():
    env = make(ROWS, slippery=False)
    _, reward, terminated, truncated, info = env.step(say("Down", "Down", "Right", "Down", "Right"))
    assert reward == 0.0 and not terminated and not truncated
    observation, reward, terminated, truncated, info = env.step(say("Right", "Right"))
    assert reward == 1.0 and terminated is True and truncated is False
    assert info["reward_terms"] == {"goal": 1.0, "invalid": 0.0} and info["moves"] == 1.0 and info["success"] == 1.0
    assert "√" in observation


def test_a_hole_ends_the_walk_and_pays_nothing():
    env = make(ROWS, slippery=False)
    observation, reward, terminated, _, info = env.step(say("Right", "Down", "Down"))
    assert reward == 0.0 and terminated is True and info["hole"] == 1.0 and info["moves"] == 2.0 and "X" in observation


def test_unreadable_turns_and_too_many_actions_cost_a_tenth():
    env = make(ROWS, slippery=False)
    for text in ("?", say("Left", "Jump"), say(*["Up"] * 6)):
        _, reward, terminated, truncated, _ = env.step(text)
        assert reward == pytest.approx(-0.1) and not terminated and not truncated and env.lake.s == 0
    assert env.step(say(*["Up"] * 5))[1] == 0.0
    assert env.step(say(*["Up"] * 5))[3] is True


def test_the_budget_of_actions_truncates():
    env = make(ROWS, slippery=False)
    env.step(say(*["Up"] * 5))
    observation, reward, _, _, _ = env.step(say(*["Up"] * 4))
    assert "Actions left: 1" in observation and reward == 0.0
    observation, reward, _, truncated, _ = env.step(say("Up", "Up"))
    assert "2 actions are more than the 1 that are left" in observation and not truncated
    assert env.step(say("Up"))[3] is True


def test_slippery_ice_slips_to_the_sides_a_third_each():
    env = make(["FFF", "FSF", "FFG"])
    where = []
    for seed in range(600):
        env.lake.reset(seed=seed)
        env.lake.step(frozenlake.ACTIONS.index("Up"))
        where.append(int(env.lake.s))
    assert set(where) == {1, 3, 5} and all(where.count(cell) > 150 for cell in (1, 3, 5))


def test_luck_changes_the_slips_and_not_the_lake():
    env, walks = FrozenLakeEnv(), set()
    for noise_seed in range(12):
        first, _ = env.reset(seed=2, options={"noise_seed": noise_seed})
        assert first == env.reset(seed=2)[0]
        env.reset(seed=2, options={"noise_seed": noise_seed})
        walks.add(env.step(say("Left", "Down", "Right"))[0])
    assert len(walks) > 1
    said = [(env.reset(seed=2, options={"noise_seed": 5}), env.step(say("Left", "Down", "Right"))) for _ in range(2)]
    assert said[0] == said[1]


@pytest.mark.parametrize("options", [{"noise_seed": "yes"}, {"noise_seed": True}, {"map": 1}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError):
        FrozenLakeEnv().reset(options=options)


def test_scripts_rank_as_they_should():
    means = {}
    for name, script in FrozenLakeEnv.SCRIPTS.items():
        means[name] = np.mean([roll_out(FrozenLakeEnv(), script, seed)[-1]["success"] for seed in range(80)])
    assert means["random"] < means["scripted"] <= means["oracle"]


@pytest.mark.parametrize("name", ["scripted", "oracle"])
def test_firm_ice_is_always_crossed(name):
    for split, seed in itertools.product(("train", "validation"), range(15)):
        env = FrozenLakeEnv(split=split, slippery=False)
        assert roll_out(env, FrozenLakeEnv.SCRIPTS[name], seed)[-1]["success"] == 1.0


@pytest.mark.parametrize("format", ["tags", "hermes", "react", "openai", "harmony"])
def test_any_format_will_do(format):
    for name in ("scripted", "oracle"):
        assert all(step["valid"] for step in roll_out(FrozenLakeEnv(format=format), FrozenLakeEnv.SCRIPTS[name], 5))


def test_pickled_in_the_middle_it_goes_on():
    env = make()
    env.step(say("Up"))
    copy = pickle.loads(pickle.dumps(env))
    for actions in (("Left", "Down"), ("Right",)):
        if env._running:
            assert env.step(say(*actions)) == copy.step(say(*actions))


def test_vector_is_as_one_by_one_and_takes_luck():
    vector, alone = make_vector(num_envs=4), [FrozenLakeEnv() for _ in range(4)]
    observations, _ = vector.reset(seed=[9] * 4, options={"noise_seed": list(range(4))})
    assert list(observations) == [env.reset(seed=9, options={"noise_seed": i})[0] for i, env in enumerate(alone)]
    said = vector.step([say("Up", "Left", "Down")] * 4)
    for i, env in enumerate(alone):
        observation, reward, terminated, truncated, _ = env.step(say("Up", "Left", "Down"))
        assert (said[0][i], said[1][i], said[2][i], said[3][i]) == (observation, reward, terminated, truncated)


@pytest.mark.parametrize(
    "arguments", [{"split": "dev"}, {"size": 2}, {"frozen": 1.0}, {"frozen": 0.1}, {"actions_per_turn": 0}]
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ValueError):
        FrozenLakeEnv(**arguments)


def test_a_larger_lake_can_be_played():
    env = FrozenLakeEnv(size=8, max_actions=20)
    _, info = env.reset(seed=1)
    assert info["shortest"] <= 20
    assert roll_out(env, FrozenLakeEnv.SCRIPTS["scripted"], 1)[-1]["truncated"] in (True, False)


def test_attempts_at_a_numbered_lake_slip_in_their_own_ways():
    envs, turn = make_vector(num_envs=5), say("Right", "Down", "Right", "Down")

    def outcomes(attempts):
        lakes, _ = begin(envs, [7] * 5, attempts)
        assert len(set(lakes)) == 1
        return envs.step([turn] * 5)[0]

    assert len(set(outcomes(range(5)))) > 1
    assert outcomes(range(5))[0] == outcomes(())[0] and len(set(outcomes(()))) == 1
