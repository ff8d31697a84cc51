"""Trees in one row. FlexAttention has no gradient on a CPU: on a GPU `choose_tree_attention` compares it before it is used."""

from types import SimpleNamespace

import pytest
import torch
from family_models import batch_of, build
from hypothesis import given, settings
from test_agreement import branching_rows
from torch.nn.attention.flex_attention import create_mask
from torch.nn.functional import scaled_dot_product_attention

from trainers.engines.engine import generate
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models import flex_attention, hidden_states, llama_parts
from trainers.models.hidden_states import compute_hidden_states
from trainers.models.lora import trainable_parameters

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture(scope="module")
def policy(make_policy):
    policy = make_policy("bytes", 1)
    policy.model.config._attn_implementation = flex_attention.ATTENTION_NAME
    return policy


def both_ways(policy, batch):
    """The hidden states of real tokens in single rows and packed, and how many tokens were packed."""
    real = torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]
    with torch.no_grad():
        alone, node_index = compute_hidden_states(policy.model.base_model, batch, torch.float32, "")
        packed, packed_index = compute_hidden_states(policy.model.base_model, batch, torch.float32, "packed")
    return alone[node_index[real]], packed[packed_index[real]], len(packed)


@given(rows=branching_rows)
@settings(max_examples=10, deadline=None)
def test_hidden_states_are_those_of_single_rows(policy, rows):
    alone, packed, size = both_ways(policy, batch_of(rows))
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=2e-5)
    assert size % flex_attention.BLOCK_SIZE == 0


def dense_attention(module, query, key, value, attention_mask, scaling):
    """FlexAttention on a CPU has no gradient."""
    size = query.shape[2]
    mask = create_mask(attention_mask.mask_mod, 1, 1, size, size, "cpu")
    out = scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2), None


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("family", "lora"), [("llama", False), ("qwen2", True), ("qwen3", False), ("seed_oss", True)])
def test_fused_layers_are_the_librarys(tokenizers, monkeypatch, family, lora, recompute):
    """Hidden states and all gradients, over branching rows."""
    policy = build(tokenizers, family, lora)
    if recompute:
        hidden_states.recompute_activations(policy.model)
    calls = []
    parts = llama_parts.Parts(normalize=lambda *args: calls.append(1) or llama_parts.normalize(*args))
    monkeypatch.setattr(llama_parts, "compiled_parts", lambda: parts)
    monkeypatch.setattr(flex_attention, "packed_attention", dense_attention)
    batch = batch_of([[3, 4, 5, 6, 7], [3, 4, 5, 9], [5] * 140])
    real, found = torch.arange(batch.ids.shape[1]) < batch.lengths[:, None], []
    for tree_attention in ("", "fused"):
        states, index = compute_hidden_states(policy.model.base_model, batch, torch.float32, tree_attention)
        hidden = states[index[real]]
        weights = trainable_parameters(policy.backbone)
        gradients = torch.autograd.grad((hidden * torch.arange(hidden.numel()).cos().view_as(hidden)).sum(), weights)
        found.append([hidden.detach(), *gradients])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-4)
    assert len(calls) == 4 * (1 + recompute)  # of two layers
    compute_hidden_states(policy.model.base_model, batch, torch.float32, "")
    assert len(calls) == 4 * (1 + recompute)


@pytest.mark.parametrize("broken", [False, True])
def test_what_is_tried_on_a_gpu(make_policy, monkeypatch, broken):
    """Here without gradients; a mask that is wrong behind the first block is found."""
    monkeypatch.setattr(llama_parts, "compiled_parts", llama_parts.Parts)
    policy, differs, pack_trees = make_policy("bytes"), hidden_states._find_difference, flex_attention.pack_trees

    def tried(backbone, starts, device, dtype, tree_attention):
        with torch.no_grad():
            return differs(backbone, starts, torch.device("cpu"), dtype, tree_attention)

    def wrong(trees):
        inputs, node_index = pack_trees(trees)
        size, is_ancestor = inputs["input_ids"].numel(), inputs["attention_mask"].mask_mod
        inputs["attention_mask"] = flex_attention.create_block_mask(
            lambda b, h, q, k: is_ancestor(b, h, q, k) | (q >= 128), None, None, size, size, "cpu"
        )
        return inputs, node_index

    monkeypatch.setattr(hidden_states, "_find_difference", tried)
    on_gpu = SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setattr(hidden_states, "next", lambda parameters: on_gpu, raising=False)
    if not broken:
        assert policy.tree_attention == "fused"
        assert policy.model.config._attn_implementation == flex_attention.ATTENTION_NAME
        return
    monkeypatch.setattr(flex_attention, "pack_trees", wrong)
    with (
        pytest.warns(UserWarning, match="run without 'fused' attention.*: hidden states"),
        pytest.warns(UserWarning, match="run without 'packed' attention.*: hidden states"),
    ):
        assert policy.tree_attention == "masked"
    assert policy.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("fused", [False, True])
def test_elsewhere_the_model_is_as_it_was(policy, make_policy, monkeypatch, fused):
    """Rows without a mask, and an engine that has the library run the layers with one of its own."""
    monkeypatch.setattr(llama_parts, "compiled_parts", llama_parts.Parts)
    other = make_policy("bytes", 1)
    other.model.load_state_dict(policy.model.state_dict())
    batch = batch_of([[3, 4, 5], [5] * 9])
    for x, y in zip(policy.logprobs(batch), other.logprobs(batch), strict=True):
        torch.testing.assert_close(x, y)
    llama_parts.use_fused_layers(policy.backbone, fused)
    prompts = {0: [5, 6, 7, 8], 1: [9] * 12}
    done = []
    for each in (policy, other):
        engine = TransformersEngine(each, ())
        engine.runner._runs_as_llama = False
        done.append([c.tokens for c in generate(engine, prompts, 8, 0.0).values()])
    assert done[0] == done[1]
