"""Which Python or package is missing is said in one line, before anything needs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from retrieval_index.requirements import find_missing

ROOT = Path(__file__).resolve().parents[2]


def test_an_old_python_and_what_is_not_installed_are_named():
    assert find_missing((3, 10, 1)).endswith(f"and {sys.executable} is 3.10: run a newer one")
    assert find_missing(packages=("sys", "no_such_package")).startswith("no_such_package not installed for ")
    assert not find_missing()


@pytest.mark.parametrize("command", ["trainers.grpo", "agent_envs", "retrieval_index", "experiments.compare"])
def test_a_command_says_so_without_a_traceback(command):
    run = [sys.executable, "-S", "-m", command]  # -S: without what is installed
    done = subprocess.run(run, cwd=ROOT, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("numpy, numba, ") and done.stderr.count("\n") == 1
