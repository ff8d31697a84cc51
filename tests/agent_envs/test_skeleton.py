"""``python -m agent_envs new``: what it writes passes its own test and the checker, trains, and overwrites nothing."""

import json
import runpy
import subprocess
import sys

import gymnasium
import pytest

from agent_envs.utils import skeleton


@pytest.fixture
def new(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder of its own; returns what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])  # the command adds its working folder

    def run(name: str) -> str:
        monkeypatch.setattr(sys, "argv", ["agent_envs", "new", name])
        runpy.run_module("agent_envs", run_name="__main__")
        return capsys.readouterr().out

    return run


def test_it_passes_its_own_test(new, tmp_path):
    said = new("guess_it")
    assert sorted(path.name for path in (tmp_path / "guess_it").iterdir()) == [
        "README.md",
        "guess_it.py",
        "test_guess_it.py",
    ]
    for command in ("agent_envs check", "agent_envs play", "trainers.grpo --env"):
        assert f"python -m {command} guess_it:Mine/GuessIt-v0" in said
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(run, cwd=tmp_path / "guess_it", capture_output=True, text=True)
    assert done.returncode == 0 and "9 passed" in done.stdout, done.stdout


def test_its_commands_work_in_its_folder(new, tmp_path):
    new("guess_it")
    for arguments, answer in (
        (["check", "--steps", "20"], "keeps its promises"),
        (["play", "--seed", "0"], "Finished"),
    ):
        command, *options = arguments
        done = subprocess.run(
            [sys.executable, "-m", "agent_envs", command, "guess_it:Mine/GuessIt-v0", *options],
            cwd=tmp_path / "guess_it", capture_output=True, text=True, input="<answer>3</answer>\n",
        )  # fmt: skip
        assert done.returncode == 0 and answer in done.stdout, done.stderr


def test_nothing_is_overwritten_and_bad_names_are_refused(new, tmp_path):
    new("guess_it")
    (tmp_path / "guess_it" / "guess_it.py").write_text("mine")
    for name, message in (
        ("guess_it", "there is a guess_it already, and nothing is overwritten"),
        ("json", "there is a Python module json already"),
        ("My-Task", "is called like a Python module, in lower case, such as my_task; got 'My-Task'"),
        ("class", "is called like a Python module"),
        ("turn", "Turn is a name that the task itself imports"),
    ):
        with pytest.raises(SystemExit, match=message):
            new(name)
    assert (tmp_path / "guess_it" / "guess_it.py").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["guess_it"]


def test_it_trains(tmp_path, monkeypatch):
    from trainers import grpo

    folder = skeleton.write("guess_train", tmp_path)
    monkeypatch.chdir(folder)  # as the README has it: the module is found beside the user
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(folder))])
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    try:
        summary = grpo.main(
            grpo.Args(
                env="guess_train:Mine/GuessTrain-v0", env_kwargs='{"largest": 4}', out=tmp_path / "run", updates=2,
                max_new_tokens=8, cold_start_steps=3, questions_per_update=2, group_size=2, eval_questions=4, final_questions=4,
            )
        )  # fmt: skip
    finally:
        gymnasium.registry.pop("Mine/GuessTrain-v0", None)
        sys.modules.pop("guess_train", None)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2] and summary["score"] == "success"
    assert [row["name"] for row in summary["rows"]][-1] == "Trained with GRPO"
