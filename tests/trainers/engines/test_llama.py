"""Layers run one after another are the model's own."""

import platform
import warnings
from functools import partial

import pytest
import torch

from trainers.engines import llama, model_runner
from trainers.engines.engine import generate
from trainers.engines.model_runner import ModelRunner
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models import llama_parts, products
from trainers.models.hidden_states import round_frozen
from trainers.models.lora import add_lora, trainable_parameters


def test_merged_adapters_follow_the_weights(make_policy):
    """At the addresses that they had: CUDA graphs read them there."""
    model, x = make_policy("bytes").model, torch.randn(3, 32)
    add_lora(model, 2, 4)
    for parameter in trainable_parameters(model):
        torch.nn.init.normal_(parameter, std=0.2)
    backbone = model.base_model
    merged, called = (llama.CastWeights(backbone, torch.float32, merges=merges) for merges in (True, False))
    stacked = llama.CastWeights(backbone, torch.float32, merges=True, stacks=True)
    before = [weight.data_ptr() for own in (merged, stacked) for weight, *_ in own._weights.values()]
    for _ in range(2):
        with torch.no_grad():
            for name in ("qkv", "gate_up"):
                for own in (merged, stacked):
                    for y, expected in zip(own(1, name, x), called(1, name, x), strict=True):
                        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
            for name, parameter in model.named_parameters():
                parameter.add_(0.1 if "lora_" in name else 0.0)
        merged.refresh()
        stacked.refresh()
    assert before == [weight.data_ptr() for own in (merged, stacked) for weight, *_ in own._weights.values()]
    assert stacked.nbytes == merged.nbytes > called.nbytes == 0
    assert len(stacked._stacked) == 2 * len(backbone.layers)


@pytest.mark.parametrize("how", ["plain", "stacked", "packed"])
def test_a_new_adapter_is_not_rounded_away(make_policy, monkeypatch, how):
    """Each weight changes by less than bfloat16 tells apart; the products, which cancel each other without it, do not."""
    monkeypatch.setattr(products, "MIN_WIDTH", 1)
    if how == "packed" and not products.can_pack(torch.device("cpu"), torch.bfloat16, 1):
        pytest.skip("this CPU has no bfloat16 products of oneDNN")
    model = make_policy("bytes").model
    add_lora(model, 2, 4)
    round_frozen(model)
    layer, x = model.base_model.layers[1].self_attn, torch.ones(3, 32, dtype=torch.bfloat16)
    projections = layer.q_proj, layer.k_proj, layer.v_proj
    for projection in projections:
        projection.base_layer.weight.data.copy_(torch.tensor([0.01, -0.01]).repeat(16))
        torch.nn.init.constant_(projection.lora_A["default"].weight, 0.1)
    options = {"merges": True, "stacks": how == "stacked", "packs": how == "packed"}
    weights, learned = llama.CastWeights(model.base_model, torch.bfloat16, **options), 0.00004
    with torch.no_grad():
        assert not torch.cat(weights(1, "qkv", x), -1).any()
        for projection in projections:
            projection.lora_B["default"].weight.fill_(learned)
        weights.refresh()
        found = torch.cat(weights(1, "qkv", x), -1).float()
    expected = 32 * 0.1 * 2 * learned * 2  # inputs, A, rank, B, and alpha / rank
    torch.testing.assert_close(found, torch.full_like(found, expected), rtol=0.02, atol=0)


