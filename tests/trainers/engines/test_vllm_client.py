"""The tests marked `vllm` start a server: `pytest -m vllm tests/trainers/engines/test_vllm_client.py`. In the others, one is
played by the `TransformersEngine`."""

import copy
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file
from test_vllm_engine import build, disturb, encoded, logprobs_of

from trainers.engines import vllm_client
from trainers.engines.engine import SamplingParams, generate
from trainers.engines.transformers_engine import TransformersEngine
from trainers.engines.vllm_client import VLLMClient
from trainers.models.policy import Policy


class Played:
    """Answers as `vllm serve` does. ``own``: the policy that it runs. ``pauses``: after how many tokens it stops of its
    own accord; it never looks for stop strings, nor for the ends of turns."""

    def __init__(self, policy: Policy, longest: int = 200, pauses: int = 1000):
        self.own, self.longest, self.pauses = copy.deepcopy(policy), longest, pauses
        self.asked: list[dict] = []
        self._lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content or "{}")
        with self._lock:
            self.asked.append({"path": request.url.path, **body})
            return getattr(self, request.url.path.rpartition("/")[2])(body)

    def models(self, body):
        return httpx.Response(200, json={"data": [{"id": "it", "max_model_len": self.longest}]})

    def reset_prefix_cache(self, body):
        return httpx.Response(200, json={"success": True})

    def collective_rpc(self, body):
        assert body["method"] == "reload_weights"
        weights = load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
        self.own.model.load_state_dict(weights)
        return httpx.Response(200, json={"results": [None]})

    def completions(self, body):
        assert len(body["prompt"]) + body["max_tokens"] <= self.longest
        engine, self.own.end_ids = TransformersEngine(self.own, ()), set()
        with torch.random.fork_rng():
            torch.manual_seed(body["seed"])
            how = body["temperature"], body["top_p"], body["min_p"]
            said = generate(engine, {0: body["prompt"]}, min(body["max_tokens"], self.pauses), *how)[0]
        paused = len(said.tokens) < body["max_tokens"]
        choice = {"token_ids": said.tokens, "logprobs": {"token_logprobs": said.logprobs}}
        return httpx.Response(200, json={"choices": [choice | {"finish_reason": "stop" if paused else "length"}]})


@pytest.fixture
def connect(monkeypatch):
    """``connect(policy, stop, played)``: an engine in front of it."""
    client = httpx.Client

    def make(policy: Policy, stop: tuple[str, ...], played) -> VLLMClient:
        transport = httpx.MockTransport(played)
        monkeypatch.setattr(vllm_client.httpx, "Client", lambda **options: client(transport=transport, **options))
        return VLLMClient(policy, stop, "http://there")

    return make


@pytest.mark.parametrize("pauses", [1, 3, 1000])
def test_turns_end_by_their_tokens_whatever_the_server_takes_for_a_stop(tokenizers, connect, pauses):
    policy = build(tokenizers)
    prompts = encoded(policy)
    free = generate(TransformersEngine(policy, ()), prompts, 30, 0.0)
    stop = (policy.tokenizer.decode(free[3].tokens)[7:11], "</search>")
    policy.end_ids = {free[0].tokens[4]}
    expected = generate(TransformersEngine(policy, stop), prompts, 30, 0.0)
    engine = connect(policy, stop, Played(policy, pauses=pauses))
    done = generate(engine, prompts, 30, 0.0)
    assert [(c.tokens, c.finish_reason) for c in done.values()] == [
        (c.tokens, c.finish_reason) for c in expected.values()
    ]
    assert {c.finish_reason for c in done.values()} == {"stop", "length"}
    for key in prompts:
        assert done[key].logprobs == pytest.approx(expected[key].logprobs, abs=1e-4)


def test_the_server_is_told_what_to_cut_off(tokenizers, connect):
    policy = build(tokenizers)
    played = Played(policy)
    engine, prompts = connect(policy, (), played), encoded(policy)
    for how in ((0.7, 0.0), (1.0, 0.2)):
        for key, turn in generate(engine, prompts, 12, 1.5, *how).items():
            expected = logprobs_of(policy, prompts[key], turn.tokens, 1.5, *how)
            assert turn.logprobs == pytest.approx(expected, abs=1e-4)
            assert turn.logprobs != pytest.approx(logprobs_of(policy, prompts[key], turn.tokens, 1.5), abs=1e-4)


def test_weights_go_to_the_server_when_they_have_changed(tokenizers, connect):
    policy = build(tokenizers)
    played = Played(policy)
    disturb(played.own.model)
    engine, prompts = connect(policy, (), played), encoded(policy)

    def paths() -> list[str]:
        asked = [question["path"] for question in played.asked]
        played.asked.clear()
        return asked

    assert paths()[:3] == ["/v1/models", "/collective_rpc", "/reset_prefix_cache"]
    engine.reset()
    assert paths() == ["/reset_prefix_cache"]
    disturb(policy.model)
    engine.reset()
    (there,) = {str(Path(asked["kwargs"]["weights_path"])) for asked in played.asked if "kwargs" in asked}
    assert not Path(there).exists()
    assert paths() == ["/collective_rpc", "/reset_prefix_cache"]
    expected = generate(TransformersEngine(policy, ()), prompts, 20, 0.0)
    assert [c.tokens for c in generate(engine, prompts, 20, 0.0).values()] == [c.tokens for c in expected.values()]


