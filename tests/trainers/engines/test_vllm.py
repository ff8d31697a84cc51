"""vLLM in process and behind HTTP. `pytest -m vllm tests/trainers/engines/test_vllm.py` runs vLLM itself, both ways; in the other
tests a server is played by the `TransformersEngine`."""

import copy
import json
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from agent_envs.stopping import StopChecker
from trainers.engines import vllm_client
from trainers.engines.engine import SamplingParams, generate
from trainers.engines.sampling import truncate
from trainers.engines.transformers_engine import TransformersEngine
from trainers.engines.vllm_client import VLLMClient
from trainers.engines.vllm_engine import VLLMEngine, WeightSync, checkpoint_weights, merged_weights
from trainers.models import lora
from trainers.models.policy import Policy
from trainers.runtime.retry import ToolsFailed

PROMPTS = {3: "the town", 0: "x", 7: "a much longer prompt about the author of the book", 1: "search"}


@pytest.fixture(scope="session")
def build(make_policy):
    """``build(tie_word_embeddings=…)``: as `make_policy`, with heads of a size that vLLM has kernels for."""
    shape = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 1024}
    return lambda tie_word_embeddings=True: make_policy(**shape, tie_word_embeddings=tie_word_embeddings)


@pytest.fixture
def policy(build):
    return build()


def disturb(model: torch.nn.Module, by: float = 0.03) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += by * torch.randn_like(parameter)


def encoded(policy: Policy) -> dict[int, list[int]]:
    return {key: policy.encode(text) for key, text in PROMPTS.items()}


def ends(completions) -> dict[int, tuple[list[int], str]]:
    return {key: (done.tokens, done.finish_reason) for key, done in completions.items()}


def assert_logprobs(policy: Policy, prompt: list[int], done, temperature=1.0, top_p=1.0, min_p=0.0) -> None:
    with torch.no_grad():
        logp = (policy.model(torch.tensor([prompt + done.tokens])).logits[0] / (temperature or 1.0)).log_softmax(-1)
    logp = truncate(logp, top_p, min_p)[len(prompt) - 1 : -1]
    expected = logp.gather(1, torch.tensor(done.tokens)[:, None])[:, 0].tolist()
    assert done.logprobs == pytest.approx(expected, abs=1e-4)


# -- weights that are sent ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_merged_weights_are_those_of_the_checkpoint(build, tied, tmp_path):
    model = build(tied).model
    model.save_pretrained(tmp_path)
    saved, found = load_file(tmp_path / "model.safetensors"), dict(checkpoint_weights(model))
    assert found.keys() == saved.keys() | {"lm_head.weight"}
    assert all(torch.equal(saved[name], found[name]) for name in saved)
    assert torch.equal(found["lm_head.weight"], model.lm_head.weight)