@pytest.mark.parametrize("family", ["llama", "qwen2"])  # without and with biases
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_weights_follow_the_weights(make_policy, monkeypatch, family, dtype):
    """In layers with adapters, and in a head that is trained."""
    monkeypatch.setattr(products, "MIN_WIDTH", 1)
    if not products.can_pack(torch.device("cpu"), dtype, 1):
        pytest.skip(f"this CPU has no {dtype} products of oneDNN")
    policy = make_policy("bytes", family=family)
    add_lora(policy.model, 2, 4)
    policy.dtype = dtype
    engine = TransformersEngine(policy, ())
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    for _ in range(2):
        engine.reset()
        prompts = {0: [65, 66, 67], 1: [68] * 20}
        for key, turn in generate(engine, prompts, 6, 1.0).items():
            with torch.no_grad(), policy.autocast():
                hidden = policy.backbone(torch.tensor([prompts[key] + turn.tokens])).last_hidden_state[0]
                expected = policy.logits(hidden).log_softmax(-1)[len(prompts[key]) - 1 : -1]
            expected = expected.gather(1, torch.tensor(turn.tokens)[:, None]).squeeze(1)
            torch.testing.assert_close(torch.tensor(turn.logprobs), expected, rtol=0, atol=tolerance)
        with torch.no_grad():
            for parameter in (*trainable_parameters(policy.model), policy.model.get_output_embeddings().weight):
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    weights = engine.runner._weights
    assert engine.runner._runs_as_llama and weights.nbytes > 0 and not weights._weights
    assert all(weight.is_mkldnn for weight, *_ in [*weights._stacked.values(), engine.runner._head])


def test_weights_are_packed_where_it_pays(monkeypatch):
    cpu = torch.device("cpu")
    assert not products.can_pack(cpu, torch.float32, 64)
    assert not products.can_pack(torch.device("cuda"), torch.float32, 1024)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    for machine in ("x86_64", "aarch64"):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        assert products.can_pack(cpu, torch.float32, 1024) == (machine == "x86_64")
    assert not products.can_pack(cpu, torch.float64, 1024)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("learns", [False, True])
def test_compiled_parts_compute_what_plain_ones_do(monkeypatch, backend, learns):
    """With their gradients. They are compiled once, whatever the number of rows, tokens and heads."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    compiled, plain, counts = (
        llama_parts.compiled_parts.__wrapped__(),
        llama_parts.Parts(),
        torch._dynamo.utils.counters["stats"],
    )
    graphs = []
    for rows, tokens, heads in ((2, 3, 4), (7, 5, 6)):
        x, weight = (
            torch.randn(rows, tokens, heads * 8, requires_grad=learns),
            torch.rand(heads * 8, requires_grad=learns),
        )
        change, up = (torch.randn_like(x, requires_grad=learns) for _ in range(2))
        q, cos, sin = (torch.randn(rows, tokens, n, 8) for n in (heads, 1, 1))
        q.requires_grad_(learns)
        for name, arguments in {
            "normalize": (x, weight, 1e-6, torch.float32),
            "add_and_normalize": (x, change, weight, 1e-6, torch.float32),
            "rotate": (q, cos, sin, (torch.rand(8), 1e-6), torch.float32),
            "gate": (change, up),
        }.items():
            found, expected = getattr(compiled, name)(*arguments), getattr(plain, name)(*arguments)
            torch.testing.assert_close(found, expected)
            if learns:
                read = [each for each in arguments if torch.is_tensor(each) and each.requires_grad]
                gradients = [
                    torch.autograd.grad(sum((y * y).sum() for y in (ys if type(ys) is tuple else [ys])), read)
                    for ys in (found, expected)
                ]
                torch.testing.assert_close(*gradients)
        if not learns:
            slots = torch.randperm(1000 + rows)[: rows * tokens * heads].view(rows, tokens, heads)
            keys, values, norms = q + 1, q + 2, (None, (torch.rand(8), 1e-6))
            stored = [tuple(torch.zeros(1000 + rows, 8) for _ in range(2)) for _ in range(2)]
            for parts, buffers in zip((compiled, plain), stored, strict=True):
                found = parts.rotate_and_store(q, keys, values, (cos, sin), norms, *buffers, slots)
                torch.testing.assert_close(found, plain.rotate(q, cos, sin, None, torch.float32))
            torch.testing.assert_close(*stored)
            torch.testing.assert_close(stored[0][0][slots], plain.rotate(keys, cos, sin, norms[1], torch.float32))
            assert torch.equal(stored[0][1][slots], values)
        graphs.append(counts["unique_graphs"])
    assert graphs[0] == graphs[1] > 0


def flash_attention(q, k, v, starts_q, starts_k, max_q, max_k, dropout, is_causal, debug, *, scale, seqused_k):
    """What PyTorch's FlashAttention computes of sequences side by side, of whose keys only the first are used."""
    assert all(x.dtype == torch.int32 and x.is_contiguous() for x in (starts_q, starts_k, seqused_k))
    out = torch.empty_like(q)
    for i, used in enumerate(seqused_k.tolist()):
        own, keys = slice(starts_q[i], starts_q[i + 1]), slice(starts_k[i], starts_k[i] + used)
        count = int(own.stop - own.start)
        assert keys.stop <= len(k) and count <= min(max_q, used) and used <= max_k and is_causal == (max_q > 1)
        parts = (x[rows].transpose(0, 1).float() for x, rows in ((q, own), (k, keys), (v, keys)))
        mask = torch.ones(count, used, dtype=torch.bool).tril(used - count)  # the last query attends to all
        attended = torch.nn.functional.scaled_dot_product_attention(*parts, mask, scale=scale, enable_gqa=True)
        out[own] = attended.transpose(0, 1).to(q.dtype)
    return (out,)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_decoding_reads_each_rows_own_length(make_policy, monkeypatch, family):
    calls = []
    monkeypatch.setattr(model_runner, "supports_cuda_graphs", lambda device: True)
    monkeypatch.setattr(llama_parts, "compiled_parts", llama_parts.Parts)
    monkeypatch.setattr(
        torch.ops.aten, "_flash_attention_forward", lambda *args, **kw: calls.append(kw) or flash_attention(*args, **kw)
    )
    policy = make_policy("bytes", family=family)
    policy.dtype = torch.bfloat16
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runner = ModelRunner(policy)  # it compares with the library, on rows of different lengths
    assert runner._reads_places and len(calls) == 3 * policy.model.config.num_hidden_layers  # two prefills and a step
    assert all(len({*call["seqused_k"].tolist()}) == 2 for call in calls[-2:])


