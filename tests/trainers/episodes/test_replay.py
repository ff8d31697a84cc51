"""Recorded episodes through their environment again: nothing changes with the same arguments, and what does with others."""

import json
import re

import pytest

from agent_envs.__main__ import replay as command
from agent_envs.utils.scripts import roll_out_many
from trainers.engines.transformers_engine import TransformersEngine
from trainers.episodes.records import EPISODES_FILE, EpisodeWriter, Origin, Recorder, record_turns
from trainers.factory import make_envs
from trainers.rollouts.rollout import rollout

WORLD = {"entities": 60, "questions": 20, "max_turns": 3}
TASKS = {"AgentR1/MiniWiki-v0": (WORLD, "em"), "AgentR1/FrozenLake-v0": ({"slippery": True}, "success")}


@pytest.fixture(params=TASKS)
def run(request, make_policy, tmp_path):
    """A run's folder with rollouts of training, a third of whose turns are cut, and evaluations of two scripted agents."""
    id, (kwargs, score) = request.param, TASKS[request.param]
    policy = make_policy("bytes")
    writer = EpisodeWriter(tmp_path)
    for split, phase in (("train", "training"), ("validation", "evaluation")):
        envs = make_envs(id, json.dumps(kwargs), split, 4)
        origin = Origin(phase=phase, agent="a", name="a", env=id, split=split, source="", score=score)
        recorder = Recorder(origin)
        engine = TransformersEngine(policy, envs.envs[0].stop)
        which = {"seeds": [7, 8]} if phase == "training" else {"questions": [3, 5]}
        for trajectory in rollout(envs, policy, engine, group_size=2, max_new_tokens=8, **which):
            recorder.add_trajectory(trajectory)
        if phase == "evaluation":
            for script in ("random", "scripted"):
                for number, turns in zip(
                    (1, 2), roll_out_many(envs, [1, 2], envs.envs[0].SCRIPTS[script]), strict=True
                ):
                    recorder.add(record_turns(turns, origin, number))
        writer.write_recorded(recorder)
    writer.close()
    (tmp_path / "summary.json").write_text(json.dumps({"settings": {"env_kwargs": json.dumps(kwargs)}}))
    return id, tmp_path


def test_nothing_changes_with_the_same_arguments_and_with_others_it_says_what(run, capsys):
    _, folder = run
    command(folder)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "0 of 12 episodes changed" and len(said) == 3
    for line in said[1:]:
        before, now = re.findall(r"-?[\d.]+", line)
        assert before == now
    command(folder, env_kwargs='{"rewards": {"invalid": -0.5}}')
    *changes, count, mean, score = capsys.readouterr().out.splitlines()
    assert f"{len(changes)} of 12 episodes changed" == count and len(changes) >= 4
    assert all(re.match(r"\d+ \S+: turn \d: invalid -0.1 -> -0.5", line) for line in changes)
    assert mean.split()[2] != mean.split()[4] and score.split()[2] == score.split()[4]


@pytest.mark.parametrize("file", ["evaluation.json", "checkpoint-3/arguments.json"])
def test_arguments_come_from_an_evaluation_or_a_run_that_is_not_finished(run, capsys, file):
    _, folder = run
    settings = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").unlink()
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps(settings if file == "evaluation.json" else settings["settings"]))
    command(folder)
    assert capsys.readouterr().out.startswith("0 of 12 episodes changed")


def test_an_episode_that_was_tampered_with_and_those_of_no_environment(run, capsys):
    _, folder = run
    file = folder / EPISODES_FILE
    records = [json.loads(line) for line in file.read_text().splitlines()]
    shorter, changed = [record for record in records[2:] if len(record["turns"]) > 1][-2:]
    del shorter["turns"][-1]
    changed["turns"][0]["observation"] += "!"
    for record in records[:2]:
        record["metrics"]["edits"] = 0.0
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    command(folder)
    *changes, count, _, _ = capsys.readouterr().out.splitlines()
    assert count == "2 of 10 episodes changed; 2 cannot be replayed (turns of an agent program, not of the environment)"
    assert "turn 1: another observation" in changes[1] and "goes on after turn" in changes[0]
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records[:2]))
    with pytest.raises(SystemExit, match=r"nothing to replay: 2 cannot be replayed \(turns of an agent program"):
        command(folder)
