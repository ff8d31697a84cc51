"""Trees in one row. FlexAttention has no gradient on a CPU: on a GPU `tree_attention` compares it before it is used."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers import packing
from trainers.engine import TransformersEngine, generate
from trainers.memory import hidden_states, tree_attention
from trainers.prefixes import trees_of
from trainers.trajectory import Sequence, collate_sequences

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

tokens = st.lists(st.integers(3, 5), max_size=6)
families = st.lists(
    st.tuples(st.sampled_from([[7, 8, 9] * 4, [7, 8], [6] * 9]), tokens).map(lambda x: x[0] + x[1]),
    min_size=1,
    max_size=7,
)


def batch_of(rows):
    sequences = [
        Sequence(ids=r, mask=[i > 0 for i in range(len(r))], logprobs=[0.0] * len(r), rewards=[0.0] * len(r))
        for r in rows
    ]
    return collate_sequences(sequences, list(range(len(rows))), 0)


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def policy(make_policy, request):
    policy = make_policy("bytes", 1, family=request.param)
    policy.model.config._attn_implementation = packing.NAME
    return policy


@given(rows=families)
@settings(max_examples=25, deadline=None)
def test_hidden_states_are_those_of_single_rows(policy, rows):
    batch = batch_of(rows)
    real = torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]
    with torch.no_grad():
        alone, where = hidden_states(policy.model.base_model, batch, torch.float32, "")
        packed, place = hidden_states(policy.model.base_model, batch, torch.float32, "packed")
    torch.testing.assert_close(packed[place[real]], alone[where[real]], rtol=1e-5, atol=2e-5)
    assert len(packed) == packing.STEP


@given(rows=families)
@settings(max_examples=25, deadline=None)
def test_each_token_sees_itself_and_what_is_before_it(rows):
    """And the row has no padding but at its end."""
    batch = batch_of(rows)
    inputs, where = packing.packed(trees_of(batch, alone=True))
    mask, paths = inputs["attention_mask"], [where[n, :length].tolist() for n, length in enumerate(batch.lengths)]
    used = {place for path in paths for place in path}
    assert used == set(range(len(used)))
    for path, row in zip(paths, rows, strict=True):
        assert inputs["input_ids"][0, path].tolist() == row
        assert inputs["position_ids"][0, path].tolist() == list(range(len(row)))
        for t, query in enumerate(path):
            keys = torch.arange(packing.STEP)
            assert mask.mask_mod(0, 0, torch.tensor(query), keys).nonzero()[:, 0].tolist() == path[: t + 1]
    padding = torch.tensor(len(used))
    assert mask.mask_mod(0, 0, padding, torch.arange(packing.STEP)).nonzero()[:, 0].tolist() == [len(used)]


def test_elsewhere_the_model_is_as_it_was(policy, make_policy):
    """Rows without a mask, and an engine that has the library run the layers with one of its own."""
    other = make_policy("bytes", 1, family=policy.model.config.model_type)
    other.model.load_state_dict(policy.model.state_dict())
    batch = batch_of([[3, 4, 5], [5] * 9])
    for x, y in zip(policy.logprobs(batch), other.logprobs(batch), strict=True):
        torch.testing.assert_close(x, y)
    prompts = {0: [5, 6, 7, 8], 1: [9] * 12}
    done = []
    for each in (policy, other):
        engine = TransformersEngine(each, ())
        engine._forward._plain = False
        done.append([c.tokens for c in generate(engine, prompts, 8, 0.0).values()])
    assert done[0] == done[1]


def test_on_a_cpu_trees_are_masked(make_policy):
    policy = make_policy("bytes")
    assert tree_attention(policy.model.base_model, [3, 1, 4, 1, 5, 9], torch.float32) == "masked"
    assert policy.model.config._attn_implementation == "sdpa"