def test_what_a_kernel_cannot_do_is_done_without_it(make_policy, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no kernel image\nis available")

    monkeypatch.setattr(model_runner, "supports_cuda_graphs", lambda device: True)
    monkeypatch.setattr(llama_parts, "compiled_parts", lambda: llama_parts.Parts(gate=fail))
    policy = make_policy("bytes", family="llama")
    policy.dtype = torch.bfloat16
    with pytest.warns(UserWarning, match=r"without (compiled layers.*image$|FlashAttention)") as warned:
        runner = ModelRunner(policy)
    assert len(warned) == 2
    assert runner._runs_as_llama and not runner._reads_places and runner._parts == llama_parts.Parts()


def test_any_layout_of_what_attention_returns(make_policy, monkeypatch):
    """Kernels on GPUs return the transpose of another layout."""
    kernel = llama.scaled_dot_product_attention

    def other(*args, **kwargs):
        return kernel(*args, **kwargs).transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(llama, "scaled_dot_product_attention", other)
    assert ModelRunner(make_policy("bytes"))._runs_as_llama


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_does_something_else_is_left_to_the_library(make_policy, monkeypatch, dtype):
    policy = make_policy("bytes", family="llama")
    policy.dtype = dtype
    assert ModelRunner(policy)._runs_as_llama
    monkeypatch.setattr(llama_parts, "silu", torch.nn.functional.gelu)
    monkeypatch.setattr(products, "MIN_WIDTH", 1)  # so that the attempt packs weights, if this CPU can
    runner = ModelRunner(policy)
    assert not runner._runs_as_llama
    hidden, head = torch.randn(2, policy.model.config.hidden_size), policy.model.get_output_embeddings()
    torch.nn.init.normal_(head.weight)
    assert torch.equal(runner.logits(hidden), policy.logits(hidden))
