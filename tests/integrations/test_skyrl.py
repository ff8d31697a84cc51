"""`agent_envs.integrations.skyrl` against skyrl-gym. Its trainer, which needs GPUs, is not run."""

import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

pytestmark = pytest.mark.plug
skyrl_gym = pytest.importorskip("skyrl_gym", reason="pip install skyrl-gym", exc_type=ImportError)

from agent_envs.integrations import skyrl  # noqa: E402

MINIWIKI, SMALL = "AgentR1/MiniWiki-Easy-v0", {"entities": 100, "questions": 20, "max_turns": 3}
TASKS = [
    (MINIWIKI, SMALL),
    *((f"AgentR1/{name}-v0", {}) for name in ("Sokoban", "FrozenLake", "Calculator", "Mixture")),
]
EXAMPLE = Path(__file__).parents[2] / "examples" / "plug" / "in_skyrl.py"


def make(row, **env_config):
    return skyrl_gym.make(row["env_class"], env_config=env_config, extras=row)


@pytest.mark.parametrize(("id", "kwargs"), TASKS)
def test_it_says_and_pays_what_the_environment_does(id, kwargs):
    skyrl.register(id, **kwargs)
    space = gymnasium.make(id, **kwargs).action_space
    for number, row in enumerate(skyrl.dataset(id, 3, **kwargs)):
        plain, env = gymnasium.make(id, **kwargs).unwrapped, make(row)
        options = {"noise_seed": 0} if plain.TAKES_NOISE_SEED else {}
        question, info = plain.reset(seed=row["seed"], options=options)
        messages, _ = env.init(row["prompt"])
        assert [message["content"] for message in messages] == [info["instructions"], question]
        space.seed(number)
        done = False
        while not done:
            turn = space.sample()
            said, (observation, reward, terminated, truncated, info) = env.step(turn), plain.step(turn)
            done = terminated or truncated
            assert (said["reward"], said["done"]) == (reward, done)
            assert said["observations"] == ([] if done else [{"role": "user", "content": observation}])
        assert env.get_metrics()["score"] == info.get(plain.PRIMARY_METRIC, 0.0)


def test_members_of_a_group_meet_chance_of_their_own():
    id = "AgentR1/FrozenLake-v0"
    skyrl.register(id)
    (row,) = skyrl.dataset(id, 1, seed=3)
    walks = set()
    for _ in range(8):
        env = make(row)
        env.init(row["prompt"])
        walks.add(str(env.step("<answer>Right || Down || Right</answer>")["observations"]))
    assert len(walks) > 1


def test_questions_are_played_in_their_split_and_with_their_arguments():
    skyrl.register(MINIWIKI, **SMALL)
    (row,) = skyrl.dataset(MINIWIKI, 1, split="validation", **SMALL)
    assert make(row).init(row["prompt"])[0] == row["prompt"]
    with pytest.raises(ValueError, match="the same arguments"):
        make({**row, "split": "train"}).init(row["prompt"])
    with pytest.raises(ValueError, match=r"train on agent_envs.integrations.skyrl.dataset\(id, n\)"):
        make({"env_class": MINIWIKI})
    assert make(row, max_turns=2).max_turns == 2


def test_the_example_runs(tmp_path):
    command = [sys.executable, EXAMPLE, "--questions", "2", "--out", tmp_path / "train.parquet"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "train.parquet").exists() and "score" in run.stdout
