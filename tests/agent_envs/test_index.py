"""An environment over an index that was built before: in a folder, or behind a server."""

import threading
import time

import gymnasium
import pytest

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
    uvicorn = pytest.importorskip("uvicorn", reason="the server needs the extra [server]")
    pytest.importorskip("prometheus_client", reason="the server needs the extra [server]")
    from retrieval_index.server import create_app

    server = uvicorn.Server(uvicorn.Config(create_app(retrieval_index.load(index)), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        question, observation, source = play(data=folder, index=url)
    finally:
        server.should_exit = True
        thread.join()
    assert [question, observation] == play(data=folder)[:2]
    assert url in source
