"""An environment over an index that was built before: in a folder, or behind a server."""

import gymnasium
import pytest
from serving import serving

import retrieval_index


def play(**arguments) -> list[str]:
    env = gymnasium.make("AgentR1/HotpotQA-v0", **arguments)
    question, info = env.reset(seed=0)
    observation, *_ = env.step("<search>The Quiet Mill</search>")
    return [question, observation, info["source"]]


@pytest.fixture
def index(folder, tmp_path):
    retrieval_index.build_folder(f"{folder}/passages.jsonl", tmp_path / "index")
    return tmp_path / "index"


def test_a_folder(folder, index):
    question, observation, source = play(data=folder, index=str(index))
    assert [question, observation] == play(data=folder)[:2]
    assert str(index) in source


def test_a_server(folder, index):
    for module in ("uvicorn", "prometheus_client"):
        pytest.importorskip(module, reason="the server needs the extra [server]")
    from retrieval_index.server import create_app

    with serving(create_app(retrieval_index.load(index))) as (url, _):
        question, observation, source = play(data=folder, index=url)
    assert [question, observation] == play(data=folder)[:2]
    assert url in source


def test_a_server_that_gives_fewer_than_are_asked_for(folder, index):
    """That would be a failure of the tool at every call, and was a warning."""
    for module in ("uvicorn", "prometheus_client"):
        pytest.importorskip(module, reason="the server needs the extra [server]")
    from retrieval_index.server import create_app
    from retrieval_index.wire import Limits

    with serving(create_app(retrieval_index.load(index), limits=Limits(topk=20))) as (url, _):
        for arguments, least in (({"k": 21}, 21), ({"read": True}, 50)):
            with pytest.raises(ValueError, match=rf"topk.* start its server with --max-topk {least}"):
                gymnasium.make("AgentR1/HotpotQA-v0", data=folder, index=url, **arguments)
        assert len(play(data=folder, index=url, k=20)) == 3
