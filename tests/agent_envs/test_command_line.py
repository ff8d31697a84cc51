"""``python -m agent_envs``: each command, and what it says to somebody who mistypes."""

import contextlib
import io
import json
import os
import re
import runpy
import socket
import subprocess
import sys
from importlib import metadata

import pytest
from broken_envs import Adds, Digit, Halves, registered

import agent_envs
from agent_envs.types import ToolCall, Turn
from agent_envs.utils.describe import page
from agent_envs.utils.scripts import roll_out

WORLD = json.dumps({"entities": 150, "questions": 120})


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command in this process and returns what it prints."""

    def run(*arguments: str, stdin: str = "") -> str:
        monkeypatch.setattr(sys, "argv", ["agent_envs", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        runpy.run_module("agent_envs", run_name="__main__")
        return capsys.readouterr().out

    return run


def refusal(run, *arguments: str) -> str:
    """What a command that cannot be done says after its name: a single line."""
    with pytest.raises(SystemExit) as stopped, contextlib.redirect_stderr(io.StringIO()) as said:
        run(*arguments)
    assert stopped.value.code == 2
    program, _, message = said.getvalue().rstrip("\n").partition(": ")
    assert program == f"python -m agent_envs {arguments[0]}" and message and "\n" not in message
    return message


def test_list_has_a_line_for_each_environment(run):
    lines = run("list").splitlines()
    assert [line.split()[0] for line in lines] == list(agent_envs.IDS)
    assert all(len(line.split()) > 3 for line in lines)
    assert len({line.split(maxsplit=1)[1] for line in lines}) == len(lines)


@pytest.mark.parametrize("module", ["agent_envs list", "agent_envs describe Bandit", "retrieval_index --help"])
def test_a_reader_that_leaves_early_is_no_error(module):
    """As in `| head -1`."""
    read, write = os.pipe()
    os.close(read)
    run = [sys.executable, "-m", *module.split()]
    done = subprocess.run(run, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_describe_shows_the_task_an_episode_and_the_arguments(run):
    for name in ("MiniWiki", "AgentR1/MiniWiki-v0", "MiniWiki-v0"):
        text = run("describe", name, "--env-kwargs", WORLD, "--script", "scripted", "--seed", "3")
        assert text.startswith("# AgentR1/MiniWiki-v0\n")
    for heading in ("An episode", "Rewards", "Arguments"):
        assert text.count(f"## {heading}\n") == 1
    assert "The scripted agent, seed 3; at most 5 turns" in text and '- benchmark="miniwiki": ' in text
    assert text.index("--- system\n") < text.index("--- observation\n") < text.index("--- agent\n<search>")
    assert "\n--- terminated, reward " in text and text.count("```") % 2 == 0
    assert 'rewards="search_r1"' in text and "entities=150" in text
    native = run("describe", "Calculator", "--env-kwargs", '{"format": "native"}')  # whose prompt names no tool
    assert '\n[tool] calculate {"expression": "string"}: ' in native


def test_a_task_without_scripts_or_arguments_can_be_described():
    with registered(Digit) as id:
        text = page(id)
    assert "Name the digit: nothing is wrong here." in text and "Which digit?" in text
    assert "--- agent" not in text and "## Arguments" not in text


def test_check_passes_a_sound_environment_and_names_the_fault_of_another(run):
    with registered(Digit) as id:
        assert run("check", id, "--steps", "20") == f"{id} keeps its promises.\n"
    with registered(Adds) as id:
        message = refusal(run, "check", id, "--steps", "20")
    assert message.startswith("Broken/Adds-v0 breaks a promise: step(") and "add up to" in message


def test_play_shows_how_turns_look_and_what_they_earn(run):
    turns = "\n<search>a town</search>\n<answer>x</answer>\n"
    said = run("play", "MiniWiki", "--env-kwargs", WORLD, "--seed", "1", stdin=turns)
    assert "  <search>the first town</search>\n" in said and "<information>" in said
    assert "[reward +0.05: format +0.05]" in said and "Finished with 0.05." in said and "'golds': [" in said


def test_a_task_s_own_scripts_are_described_and_shown(run):
    with registered(Halves) as id:
        assert "The halving agent, seed 1; " in run("describe", id, "--seed", "1")
        assert "> <answer>5</answer>" in run("play", id, "--script", "halving", "--seed", "1")
        assert "script must be one of ['halving'], got 'oracle'" in refusal(run, "play", id, "--script", "oracle")


def test_baselines_are_printed_and_written(run, tmp_path):
    out, kwargs = tmp_path / "rows.json", '{"max_turns": 4}'
    said = run("baselines", "MiniWiki", "Bandit-v0", "--episodes", "5", "--out", str(out), "--env-kwargs", kwargs)
    rows = json.loads(out.read_text())
    agents = {
        "MiniWiki": ("random", "constant", "scripted", "reader", "oracle"),
        "Bandit": ("random", "scripted", "oracle"),
    }
    played = [(f"AgentR1/{name}-v0", agent) for name in agents for agent in agents[name]]
    assert [(row["id"], row["agent"]) for row in rows] == played
    for row in rows:
        low, high = row["interval"]
        assert 0 <= low <= row["score"] <= high <= 1 and 1 <= row["turns"] <= 4
        assert row["episodes"] == 5 and row["source"]
        assert f"| {row['agent']} | {row['score']:.3f} |" in said
        assert f"{row['id'].removeprefix('AgentR1/')}: {row['source']}\n" in said
    assert rows[7]["score"] == 1.0 and rows[4]["calls"] >= 1


def test_without_ids_baselines_leave_out_what_cannot_be_played(run, monkeypatch):
    monkeypatch.setattr(agent_envs, "IDS", ("AgentR1/Bandit-v0", "AgentR1/MiniWiki-v0"))
    said = run("baselines", "--episodes", "2", "--env-kwargs", WORLD)
    assert re.search(r"left out: AgentR1/Bandit-v0 cannot be made: .*unexpected keyword argument", said)
    assert "| MiniWiki-v0 | oracle |" in said and "| Bandit-v0 |" not in said
    assert "none of the environments" in refusal(run, "baselines", "--env-kwargs", '{"nobody_takes_this": 1}')


UNMAKEABLE = [
    ((), "Missing from python -m agent_envs"),
    (("MiniWiki", "--kwargs", "{}"), "Unrecognized options: --kwargs"),
    (("Nowhere",), "there is no environment 'Nowhere': did you register it?"),
    (("Bandit-v7",), "there is no environment 'Bandit-v7': did you mean Bandit?"),
    (("bandit",), "there is no environment 'bandit': did you mean Bandit?"),
    (("no_such_module:AgentR1/X-v0",), "there is no module 'no_such_module' to import"),
    (("MiniWiki", "--env-kwargs", '{"colour": "red"}'), "unexpected keyword argument 'colour'"),
    (("MiniWiki", "--env-kwargs", '{"max_turns": 0}'), "must be an integer of at least 1, got 0"),
    (("MiniWiki", "--env-kwargs", "[1]"), "--env-kwargs must be a JSON object, such as"),
    (("MiniWiki", "--env-kwargs", "{max_turns: 3}"), "--env-kwargs is not valid JSON"),
]


@pytest.mark.parametrize("command", ["describe", "check", "play", "baselines"])
def test_what_cannot_be_made_is_said_in_a_line(run, command):
    for arguments, message in UNMAKEABLE[command == "baselines" :]:  # which needs no id
        assert message in refusal(run, command, *arguments)
    if command == "describe":
        known = "script must be one of ['oracle', 'random', 'scripted'], got 'me'"
        assert known in refusal(run, command, "Bandit", "--script", "me")
    if command == "play":
        said = refusal(run, command, "Bandit", "--env-kwargs", '{"max_tokens": 9}')
        assert "max_tokens needs something that counts" in said
        said = refusal(run, command, "Bandit", "--seed", "x")
        assert said.startswith("Error parsing --seed: ") and said.endswith("from ['x']. --help explains the options")


def test_a_task_of_ones_own_is_looked_for_in_its_folder(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("new", "a_task_of_mine")
    assert "in this folder: cd a_task_of_mine first" in refusal(run, "play", "a_task_of_mine:Mine/ATaskOfMine-v0")
    sys.modules.pop("a_task_of_mine", None)


def test_a_script_that_stops_too_early_is_named():
    def silent(env, rng):
        yield from ()

    def hasty(env, rng):
        yield Turn(calls=(ToolCall("echo", {"text": "a"}),))

    for script, turns in ((silent, 0), (hasty, 1)):
        with pytest.raises(ValueError, match=f"{script.__name__} stopped after {turns} turns, and the episode goes on"):
            roll_out(Digit(), script, seed=0)


def test_serve_says_what_it_needs(run, monkeypatch):
    assert "port must be" in refusal(run, "serve", "MiniWiki", "--port", "65536")
    assert "sessions must be at least 1, got 0" in refusal(run, "serve", "MiniWiki", "--sessions", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"cannot listen at 127.0.0.1:{port} (" in refusal(run, "serve", "MiniWiki", "--port", port)
    for name in [*(name for name in sys.modules if name.split(".")[0] == "openenv"), "agent_envs.integrations.openenv"]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "openenv", None)  # as if it were not installed
    message = refusal(run, "serve", "MiniWiki", "--env-kwargs", WORLD)
    monkeypatch.setattr(metadata, "distributions", lambda name: ["0.2.1"] * (name == "openenv-core"))
    assert "openenv-core is another package than openenv" in refusal(run, "serve", "MiniWiki", "--env-kwargs", WORLD)
    assert all(
        part in message for part in ("mcp<2", "pip install -e '.[openenv]' in the clone", "without the extra 'mcp'")
    )
