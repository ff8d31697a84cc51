"""Trees in one row. FlexAttention has no gradient on a CPU: on a GPU `choose_tree_attention` compares it before it is used."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.engines.engine import generate
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models import flex_attention, hidden_states
from trainers.models.critic import Critic
from trainers.models.hidden_states import compute_hidden_states
from trainers.models.prefix_trees import build_trees
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
    policy.model.config._attn_implementation = flex_attention.ATTENTION_NAME
    return policy


def both_ways(policy, batch):
    """The hidden states of real tokens in single rows and packed, and how many tokens were packed."""
    real = torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]
    with torch.no_grad():
        alone, node_index = compute_hidden_states(policy.model.base_model, batch, torch.float32, "")
        packed, packed_index = compute_hidden_states(policy.model.base_model, batch, torch.float32, "packed")
    return alone[node_index[real]], packed[packed_index[real]], len(packed)


@given(rows=families)
@settings(max_examples=25, deadline=None)
def test_hidden_states_are_those_of_single_rows(policy, rows):
    alone, packed, size = both_ways(policy, batch_of(rows))
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=2e-5)
    assert size % flex_attention.BLOCK_SIZE == 0


@given(rows=families)
@settings(max_examples=25, deadline=None)
def test_each_token_attends_to_itself_and_what_is_before_it(rows):
    """And the row has no padding but at its end."""
    batch = batch_of(rows)
    inputs, node_index = flex_attention.pack_trees(build_trees(batch, always=True))
    mask, paths = inputs["attention_mask"], [node_index[n, :length].tolist() for n, length in enumerate(batch.lengths)]
    used = {place for path in paths for place in path}
    assert used == set(range(len(used)))
    for path, row in zip(paths, rows, strict=True):
        assert inputs["input_ids"][0, path].tolist() == row
        assert inputs["position_ids"][0, path].tolist() == list(range(len(row)))
        for t, query in enumerate(path):
            keys = torch.arange(inputs["input_ids"].numel())
            assert mask.mask_mod(0, 0, torch.tensor(query), keys).nonzero()[:, 0].tolist() == path[: t + 1]
    if len(used) < len(keys):  # padding attends to itself
        assert mask.mask_mod(0, 0, torch.tensor(len(used)), keys).nonzero()[:, 0].tolist() == [len(used)]


def test_many_trees_over_many_blocks(policy):
    rows = [[n % 7 + 3] * 150 + [n, 5, 6] * 20 for n in range(3, 24)]
    alone, packed, size = both_ways(policy, batch_of(rows))
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-4)
    assert 7 * 150 + 21 * 60 <= size < 7 * 150 + 21 * 60 + flex_attention.BLOCK_SIZE


def test_a_critic_that_was_copied_before_is_packed_too(make_policy):
    policy = make_policy("bytes")
    critic = Critic(policy)
    batch = batch_of([[3, 4, 5, 6, 7], [3, 4, 5, 9]])
    with torch.no_grad():
        expected = critic(batch)
        critic.tree_attention = "packed"
        torch.testing.assert_close(critic(batch), expected)


class OnAGPU:
    """Has `choose_tree_attention` try what it tries on a GPU, without gradients."""

    def __init__(self, monkeypatch, broken: bool):
        differs = hidden_states._find_difference

        def tried(backbone, starts, device, dtype, tree_attention):
            with torch.no_grad():
                return differs(backbone, starts, torch.device("cpu"), dtype, tree_attention)

        class Parameter:
            device = torch.device("cuda")

        monkeypatch.setattr(hidden_states, "_find_difference", tried)
        monkeypatch.setattr(hidden_states, "next", lambda parameters: Parameter, raising=False)
        if broken:
            pack_trees = flex_attention.pack_trees

            def wrong(trees):
                inputs, node_index = pack_trees(trees)
                size, is_ancestor = inputs["input_ids"].numel(), inputs["attention_mask"].mask_mod
                inputs["attention_mask"] = flex_attention.create_block_mask(
                    lambda b, h, q, k: is_ancestor(b, h, q, k) | (q >= 128), None, None, size, size, "cpu"
                )
                return inputs, node_index

            monkeypatch.setattr(flex_attention, "pack_trees", wrong)


def test_what_is_tried_on_a_gpu(make_policy, monkeypatch):
    policy = make_policy("bytes")
    OnAGPU(monkeypatch, broken=False)
    assert policy.tree_attention == "packed"
    assert policy.model.config._attn_implementation == flex_attention.ATTENTION_NAME


def test_a_mask_that_is_wrong_behind_the_first_block_is_found(make_policy, monkeypatch):
    policy = make_policy("bytes")
    OnAGPU(monkeypatch, broken=True)
    with pytest.warns(UserWarning, match="not packed for FlexAttention: hidden states"):
        assert policy.tree_attention == "masked"
    assert policy.model.config._attn_implementation == "sdpa"


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
        engine._runner._runs_as_llama = False
        done.append([c.tokens for c in generate(engine, prompts, 8, 0.0).values()])
    assert done[0] == done[1]
