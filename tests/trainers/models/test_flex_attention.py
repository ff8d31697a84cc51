"""Trees in one row. FlexAttention has no gradient on a CPU: on a GPU `choose_tree_attention` compares it before it is used."""

from types import SimpleNamespace

import pytest
import torch
from family_models import batch_of
from hypothesis import given, settings
from test_agreement import branching_rows

from trainers.engines.engine import generate
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models import flex_attention, hidden_states
from trainers.models.hidden_states import compute_hidden_states

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


@pytest.mark.parametrize("broken", [False, True])
def test_what_is_tried_on_a_gpu(make_policy, monkeypatch, broken):
    """Here without gradients; a mask that is wrong behind the first block is found."""
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
        assert policy.tree_attention == "packed"
        assert policy.model.config._attn_implementation == flex_attention.ATTENTION_NAME
        return
    monkeypatch.setattr(flex_attention, "pack_trees", wrong)
    with pytest.warns(UserWarning, match=r"in padded rows \(packed: hidden states"):
        assert policy.tree_attention == "masked"
    assert policy.model.config._attn_implementation == "sdpa"


def test_elsewhere_the_model_is_as_it_was(policy, make_policy):
    """Rows without a mask, and an engine that has the library run the layers with one of its own."""
    other = make_policy("bytes", 1)
    other.model.load_state_dict(policy.model.state_dict())
    batch = batch_of([[3, 4, 5], [5] * 9])
    for x, y in zip(policy.logprobs(batch), other.logprobs(batch), strict=True):
        torch.testing.assert_close(x, y)
    prompts = {0: [5, 6, 7, 8], 1: [9] * 12}
    done = []
    for each in (policy, other):
        engine = TransformersEngine(each, ())
        engine.runner._runs_as_llama = False
        done.append([c.tokens for c in generate(engine, prompts, 8, 0.0).values()])
    assert done[0] == done[1]
