"""Every id: made by name, checked by Gymnasium, described as JSON, pickled."""

import subprocess
import sys

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from agent_envs import IDS
from agent_envs.utils.checker import check_agent_env

REAL = {f"AgentR1/{name}-v0" for name in "HotpotQA 2WikiMultihopQA MuSiQue Bamboogle NQ TriviaQA PopQA".split()}
FOREIGN = {"AgentR1/ALFWorld-v0", "AgentR1/WebShop-v0"}  # over packages with games of their own: see their tests


@pytest.fixture(params=[id for id in IDS if id not in FOREIGN])
def made(request, folder, small):
    if request.param == "AgentR1/QA-v0":
        arguments = {"data": f"{folder}/nq.train.jsonl", "corpus": f"{folder}/passages.jsonl"}
    elif request.param in REAL:
        arguments = {"data": folder}
    elif "MiniWiki" in request.param:
        arguments = {name: value for name, value in small.items() if name != "types"}
    else:
        arguments = {}
    return gymnasium.make(request.param, **arguments)


def test_the_spec_survives_json(made):
    again = gymnasium.make(EnvSpec.from_json(made.spec.to_json()))
    assert again.reset(seed=4) == made.reset(seed=4)
    assert again.spec.to_json() == made.spec.to_json()


def test_check_agent_env_has_nothing_to_say(made):
    check_agent_env(made, steps=60)


def test_where_there_is_no_data_a_stand_in_says_so_loudly_each_time(tmp_path, monkeypatch, folder):
    from agent_envs.data import sources
    from agent_envs.data.local import NotHere

    def unreachable(name, split):
        raise NotHere("no network here")

    monkeypatch.setattr(sources, "download", unreachable)
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AGENT_ENVS_DATA", raising=False)
    for _ in range(2):
        with pytest.warns(UserWarning, match="THIS IS NOT HOTPOTQA"):
            env = gymnasium.make("AgentR1/HotpotQA-v0")
        assert env.reset(seed=0)[1]["source"].startswith("STAND-IN for hotpotqa: miniwiki:")
    with pytest.raises(FileNotFoundError, match="found nowhere"):
        gymnasium.make("AgentR1/HotpotQA-v0", source="local")
    monkeypatch.setenv("AGENT_ENVS_DATA", folder)  # what the warning advises, in the same process
    assert gymnasium.make("AgentR1/HotpotQA-v0").reset(seed=0)[1]["source"].startswith("local:")


def test_make_imports_the_package_by_itself(folder):
    make = f"gymnasium.make('agent_envs:AgentR1/HotpotQA-v0', data={folder!r})"
    code = f"import gymnasium; print({make}.reset(seed=0)[0])"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip().endswith("?")
