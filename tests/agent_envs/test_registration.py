"""Every id: made by name, checked by Gymnasium, described as JSON, pickled, played in another process."""

import os
import pickle
import subprocess
import sys

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from agent_envs import IDS
from agent_envs.utils import checker

REAL = {f"AgentR1/{name}-v0" for name in "HotpotQA 2WikiMultihopQA MuSiQue Bamboogle NQ TriviaQA PopQA".split()}
FOREIGN = {"AgentR1/ALFWorld-v0", "AgentR1/WebShop-v0"}  # over packages with games of their own: see their tests
OURS = [id for id in IDS if id not in FOREIGN]


def make(id, folder, small):
    arguments = {"data": folder} if id in REAL else {}
    if id == "AgentR1/QA-v0":
        arguments = {"data": f"{folder}/nq.train.jsonl", "corpus": f"{folder}/passages.jsonl"}
    elif id == "AgentR1/Mixture-v0":
        arguments = {"tasks": {"AgentR1/Bandit-v0": 1, "AgentR1/MiniWiki-Easy-v0": {"weight": 1, "kwargs": small}}}
    elif "MiniWiki" in id:
        arguments = {name: value for name, value in small.items() if name != "types"}
    return gymnasium.make(id, **arguments)


@pytest.mark.parametrize("id", OURS)
def test_its_spec_survives_json_and_the_checker_has_nothing_to_say(id, folder, small, monkeypatch):
    made = make(id, folder, small)
    again = gymnasium.make(EnvSpec.from_json(made.spec.to_json()))
    assert again.reset(seed=4) == made.reset(seed=4)
    assert again.spec.to_json() == made.spec.to_json()
    monkeypatch.setattr(checker, "_check_processes", lambda *_: None)  # that takes a second: below, of all at once
    checker.check_agent_env(made, steps=12 if "Python" in id else 24)


PLAY = """
import pickle, sys, agent_envs, gymnasium
from agent_envs.utils.checker import transcript
for env in pickle.load(sys.stdin.buffer):
    print(transcript(env, 12, 0), transcript(gymnasium.make(env.spec).unwrapped, 12, 0))
"""


def test_every_id_plays_the_same_in_a_process_with_another_hash_seed(folder, small):
    envs = [make(id, folder, small).unwrapped for id in OURS]
    environment = os.environ | {"PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PLAY]
    run = subprocess.run(command, input=pickle.dumps(envs), stdout=subprocess.PIPE, env=environment, check=True)
    for env, line in zip(envs, run.stdout.decode().splitlines(), strict=True):
        assert line.split() == [checker.transcript(env, 12, 0)] * 2, env.spec.id


def test_where_there_is_no_data_a_stand_in_says_so_loudly_each_time(alone, monkeypatch, folder):
    for _ in range(2):
        with pytest.warns(UserWarning, match="THIS IS NOT HOTPOTQA"):
            env = gymnasium.make("AgentR1/HotpotQA-v0")
        assert env.reset(seed=0)[1]["source"].startswith("STAND-IN for hotpotqa: miniwiki:")
    with pytest.raises(FileNotFoundError, match="found nowhere"):
        gymnasium.make("AgentR1/HotpotQA-v0", source="local")
    monkeypatch.setenv("AGENT_ENVS_DATA", folder)  # what the warning advises, in the same process
    assert gymnasium.make("AgentR1/HotpotQA-v0").reset(seed=0)[1]["source"].startswith("local:")
