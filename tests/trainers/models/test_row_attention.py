"""Trees whose nodes go through the layers once, with attention over rows: values and gradients are those of single rows."""

import random

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from trainers.models import row_attention
from trainers.models.hidden_states import choose_tree_attention, compute_hidden_states, token_cost_of
from trainers.models.lora import add_lora, trainable_parameters
from trainers.models.micro_batches import split_rows
from trainers.models.prefix_trees import build_trees
from trainers.trajectory import Sequence, collate_sequences


def make_batch():
    shared = [5, 6, 7, 8, 9, 10]
    rows = [
        [*shared, 11, 12],
        [*shared, 11, 13, 14],
        [*shared[:3], 20],
        [30, 31],
        [*shared, 11, 13, 14, 15, 16],
        [*shared, 11, 13],
        [30, 31],
    ]
    sequences = [Sequence(ids=r, mask=[False] + [True] * (len(r) - 1), logprobs=[0.0] * len(r), rewards=[0.0] * len(r))
                 for r in rows]  # fmt: skip
    return collate_sequences(sequences, list(range(len(rows))), 0)


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setattr(row_attention, "MIN_WIDTH", 32)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_those_of_single_rows(make_policy, wide, family, dtype):
    policy, batch = make_policy(family=family), make_batch()
    found = {}
    for tree_attention, policy.dtype in (("", torch.float32), ("rows", dtype)):
        policy.tree_attention = tree_attention
        logprobs, entropy = policy.logprobs(batch, entropy_gradient=True)
        loss = (logprobs * torch.arange(logprobs.numel()).cos().view_as(logprobs)).sum() + entropy.sum()
        found[tree_attention] = [logprobs, *torch.autograd.grad(loss, trainable_parameters(policy.model))]
    for expected, got in zip(found[""], found["rows"], strict=True):
        error = (expected - got).norm() / expected.norm()
        # Single rows in bfloat16 are off by up to .08: what a key's bias gets nearly cancels.
        assert error < (1e-5 if dtype == torch.float32 else 0.1)


def test_every_node_once(make_policy, wide):
    policy, batch = make_policy(family="llama"), make_batch()
    trees = build_trees(batch, always=True, token_cost=token_cost_of("rows"))
    inputs, node_index = row_attention.pack_rows(trees, batch.lengths)
    prefixes = {tuple(row[: n + 1]) for row, length in zip(batch.ids.tolist(), batch.lengths.tolist(), strict=True)
                for n in range(length)}  # fmt: skip
    assert inputs["input_ids"].shape == (1, len(prefixes))
    real = torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]
    assert torch.equal(inputs["input_ids"][0][node_index][real], batch.ids[real])
    positions = torch.arange(batch.ids.shape[1]).expand_as(batch.ids)
    assert torch.equal(inputs["position_ids"][0][node_index][real], positions[real])
    hidden, index = compute_hidden_states(policy.model.base_model, batch, torch.float32, "rows")
    assert len(hidden) == len(prefixes) and torch.equal(index, node_index)


def test_blocks_hold_each_node_once_with_all_before_it_and_little_padding():
    """Attempts as reinforcement learning plays them: long turns that differ, and short ones at the end."""
    draw, paths, count = random.Random(0), [], 0
    for row in range(60):
        shared = paths[-1][: draw.randint(150, len(paths[-1]))] if row % 8 else []
        fresh = draw.choice([3, 9, 120, 250]) if shared else draw.randint(200, 600)
        paths.append([*shared, *range(count, count + fresh)])
        count += fresh
    blocks = list(row_attention.make_blocks([torch.tensor(path) for path in paths], count))
    found, before = [], {node: path[:place] for path in paths for place, node in enumerate(path)}
    for block in blocks:
        for queries, keys in zip(block.queries.tolist(), block.keys.tolist(), strict=True):
            queries, keys = ([node for node in nodes if node < count] for nodes in (queries, keys))
            found += queries
            assert keys == before[queries[0]] + queries
    assert sorted(found) == list(range(count))
    sizes = [((b.queries < count).sum(1), (b.keys < count).sum(1)) for b in blocks]
    needed = [int((queries * keys).sum()) for queries, keys in sizes]
    padded = [b.queries.numel() * b.keys.shape[1] for b in blocks]
    assert all(p <= row_attention.MAX_PADDING * n for p, n in zip(padded, needed, strict=True))
    assert all(p <= row_attention.MAX_PAIRS or len(b.queries) == 1 for p, b in zip(padded, blocks, strict=True))
    assert len(blocks) < sum(len(b.queries) for b in blocks)  # and some are multiplied at once