def test_experts_are_sent_by_the_names_of_the_checkpoint(tmp_path):
    sizes = {"hidden_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 50, "head_dim": 8}
    heads = {"num_experts": 4, "num_experts_per_tok": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_moe", **sizes, **heads))
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    found = dict(checkpoint_weights(model))
    assert found.keys() == saved.keys() and any("experts.3.gate_proj" in name for name in found)
    assert all(torch.equal(saved[name], found[name]) for name in saved)
    with warnings.catch_warnings(record=True) as told:
        lora.add_lora(model, 2, 4)
    assert not any("frozen" in str(one.message) for one in told)  # peft adapts these experts too
    with pytest.raises(ValueError, match=r"the adapter of model.layers.0.mlp.experts.* is not of a linear layer"):
        dict(checkpoint_weights(model))


def test_an_adapter_is_merged_once(policy):
    """Also where peft has merged it into the weights already."""
    pytest.importorskip("peft")
    model = policy.model
    plain, ids = copy.deepcopy(model), torch.arange(5, 25)[None]
    lora.add_lora(model, 4, 32)
    disturb(model)
    with torch.no_grad():
        expected = model(ids).logits
    for merge in (False, True):
        for module in model.modules() if merge else ():
            if hasattr(module, "get_delta_weight"):
                module.merge()
        plain.load_state_dict(dict(merged_weights(model)))
        with torch.no_grad():
            torch.testing.assert_close(plain(ids).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("more", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}])
def test_an_adapter_that_is_more_than_lora_is_not_merged(build, more):
    peft = pytest.importorskip("peft")
    model = build(False).model
    model.add_adapter(peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", **more))
    with pytest.raises(ValueError, match=r"an adapter with (lora_magnitude_vector|modules_to_save) has others too"):
        next(merged_weights(model))


def test_weights_are_loaded_when_they_have_changed(policy):
    loads = []
    sync_weights = WeightSync(policy.model, lambda weights: loads.append(dict(weights)))
    weight = policy.model.model.layers[1].mlp.up_proj.weight
    for times in (1, 2):
        for _ in range(2):
            sync_weights()
            assert len(loads) == times
        weight.data[3, 5] = torch.nextafter(weight[3, 5], torch.tensor(9.0))  # the smallest change there is


def test_what_cannot_work_is_refused(policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match=r"\[vllm\]"):
        VLLMEngine(policy, ())
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ValueError, match="use a vLLM server"):
        VLLMEngine(policy, ())


# -- the client, before a server that is played ---------------------------------------------------------------------------


class Played:
    """Answers as `vllm serve` does. ``own``: the policy that it runs. ``pauses``: after how many tokens it stops of its
    own accord; it never looks for stop strings, nor for the ends of turns."""

    def __init__(self, policy: Policy, longest: int = 200, pauses: int = 1000):
        self.own, self.longest, self.pauses = copy.deepcopy(policy), longest, pauses
        self.own.end_ids = set()
        self.engine = TransformersEngine(self.own, ())
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
        self.own.model.load_state_dict(load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors"))
        return httpx.Response(200, json={"results": [None]})

    def completions(self, body):
        assert len(body["prompt"]) + body["max_tokens"] <= self.longest
        self.engine.reset()
        with torch.random.fork_rng():
            torch.manual_seed(body["seed"])
            how = body["temperature"], body["top_p"], body["min_p"]
            said = generate(self.engine, {0: body["prompt"]}, min(body["max_tokens"], self.pauses), *how)[0]
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
def test_turns_end_by_their_tokens_whatever_the_server_takes_for_a_stop(policy, connect, pauses):
    prompts = encoded(policy)
    free = generate(TransformersEngine(policy, ()), prompts, 30, 0.0)
    stop = (policy.tokenizer.decode(free[3].tokens)[7:11], "</search>")
    policy.end_ids = {free[0].tokens[4]}
    expected = generate(TransformersEngine(policy, stop), prompts, 30, 0.0)
    done = generate(connect(policy, stop, Played(policy, pauses=pauses)), prompts, 30, 0.0)
    assert ends(done) == ends(expected)
    assert {c.finish_reason for c in done.values()} == {"stop", "length"}
    for key, turn in done.items():
        assert_logprobs(policy, prompts[key], turn)


def test_the_server_is_told_what_to_cut_off(policy, connect):
    engine, prompts = connect(policy, (), Played(policy)), encoded(policy)
    for how in ((0.7, 0.0), (1.0, 0.2)):
        for key, turn in generate(engine, prompts, 12, 1.5, *how).items():
            assert_logprobs(policy, prompts[key], turn, 1.5, *how)


def test_weights_go_to_the_server_when_they_have_changed(policy, connect):
    played, prompts = Played(policy), encoded(policy)
    disturb(played.own.model)
    engine = connect(policy, (), played)

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
    assert ends(generate(engine, prompts, 20, 0.0)) == ends(expected)


def test_the_seed_decides(policy, connect):
    engine, prompts = connect(policy, (), Played(policy, pauses=7)), encoded(policy)

    def sampled(seed: int) -> dict:
        torch.manual_seed(seed)
        engine.reset()  # as every rollout does
        return ends(generate(engine, prompts, 20, 1.0))

    assert sampled(1) == sampled(1) != sampled(2)


def test_turns_stay_within_what_the_server_takes(policy, connect):
    engine, params = connect(policy, (), Played(policy, longest=60)), SamplingParams(max_new_tokens=30)
    done = generate(engine, {0: policy.encode("x" * 50)}, 30, 1.0)[0]
    assert (len(done.tokens), done.finish_reason) == (10, "length")
    with pytest.raises(ValueError, match="have up to 60 tokens, and the model reads 60 at most"):
        engine.submit({4: policy.encode("x" * 60)}, params)
    engine.submit({4: policy.encode("x")}, params)
    with pytest.raises(ValueError, match=r"conversations \[4\] have an open turn"):
        engine.submit({4: policy.encode("x")}, params)
    engine.reset()
    assert engine.wait() == {}


def test_servers_that_will_not_do_are_refused(policy, connect):
    for url in ("http://127.0.0.1:9", "nonsense"):
        with pytest.raises(ValueError, match="no vLLM server answers"):
            VLLMClient(policy, (), url)

    class Raw(Played):
        def completions(self, body):
            return super().completions(body | {"temperature": 1.0})

    with pytest.raises(ValueError, match="processed_logprobs"):
        connect(policy, (), Raw(policy))
    for path, response, said in (
        ("collective_rpc", httpx.Response(404, json={"detail": "Not Found"}), "VLLM_SERVER_DEV_MODE=1"),
        ("completions", httpx.Response(500, text="out of memory"), "500: out of memory"),
    ):
        played = Played(policy)
        setattr(played, path, lambda body, response=response: response)
        with pytest.raises(ToolsFailed, match=rf"the vLLM server at http://there failed: .*{said}"):
            connect(policy, (), played)


def test_a_server_that_goes_away_counts_as_a_failure_of_tools(policy, connect):
    played = Played(policy)
    engine = connect(policy, (), played)

    def refuse(body):
        raise httpx.ConnectError("refused")

    played.completions = refuse
    engine.submit({0: [5, 6]}, SamplingParams(max_new_tokens=3))
    with pytest.raises(ToolsFailed, match="failed: refused"):
        engine.wait()


# -- vLLM itself ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_process(build):
    pytest.importorskip("vllm")
    pytest.importorskip("numba")  # loaded, as after a search: vLLM must start all the same
    policy = build()
    return policy, VLLMEngine(policy, (), kv_gib=0.25)


@pytest.fixture(scope="module")
def server(build, tmp_path_factory):
    """The address of a server that was started with another policy's weights."""
    pytest.importorskip("vllm")
    policy, folder = build(), tmp_path_factory.mktemp("served")
    disturb(policy.model)
    policy.model.save_pretrained(folder / "model")
    policy.tokenizer.save_pretrained(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = "--dtype float32 --logprobs-mode processed_logprobs --enforce-eager --kv-cache-memory-bytes 200M"
    # What `vllm serve` runs; that command itself looks for a package named vllm, which the CPU build is not.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder / "model"]
    command += ["--host", "127.0.0.1", "--port", str(port), *options.split()]
    environment = os.environ | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        while not answers(f"http://127.0.0.1:{port}"):
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            time.sleep(1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").is_success
    except httpx.HTTPError:
        return False


@pytest.fixture(params=["in_process", "server"])
def start(request, build):
    """A policy, and ``make(stop)``: an engine that plays with its weights."""
    if request.param == "server":
        policy, url = build(), request.getfixturevalue("server")
        yield policy, lambda stop=(): VLLMClient(policy, stop, url)
        return
    policy, engine = request.getfixturevalue("in_process")
    before = copy.deepcopy(policy.model.state_dict())

    def make(stop=()):
        engine._is_complete, engine._end_ids = StopChecker(policy, stop), sorted(policy.end_ids)
        engine.reset()
        return engine

    yield policy, make
    policy.model.load_state_dict(before)


@pytest.mark.vllm
def test_conversations_are_as_long_as_fits_into_memory(build):
    pytest.importorskip("vllm")
    policy, sizes = build(), []
    for kv_gib in (0.25, 0.0002):
        engine = VLLMEngine(policy, (), kv_gib=kv_gib)
        sizes.append(engine.max_length)
        prompt = [5] * (int(engine.max_length) - 3)
        assert len(generate(engine, {0: prompt}, 9, 1.0)[0].tokens) == 3
    assert sizes[0] == policy.max_length > sizes[1]


@pytest.mark.vllm
def test_greedy_turns_are_those_of_transformers_with_the_weights_of_the_moment(start):
    """Turn by turn, with stop strings of several tokens, and after a change of weights."""
    policy, make = start
    free = generate(TransformersEngine(policy, ()), encoded(policy), 40, 0.0)
    stop = policy.tokenizer.decode(free[3].tokens)[7:11], policy.tokenizer.decode(free[7].tokens)[20:23]
    engine, said = make(stop), []
    for _ in range(2):
        other, contexts = TransformersEngine(policy, stop), encoded(policy)
        for turn in range(3):
            expected, done = (generate(each, contexts, 40, 0.0) for each in (other, engine))
            assert ends(done) == ends(expected)
            for key in contexts:
                assert done[key].logprobs == pytest.approx(expected[key].logprobs, abs=1e-4)
                observation = policy.observation_ids("seen " * (key + turn), done[key].tokens)
                contexts[key] = contexts[key] + done[key].tokens + observation
        said.append(ends(done))
        disturb(policy.model)
        engine.reset()
    assert said[0] != said[1]


@pytest.mark.vllm
@pytest.mark.parametrize("how", [(0.6,), (1.0,), (2.0,), (0.0,), (1.5, 0.7), (1.5, 1.0, 0.1), (1.5, 0.8, 0.1)])
def test_logprobs_are_those_of_the_distribution_sampled_from(start, how):
    policy, make = start
    for key, done in generate(make(), encoded(policy), 30, *how).items():
        assert_logprobs(policy, encoded(policy)[key], done, *how)
        assert done.finish_reason == "length" or done.tokens[-1] in policy.end_ids


@pytest.mark.vllm
def test_samples_follow_the_distribution_and_the_seed(start):
    policy, make = start
    engine, prompt = make(), policy.encode("the town")

    def sampled(seed: int) -> list[int]:
        torch.manual_seed(seed)
        engine.reset()  # as every rollout does
        return [done.tokens[0] for done in generate(engine, dict.fromkeys(range(4000), prompt), 1, 0.7).values()]

    tokens = sampled(1)
    assert tokens == sampled(1) != sampled(2)
    with torch.no_grad():
        p = (policy.model(torch.tensor([prompt])).logits[0, -1] / 0.7).softmax(-1)
    share = torch.tensor(tokens).bincount(minlength=len(p)) / len(tokens)
    torch.testing.assert_close(share, p, rtol=0, atol=0.03)
    assert p.max() < 0.9


@pytest.mark.vllm
def test_a_conversation_that_goes_on_costs_only_what_is_new(in_process, monkeypatch):
    policy, engine = in_process
    cached, step = [], engine._engine.step

    def watched():
        outputs = step()
        cached.extend(output.num_cached_tokens for output in outputs)
        return outputs

    monkeypatch.setattr(engine._engine, "step", watched)
    engine.reset()
    prompt = policy.encode("the town " * 20)
    said = generate(engine, {0: prompt}, 4, 1.0)[0].tokens
    assert max(cached) == 0
    generate(engine, {0: prompt + said + policy.encode(" and so on")}, 1, 1.0)
    assert max(cached) >= len(prompt) - 32
    cached.clear()
    engine.reset()
    generate(engine, {0: prompt}, 1, 1.0)
    assert max(cached) == 0


@pytest.mark.vllm
def test_turns_begin_while_others_are_open(start):
    policy, make = start
    engine, prompts, params = make(), encoded(policy), SamplingParams(max_new_tokens=12, temperature=0.0)
    expected = generate(TransformersEngine(policy, ()), prompts, 12, 0.0)
    engine.submit({3: prompts[3], 0: prompts[0]}, params)
    with pytest.raises(ValueError, match=r"conversations \[3\] have an open turn"):
        engine.submit({3: prompts[3]}, params)
    engine.submit({1: prompts[1]}, params)
    done = {}
    while some := engine.wait():
        done |= some
    assert {key: done[key].tokens for key in (3, 0, 1)} == {key: expected[key].tokens for key in (3, 0, 1)}
    engine.submit(prompts, params)
    engine.reset()
    assert engine.wait() == {}
