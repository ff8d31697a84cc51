"""Recomputed activations and bfloat16: what they save, and that results are the same or nearly so."""

import copy

import numpy as np
import pytest
import torch
from family_models import build

from trainers.engines.engine import generate
from trainers.engines.llama import CastWeights
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models.critic import Critic
from trainers.models.hidden_states import ForwardTokenMeter, recompute_activations, round_frozen
from trainers.models.lora import add_lora, trainable_parameters
from trainers.models.policy import Policy
from trainers.models.prefix_trees import build_trees
from trainers.trajectory import collate


@pytest.fixture
def batch(make_policy, roll_out):
    policy = make_policy("bytes")
    return collate(roll_out(policy, [["a", "b"], ["a long text"], ["c"], ["c", "d", "e"]]), policy.pad_id)


def gradients(policy, batch, critic=None):
    """Of all that is trained, and what the graph held on to for them: the bytes of its tensors."""
    held = {}

    def pack(tensor):
        held[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logprobs, _ = policy.logprobs(batch)
        loss = logprobs.sum() + (critic(batch).square().sum() if critic else 0.0)
    parameters = trainable_parameters(policy.model) + (trainable_parameters(critic.backbone) if critic else [])
    return torch.autograd.grad(loss, parameters), sum(held.values())


def calls(model):
    """Counts the passes through each layer of a backbone: as they begin, since the second one ends early."""
    counts = [0] * len(model.layers)
    for number, layer in enumerate(model.layers):
        layer.mlp.register_forward_pre_hook(lambda *_, n=number: counts.__setitem__(n, counts[n] + 1))
    return counts


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_run_twice_for_the_same_gradient_in_less_memory(make_policy, batch, lora, dtype):
    model = make_policy("bytes").model
    model.config.attention_dropout = 0.5  # the library recomputes in training mode alone, where there is dropout
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    if lora:
        pytest.importorskip("peft")
        add_lora(model, 2, 32)
        for parameter in trainable_parameters(model):
            torch.nn.init.normal_(parameter, std=0.1)
    plain = Policy(model, make_policy("bytes").tokenizer, dtype)
    policy = copy.deepcopy(plain)
    recompute_activations(policy.model)
    critics = [Critic(p) for p in (plain, policy)]
    for critic in critics:
        torch.nn.init.constant_(critic.head.weight, 0.1)
    counts = [calls(policy.model.base_model), calls(critics[1].backbone)]
    expected, held = gradients(plain, batch, critics[0])
    got, held_by_inputs = gradients(policy, batch, critics[1])
    assert counts == [[2, 2], [2, 2]]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    assert held_by_inputs < held
    with torch.no_grad():
        policy.logprobs(batch)
    assert counts[0] == [3, 3]  # nothing to recompute
    assert not any(module.training for module in policy.model.modules())


def test_sampling_keeps_its_cache(make_policy, batch):
    policy = make_policy("bytes")
    prompts = {key: policy.encode(text) for key, text in enumerate(("the town", "x", "a longer prompt"))}
    engine = TransformersEngine(policy, ())
    engine.runner._runs_as_llama = False  # so that the layers are called by the library
    expected = generate(engine, prompts, 9, 0.0)
    engine.reset()
    recompute_activations(policy.model)
    policy.logprobs(batch)[0].sum().backward()
    counts, widths = calls(policy.model.base_model), []
    policy.model.model.layers[0].mlp.register_forward_hook(lambda _, args, __: widths.append(args[0].shape[1]))
    assert generate(engine, prompts, 9, 0.0) == expected
    assert counts == [10, 10]
    assert widths == [max(map(len, prompts.values())) - 1] + [1] * 9


def test_tokens_of_forward_passes_are_counted(make_policy, batch):
    policy = make_policy("bytes")
    recompute_activations(policy.model)  # what is recomputed is not counted twice
    nodes = build_trees(batch).ids.numel()
    policy.logprobs(batch)
    meter = ForwardTokenMeter(policy.model.base_model)
    policy.logprobs(batch)[0].sum().backward()
    with torch.no_grad():
        policy.logprobs(batch)
        Critic(policy)(batch)  # a copy
    policy.model.base_model(batch.ids)
    assert meter.count == 2 * nodes + batch.ids.numel()


def test_layers_run_in_bfloat16_and_nothing_else_does(tokenizers, batch):
    policy = build(tokenizers, "seed_oss", dtype=torch.float32, width=256)
    policy.dtype, seen = torch.bfloat16, {}
    for name in ("q_proj", "o_proj"):
        module = getattr(policy.model.model.layers[1].self_attn, name)
        module.register_forward_hook(lambda _, args, out, n=name: seen.update({n: (args[0].dtype, out.dtype)}))
    policy.model.lm_head.register_forward_hook(lambda _, args, out: seen.update(head=(args[0].dtype, out.dtype)))
    for run in (
        lambda: policy.logprobs(batch)[0].sum().backward(),
        lambda: generate(TransformersEngine(policy, ()), {0: [5, 6, 7]}, 3, 1.0),
        lambda: Critic(policy)(batch).sum().backward(),
    ):
        seen.clear()
        run()
        assert seen.pop("head", (torch.float32,) * 2) == (torch.float32, torch.float32)
        assert set(seen.values()) <= {(torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)}
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in policy.model.parameters()} == {torch.float32}
    before = [p.detach().clone() for p in policy.model.parameters()]
    torch.optim.AdamW(policy.model.parameters(), lr=1e-6, weight_decay=0.0).step()
    moved = [(p != b)[p.grad != 0].float().mean() for p, b in zip(policy.model.parameters(), before, strict=True)]
    assert np.mean(moved) > 0.9  # where bfloat16 would round the step away


def test_frozen_layers_in_bfloat16_are_what_they_were_rounded_to_before(tokenizers, batch):
    policy = build(tokenizers, "seed_oss", lora=True, width=256)
    policy.dtype = torch.bfloat16
    with torch.no_grad():
        expected = policy.logprobs(batch)[0]
        round_frozen(policy.model)
        assert torch.equal(policy.logprobs(batch)[0], expected)
    kinds = {name: p.dtype for name, p in policy.model.named_parameters()}
    assert {kinds[n] for n in kinds if "lora_" in n or "embed" in n or "norm" in n} == {torch.float32}
    assert policy.model.lm_head.weight is policy.model.model.embed_tokens.weight
    assert {kinds[n] for n in kinds if "base_layer" in n} == {torch.bfloat16}
    assert len(trainable_parameters(policy.model)) == 2 * 7 * 2


def test_biases_that_an_adapter_trains_are_neither_rounded_nor_left_behind(tokenizers):
    peft = pytest.importorskip("peft")
    policy = build(tokenizers, "qwen2", width=256)
    policy.model.add_adapter(peft.LoraConfig(r=2, target_modules="all-linear", bias="lora_only"))
    round_frozen(policy.model)
    attention = policy.model.model.layers[0].self_attn
    assert attention.q_proj.base_layer.weight.dtype == torch.bfloat16
    assert attention.q_proj.base_layer.bias.dtype == torch.float32
    weights = CastWeights(policy.model.model, torch.bfloat16, merges=True, stacks=True)
    x = torch.ones(1, 256, dtype=torch.bfloat16)
    with torch.no_grad():
        before, bias = weights(0, "qkv", x)[0], attention.q_proj.base_layer.bias
        bias += 1
        weights.refresh()
        after = weights(0, "qkv", x)[0]
    assert torch.allclose(after - before, torch.ones(()).bfloat16(), atol=0.05)