def test_attention_is_the_kernels_own_along_each_row(monkeypatch):
    """With scores large enough that rounding them, and not what is left of them, would show in bfloat16."""
    monkeypatch.setattr(row_attention, "BLOCK_SIZE", 4)
    torch.manual_seed(0)
    paths = [torch.arange(10), torch.cat([torch.arange(6), torch.arange(10, 17)]), torch.arange(17, 20)]
    rows = list(row_attention.make_blocks(paths, 20))
    q, k, v, by_out = (torch.randn(20, 3, *heads, 8) * size for heads, size in (((2,), 6), ((), 6), ((), 1), ((2,), 1)))

    def gradients(attend, dtype):
        inputs = [x.to(torch.bfloat16).to(dtype).requires_grad_() for x in (q, k, v)]
        out = attend(*inputs)
        return out, *torch.autograd.grad(out, inputs, by_out.to(torch.bfloat16).to(dtype))

    def plain(q, k, v):
        out = [None] * 20
        for path in paths:
            query = q[path].permute(1, 2, 0, 3)
            key, value = (x[path].movedim(0, 1)[:, None].expand(-1, 2, -1, -1) for x in (k, v))
            of_row = scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.5).permute(2, 0, 1, 3)
            for node, of_node in zip(path.tolist(), of_row, strict=True):
                out[node] = of_node
        return torch.stack(out)

    expected = gradients(plain, torch.float64)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        found = gradients(lambda *x: row_attention.RowAttention.apply(*x, rows, 0.5), dtype)
        assert (
            max(float((x - y).detach().norm() / y.detach().norm()) for x, y in zip(found, expected, strict=True))
            < tolerance
        )


def test_chosen_for_a_wide_model_that_agrees(make_policy, monkeypatch):
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    backbone = make_policy(family="llama").model.base_model
    assert choose_tree_attention(backbone, ids, torch.float32) == "masked"
    monkeypatch.setattr(row_attention, "MIN_WIDTH", 32)
    assert choose_tree_attention(backbone, ids, torch.float32) == "rows"
    right = row_attention.RowAttention.backward
    monkeypatch.setattr(
        row_attention.RowAttention, "backward", lambda ctx, *g: tuple(x if x is None else 2 * x for x in right(ctx, *g))
    )
    with pytest.warns(UserWarning, match="in padded rows: over nodes hidden states and gradients differ by"):
        assert choose_tree_attention(backbone, ids, torch.float32) == "masked"


def test_chosen_for_a_new_adapter(make_policy, wide):
    """Half of whose gradients are zero, as its second matrices are."""
    policy = make_policy(family="llama")
    add_lora(policy.model, 2, 4)
    assert choose_tree_attention(policy.model.base_model, [3, 1, 4, 1, 5, 9, 2, 6], torch.float32) == "rows"


def test_whoever_calls_the_model_with_padding_gets_his_mask(make_policy, wide):
    backbone = make_policy(family="llama").model.base_model
    ids, mask = torch.tensor([[7, 7, 3, 4], [1, 2, 3, 4]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    with torch.no_grad():
        expected = backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        compute_hidden_states(backbone, make_batch(), torch.float32, "rows")
        got = backbone(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(got[mask.bool()], expected[mask.bool()])


def test_whatever_is_shared_is_saved():
    batch = make_batch()
    assert [len(part) for part in split_rows(batch, 100, token_cost_of("rows"))] == [7]
    trees = build_trees(batch, always=True, token_cost=token_cost_of("rows"))
    assert len(trees.ids) == 2  # one tree of all that begin alike, and [30, 31]
