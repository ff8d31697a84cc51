"""What is installed: versions, types and console scripts."""

import re
import runpy
import subprocess
import sys
import tomllib
from importlib import import_module, metadata, util
from pathlib import Path

import pytest

import agent_envs
from trainers.__main__ import COMMANDS, main

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = ("retrieval_index", "agent_envs", "trainers")


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_says_that_it_is_typed(package):
    assert (ROOT / package / "py.typed").is_file()


def test_the_version_is_that_of_the_distribution():
    assert agent_envs.__version__ == metadata.version(PROJECT["project"]["name"])


def test_data_files_are_in_the_wheel():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]
    for package in PACKAGES:
        folder = ROOT / package
        installed = {path for pattern in patterns["*"] for path in folder.glob(pattern)}
        for name in (name for name in patterns if name == package or name.startswith(f"{package}.")):
            within = ROOT / name.replace(".", "/")
            installed |= {path for pattern in patterns[name] for path in within.glob(pattern)}
        files = {path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        assert {path for path in files if path.suffix != ".py"} == installed


def test_console_scripts_lead_to_a_function_and_every_command_of_the_trainer_to_a_file():
    for script in PROJECT["project"]["scripts"].values():
        module, function = script.split(":")
        assert callable(getattr(import_module(module), function))
    assert [command for command in COMMANDS if not util.find_spec(f"trainers.{command}")] == []


def test_messages_name_extras_that_there_are():
    texts = [path.read_text(encoding="utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    named = {extra for text in texts for extra in re.findall(r"-e '\.\[(\w+)\]'", text)}
    assert "openenv" in named and named <= set(PROJECT["project"]["optional-dependencies"])
    assert not any("agent-r1-envs[" in text for text in texts)  # which is on no package index


def test_help_lists_the_commands_and_imports_nothing_for_it():
    code = "import sys; from trainers.__main__ import main; main(); print(*sys.modules, file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert all(re.search(rf"^  {command} +\S.*\w", run.stdout, re.MULTILINE) for command in COMMANDS)
    assert not {"torch", "transformers", "numpy", "tyro"} & set(run.stderr.split())


def test_an_unknown_command_is_one_line_and_exit_code_2(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["agent-r1-train", "gpro"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "gpro" in said and "grpo" in said and said.count("\n") == 1


def test_a_command_is_run_as_a_module_with_what_follows_its_name(monkeypatch, tmp_path):
    def run_module(name, run_name, alter_sys):
        seen.update(name=name, run_name=run_name, alter_sys=alter_sys, argv=list(sys.argv), path=list(sys.path))

    seen: dict = {}
    monkeypatch.setattr(runpy, "run_module", run_module)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/agent-r1-train", "grpo", "--updates", "3"])
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    main()
    assert seen["name"] == "trainers.grpo" and seen["run_name"] == "__main__" and seen["alter_sys"]
    assert seen["argv"] == ["agent-r1-train grpo", "--updates", "3"]
    assert str(tmp_path) in seen["path"]  # a module beside the user can hold the environment
