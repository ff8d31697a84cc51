"""``python -m agent_envs new``: what it writes passes its own test and the checker, trains, and overwrites nothing."""

import io
import runpy
import subprocess
import sys

import gymnasium
import pytest


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs a command in a folder of its own; returns what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])  # the command adds its working folder
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["agent_envs", *arguments])
        runpy.run_module("agent_envs", run_name="__main__")
        return capsys.readouterr().out

    yield run
    gymnasium.registry.pop("Mine/GuessIt-v0", None)
    sys.modules.pop("guess_it", None)


def test_it_passes_its_own_test_and_its_commands_work_in_its_folder(run, tmp_path, monkeypatch):
    said = run("new", "guess_it")
    names = sorted(path.name for path in (tmp_path / "guess_it").iterdir())
    assert names == ["README.md", "guess_it.py", "test_guess_it.py"]
    for command in ("agent_envs check", "agent_envs play", "trainers.grpo --env"):
        assert f"python -m {command} guess_it:Mine/GuessIt-v0" in said
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path / "guess_it", capture_output=True, text=True)
    assert done.returncode == 0 and "9 passed" in done.stdout, done.stdout
    monkeypatch.chdir(tmp_path / "guess_it")
    assert "keeps its promises" in run("check", "guess_it:Mine/GuessIt-v0", "--steps", "20")
    monkeypatch.setattr(sys, "stdin", io.StringIO("<answer>3</answer>\n"))
    assert "Finished" in run("play", "guess_it:Mine/GuessIt-v0", "--seed", "0")


def test_nothing_is_overwritten_and_bad_names_are_refused(run, tmp_path):
    run("new", "guess_it")
    (tmp_path / "guess_it" / "guess_it.py").write_text("mine")
    for name, message in (
        ("guess_it", "there is a guess_it already, and nothing is overwritten"),
        ("json", "there is a Python module json already"),
        ("My-Task", "is called like a Python module, in lower case, such as my_task; got 'My-Task'"),
        ("class", "is called like a Python module"),
        ("turn", "Turn is a name that the task itself imports"),
    ):
        with pytest.raises(SystemExit, match=message):
            run("new", name)
    assert (tmp_path / "guess_it" / "guess_it.py").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["guess_it"]


def test_it_trains(run, tmp_path, monkeypatch):
    from trainers import grpo
    from trainers.tiny import curriculum

    run("new", "guess_it")
    monkeypatch.setattr(curriculum, "POOL", 16)  # demonstrations made at a time: three steps need no more
    monkeypatch.chdir(tmp_path / "guess_it")  # as the README has it: the module is found beside the user
    args = grpo.Args(
        env="guess_it:Mine/GuessIt-v0", env_kwargs='{"largest": 4}', out=tmp_path / "run", updates=1, max_new_tokens=8,
        cold_start_steps=3, questions_per_update=2, group_size=2, eval_questions=2, final_questions=2,
    )  # fmt: skip
    summary = grpo.main(args)
    assert summary["score"] == "success" and summary["rows"][-1]["name"] == "Trained with GRPO"
    assert '"step": 1' in (tmp_path / "run" / "metrics.jsonl").read_text()
