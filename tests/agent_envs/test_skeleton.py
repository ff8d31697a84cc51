"""``python -m agent_envs new``: what it writes passes its own test and the checker, and overwrites nothing."""

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
    monkeypatch.setattr(sys, "stdin", io.StringIO("<answer>3</answer>\n"))
    assert "Finished" in run("play", "guess_it:Mine/GuessIt-v0", "--seed", "0")


def test_nothing_is_overwritten_and_bad_names_are_refused(run, tmp_path, capsys):
    run("new", "guess_it")
    (tmp_path / "guess_it" / "guess_it.py").write_text("mine")
    for name, message in (
        ("guess_it", "there is a guess_it already, and nothing is overwritten"),
        ("json", "there is a Python module json already"),
        ("My-Task", "is called like a Python module, in lower case, such as my_task; got 'My-Task'"),
        ("class", "is called like a Python module"),
        ("turn", "Turn is a name that the task itself imports"),
    ):
        with pytest.raises(SystemExit):
            run("new", name)
        assert message in capsys.readouterr().err
    assert (tmp_path / "guess_it" / "guess_it.py").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["guess_it"]
