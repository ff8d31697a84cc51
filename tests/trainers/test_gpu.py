"""On a GPU: what a CPU computes comes out there too, by other kernels. `pytest -m gpu tests/trainers` runs these."""

import copy
import shutil

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from trainers import grpo, ppo
from trainers.engines import llama, model_runner
from trainers.engines.engine import SamplingParams, generate
from trainers.engines.kv_cache import KVCache
from trainers.engines.transformers_engine import TransformersEngine
from trainers.factory import make_envs
from trainers.models import llama_parts, lora
from trainers.models.loading import load_policy, set_matmul_precision
from trainers.models.policy import Policy
from trainers.rollouts.rollout import rollout
from trainers.runtime import integrity
from trainers.runtime.progress import read_metrics
from trainers.trajectory import collate

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
SMALL = '{"entities": 60, "questions": 24, "max_turns": 3}'


# The form of SmolLM2, with three query heads for one of keys and values.
SHAPE = {
    "scale": 0.1, "family": "llama", "hidden_size": 192, "intermediate_size": 384, "num_hidden_layers": 3,
    "num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture
def make_policy_on(make_policy, tokenizers):
    """``make_policy_on(device, dtype, lora_rank)``: the same weights each time."""

    def make(device: str, dtype: str = "float32", lora_rank: int = 0) -> Policy:
        model = make_policy(**SHAPE).model
        if lora_rank:
            lora.add_lora(model, lora_rank, 32)
            for name, parameter in model.named_parameters():
                if "lora_B" in name:  # zero at first, and then the other matrix has no gradient
                    torch.nn.init.normal_(parameter, std=0.05)
        model = model.to(device)
        set_matmul_precision(model, dtype)
        return Policy(model, tokenizers["bytes"], getattr(torch, dtype))

    return make


@pytest.fixture
def smol_folder(save_model):
    return save_model(seed=0, **SHAPE)


def play(policy: Policy, letters: str, temperature: float = 1.0):
    """Sixteen episodes of three turns, four at each question."""
    envs = make_envs(letters, SMALL, "train", 16)
    engine = TransformersEngine(policy, ("</search>",))
    torch.manual_seed(0)
    options = {"seeds": [0, 1, 2, 3], "group_size": 4, "max_new_tokens": 24, "temperature": temperature}
    return rollout(envs, policy, engine, **options), engine


def test_turns_are_those_of_a_cpu(make_policy_on):
    """Over turns, with rows that leave and come back, and after a change of all weights; steps are replayed as graphs."""
    policies = [make_policy_on("cuda"), make_policy_on("cpu")]
    engines = [TransformersEngine(policy, ()) for policy in policies]
    for _ in range(2):
        contexts = {key: policies[0].encode("the town " * (5 * key + 1)) for key in range(12)}
        for keys in (range(12), [0], [7, 1, 11], range(12)):
            found, expected = (generate(e, {k: contexts[k] for k in keys}, 40, 0.0) for e in engines)
            for key in keys:
                assert found[key].tokens == expected[key].tokens
                assert found[key].logprobs == pytest.approx(expected[key].logprobs, abs=1e-3)
                contexts[key] = contexts[key] + found[key].tokens + policies[0].observation_ids("seen " * 20, [])
        assert engines[0].runner.graphs.count  # of the widths since keys and values last moved
        for policy, engine in zip(policies, engines, strict=True):
            engine.reset()
            with torch.no_grad():
                for parameter in policy.model.parameters():
                    parameter.mul_(1.05)


@pytest.mark.parametrize("heads", [3, 1])
@pytest.mark.parametrize("tokens", [1, 5, 300])
def test_flash_attention_reads_rows_of_the_cache_up_to_their_length(heads, tokens):
    """Of rows in any order, with other lengths; what is stored behind them does not matter."""
    torch.manual_seed(0)
    cache, (rows, lengths) = KVCache(on_gpu=True), (torch.tensor([5, 2, 0]), torch.tensor([70, 0, 411]))
    cache.reserve(6, 1000)
    columns = (lengths[:, None] + torch.arange(tokens)).cuda()
    cache.set_positions(rows.cuda(), columns, 1000)
    keys, values = cache.buffers(0, *torch.zeros(2, 1, 2, 1, 64, device="cuda", dtype=torch.bfloat16))
    for buffer in (keys, values):
        buffer.normal_()
    q = torch.randn(3, tokens, 2 * heads, 64, device="cuda", dtype=torch.bfloat16)
    found = llama.attend_to_places(q, keys, values, llama.Places.of_pass(cache, 2), 0.1)
    mask = (torch.arange(cache.width, device="cuda") <= columns[..., None])[:, None]
    k, v = (buffer[rows.cuda()].float() for buffer in (keys, values))
    expected = scaled_dot_product_attention(q.float().transpose(1, 2), k, v, mask, scale=0.1, enable_gqa=True)
    torch.testing.assert_close(found.float(), expected.transpose(1, 2), rtol=0.02, atol=0.02)


@torch.no_grad()
def test_steps_that_are_taken_at_once_do_not_wait_for_the_device(make_policy_on):
    policy = make_policy_on("cuda")
    engine = TransformersEngine(policy, ())
    graphs, calls = engine.runner.graphs, []
    prompts = {key: policy.encode("the town" * (key + 1)) for key in range(4)}
    engine.submit(prompts, SamplingParams(max_new_tokens=40, top_p=0.9, min_p=0.01), {key: key for key in prompts})
    while graphs.count == 0:  # captures are compared with the step
        engine._decode()

    def strict(*args):
        calls.append(args)
        torch.cuda.set_sync_debug_mode("default" if len(calls) % 4 == 0 else "error")
        return graphs(*args)

    engine.runner.graphs = strict
    try:
        engine._decode()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(calls) == 4


def test_a_step_that_cannot_be_captured(make_policy_on, monkeypatch):
    policy = make_policy_on("cuda")
    run = model_runner.ModelRunner._decode_step

    def wait(self, ids, columns, width):
        hidden = run(self, ids, columns, width)
        assert hidden.sum().item() == hidden.sum().item()  # no graph can wait for the device
        return hidden

    monkeypatch.setattr(model_runner.ModelRunner, "_decode_step", wait)
    engine = TransformersEngine(policy, ())
    with pytest.warns(UserWarning, match="goes on without CUDA graphs"):
        done = generate(engine, {key: policy.encode("the town") for key in range(4)}, 30, 1.0)
    assert all(len(completion.tokens) for completion in done.values())
    assert engine.runner.graphs.count == 0
    assert torch.rand(3, device="cuda").shape == (3,)
    torch.empty(2**30, dtype=torch.uint8, device="cuda")  # freed at once, but cached
    cached = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= cached - 2**30


@pytest.mark.parametrize("lora_rank", [0, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_was_sampled_is_as_probable_in_the_update(make_policy_on, letters, dtype, lora_rank):
    policy = make_policy_on("cuda", dtype, lora_rank)
    played, engine = play(policy, letters)
    batch = collate(played, policy.pad_id).to("cuda")
    with torch.no_grad():
        logprobs, _ = policy.logprobs(batch)
    difference = (logprobs - batch.old_logprobs)[batch.mask].abs()
    assert float(difference.mean()) < (1e-4 if dtype == "float32" else 0.05)
    assert engine.runner.graphs.count > 0
    assert engine.runner._parts is llama_parts.compiled_parts() and engine.runner._reads_places == (dtype == "bfloat16")
    assert policy.tree_attention == "fused"


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_gradients_are_those_of_a_cpu(make_policy_on, letters, lora_rank):
    on_gpu, on_cpu = make_policy_on("cuda", lora_rank=lora_rank), make_policy_on("cpu", lora_rank=lora_rank)
    played, _ = play(on_cpu, letters)
    found = []
    for policy in (on_gpu, on_cpu):
        batch = collate(copy.deepcopy(played), policy.pad_id).to(policy.device)
        logprobs, entropy = policy.logprobs(batch)
        weights = torch.arange(logprobs.numel(), device=policy.device).cos().view_as(logprobs)
        (logprobs * weights).sum().backward()
        gradients = {n: p.grad.cpu() for n, p in policy.model.named_parameters() if p.grad is not None}
        found.append((logprobs.detach().cpu(), entropy.detach().cpu(), gradients))
    for ours, theirs in zip(found[0][:2], found[1][:2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    assert found[0][2].keys() == found[1][2].keys()
    for name, gradient in found[0][2].items():
        expected = found[1][2][name]
        assert float((gradient - expected).norm()) <= 2e-3 * float(expected.norm()), name


RUNS = {
    "grpo, one step off-policy": (grpo, {"one_step_off_policy": True, "importance": "tis"}),
    "grpo, recomputed, with a reference": (grpo, {"gradient_checkpointing": True, "kl_coef": 0.01}),
    "ppo": (ppo, {"lora_rank": 4, "dtype": "bfloat16"}),
    "ppo, shared": (ppo, {"share_layers": True}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_from_its_checkpoint(short_run, smol_folder, tmp_path, name):
    """Kernels on a GPU add in no fixed order, so the two halves are only about the whole."""
    module, options = RUNS[name]
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    base = {"env_kwargs": SMALL, "model": smol_folder, "lr": 1e-3, "max_new_tokens": 12, **options}
    module.main(short_run(module, **base, out=whole))
    shutil.copytree(whole, halves, ignore=shutil.ignore_patterns("checkpoint-2"))
    module.main(short_run(module, **base, resume=halves))
    first, second = (read_metrics(folder / "metrics.jsonl")[1:] for folder in (whole, halves))
    for ours, theirs in zip(first, second, strict=True):
        assert ours["policy/grad_norm"] > 0
        if name != "grpo, one step off-policy":  # a resumed one begins with a batch that is not old
            assert theirs["train/return"] == pytest.approx(ours["train/return"], rel=0.1)
    assert abs(first[0].get("policy/sampler_kl", 0.0)) < 0.01
    trained = load_policy(integrity.latest(whole))
    assert trained.device.type == "cuda"
