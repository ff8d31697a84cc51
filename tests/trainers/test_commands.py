"""Commands as a user starts them, in a folder of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MY_MODULE = """
import gymnasium
from agent_envs.tasks.bandit import BanditEnv
from agent_envs.vector import vector_entry_point

class Task(BanditEnv):
    pass

gymnasium.register("Mine/Task-v0", entry_point=Task, vector_entry_point=vector_entry_point(Task))
"""


def start(folder: Path, *command: str | Path, **environment: str) -> subprocess.CompletedProcess:
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *map(str, command)], cwd=folder, capture_output=True, text=True,
        env={**others, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


@pytest.mark.parametrize("as_module", [True, False])
def test_an_environment_in_the_users_own_folder(tmp_path, as_module):
    """Started with -m or as a file, from outside of the repository."""
    (tmp_path / "my_module.py").write_text(MY_MODULE)
    command = ["-m", "trainers.evaluate"] if as_module else [ROOT / "trainers" / "evaluate.py"]
    options = ["--env", "my_module:Mine/Task-v0", "--questions", "3", "--num-envs", "2", "--out", "out"]
    done = start(tmp_path, *command, *options, **({"PYTHONPATH": str(ROOT)} if as_module else {}))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["rows"]


def test_a_recipe_on_an_environment_in_the_users_own_folder(tmp_path):
    (tmp_path / "my_module.py").write_text(MY_MODULE)
    recipe = 'title = "Mine"\nenv = "my_module:Mine/Task-v0"\n[runs.grpo]\nalgorithm = "grpo"\n'
    (tmp_path / "mine.toml").write_text(recipe)
    done = start(
        tmp_path, "-m", "experiments.compare", "--recipe", "mine.toml", "--report", PYTHONPATH=str(ROOT)
    )  # fmt: skip
    assert "runs/mine holds no result of this recipe yet" in done.stderr, done.stderr
