"""`agent_envs.integrations.skyrl` against skyrl-gym. Its trainer, which needs GPUs, is not run."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.plug
skyrl_gym = pytest.importorskip("skyrl_gym", reason="pip install skyrl-gym", exc_type=ImportError)

from agent_envs.integrations import skyrl  # noqa: E402

MINIWIKI, SMALL = "AgentR1/MiniWiki-Easy-v0", {"entities": 100, "questions": 20, "max_turns": 3}
EXAMPLE = Path(__file__).parents[2] / "examples" / "plug" / "in_skyrl.py"


def make(row, **env_config):
    return skyrl_gym.make(row["env_class"], env_config=env_config, extras=row)


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


def test_questions_are_run_in_their_split_and_with_their_arguments():
    skyrl.register(MINIWIKI, **SMALL)
    (row,) = skyrl.dataset(MINIWIKI, 1, split="validation", **SMALL)
    env = make(row)
    assert env.init(row["prompt"])[0] == row["prompt"] and env.get_metrics() == {"score": 0.0}
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