def test_the_seed_decides(tokenizers, connect):
    policy = build(tokenizers)
    engine, prompts = connect(policy, (), Played(policy, pauses=7)), encoded(policy)

    def sampled(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        engine.reset()  # as every rollout does
        return [c.tokens for c in generate(engine, prompts, 20, 1.0).values()]

    assert sampled(1) == sampled(1) != sampled(2)


def test_turns_stay_within_what_the_server_takes(tokenizers, connect):
    policy = build(tokenizers)
    engine = connect(policy, (), Played(policy, longest=60))
    done = generate(engine, {0: policy.encode("x" * 50)}, 30, 1.0)[0]
    assert (len(done.tokens), done.finish_reason) == (10, "length")
    with pytest.raises(ValueError, match="have up to 60 tokens, and the model reads 60 at most"):
        engine.submit({4: policy.encode("x" * 60)}, SamplingParams(max_new_tokens=30, temperature=1.0))
    engine.submit({4: policy.encode("x")}, SamplingParams(max_new_tokens=30, temperature=1.0))
    with pytest.raises(ValueError, match=r"conversations \[4\] have an open turn"):
        engine.submit({4: policy.encode("x")}, SamplingParams(max_new_tokens=30, temperature=1.0))
    engine.reset()
    assert engine.wait() == {}


def test_servers_that_will_not_do_are_refused(tokenizers, connect):
    policy = build(tokenizers)
    for url in ("http://127.0.0.1:9", "nonsense"):
        with pytest.raises(ValueError, match="no vLLM server answers"):
            VLLMClient(policy, (), url)

    class Production(Played):
        def collective_rpc(self, body):
            return httpx.Response(404, json={"detail": "Not Found"})

    with pytest.raises(RuntimeError, match="VLLM_SERVER_DEV_MODE=1"):
        connect(policy, (), Production(policy))

    class Raw(Played):
        def completions(self, body):
            return super().completions(body | {"temperature": 1.0})

    with pytest.raises(ValueError, match="processed_logprobs"):
        connect(policy, (), Raw(policy))

    class Broken(Played):
        def completions(self, body):
            return httpx.Response(500, text="out of memory")

    with pytest.raises(RuntimeError, match="500: out of memory"):
        connect(policy, (), Broken(policy))


@pytest.fixture(scope="module")
def served(tokenizers, tmp_path_factory):
    """A policy, and the address of a server that was started with another one's weights."""
    pytest.importorskip("vllm")
    policy, folder = build(tokenizers), tmp_path_factory.mktemp("served")
    started = copy.deepcopy(policy.model)
    disturb(started)
    started.save_pretrained(folder / "model")
    policy.tokenizer.save_pretrained(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = "--dtype float32 --logprobs-mode processed_logprobs --enforce-eager --kv-cache-memory-bytes 200M"
    # What `vllm serve` runs; that command itself looks for a package named vllm, which the CPU build is not.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder / "model"]
    command += ["--host", "127.0.0.1", "--port", str(port), *options.split()]
    log = folder / "log"
    with open(log, "w") as output:
        environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        while not answers(url):
            assert server.poll() is None, log.read_text()[-3000:]
            time.sleep(1)
        yield policy, url
    finally:
        server.terminate()
        server.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").is_success
    except httpx.HTTPError:
        return False


@pytest.mark.vllm
def test_a_server_plays_as_transformers_do_with_the_weights_of_the_moment(served):
    policy, url = served
    prompts = encoded(policy)
    free = generate(TransformersEngine(policy, ()), prompts, 40, 0.0)
    stop = (policy.tokenizer.decode(free[3].tokens)[7:11],)
    engine = VLLMClient(policy, stop, url)
    said = []
    for _ in range(2):
        expected = generate(TransformersEngine(policy, stop), prompts, 40, 0.0)
        done = generate(engine, prompts, 40, 0.0)
        assert {k: (c.tokens, c.finish_reason) for k, c in done.items()} == {
            k: (c.tokens, c.finish_reason) for k, c in expected.items()
        }
        for temperature in (0.6, 1.0, 2.0):
            for key, turn in generate(engine, prompts, 30, temperature).items():
                expected = logprobs_of(policy, prompts[key], turn.tokens, temperature)
                assert turn.logprobs == pytest.approx(expected, abs=1e-4)
        said.append([c.tokens for c in done.values()])
        disturb(policy.model)
        engine.reset()
    assert said[0] != said[1]


@pytest.mark.vllm
def test_the_server_is_asked_for_many_turns_at_once_and_repeats_them(served):
    policy, url = served
    engine = VLLMClient(policy, (), url)
    prompts = {key: policy.encode(f"number {key}") for key in range(40)}

    def sampled() -> list[list[int]]:
        torch.manual_seed(0)
        engine.reset()  # as every rollout does
        return [c.tokens for c in generate(engine, prompts, 16, 1.0).values()]

    first = sampled()
    assert first == sampled()
    assert len({tuple(tokens) for tokens in first}) > 30
