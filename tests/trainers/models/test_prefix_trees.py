"""Rows that begin alike are run once, and nothing but the time shows it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.models.micro_batches import map_parts, split_rows
from trainers.models.prefix_trees import build_trees, group_by_prefix
from trainers.trajectory import Sequence, Step, Trajectory, collate, collate_sequences


def batch_of(rows: list[list[int]]):
    """The second token and every third one after it are the policy's."""
    sequences = [
        Sequence(
            ids=ids, mask=[i % 3 == 1 for i in range(len(ids))], logprobs=[0.0] * len(ids), rewards=[0.0] * len(ids)
        )
        for ids in rows
    ]
    return collate_sequences(sequences, list(range(len(rows))), 0)


tokens = st.lists(st.integers(3, 5), max_size=6)
# few tokens, so that rows branch, end inside each other, and repeat each other
families = st.lists(
    st.tuples(st.sampled_from([[7, 8, 9] * 4, [7, 8], [6] * 9]), tokens).map(lambda x: x[0] + x[1]),
    min_size=1,
    max_size=7,
)


@given(rows=families, seed=st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_trees_hold_each_row_and_each_shared_token_once(rows, seed):
    batch = batch_of(rows)
    trees = build_trees(batch)
    if trees is None:
        return
    ids, positions = trees.ids.flatten(), trees.positions.flatten()
    attends = trees.attention_mask[:, 0]
    width = trees.ids.shape[1]
    for row, length in enumerate(batch.lengths.tolist()):
        path = trees.node_index[row, :length]
        assert ids[path].tolist() == rows[row]
        assert positions[path].tolist() == list(range(length))
        for t in range(length):  # a token attends to those before it in its row and itself, and no other
            number, column = divmod(int(path[t]), width)
            assert (attends[number, column].nonzero()[:, 0] + number * width).tolist() == sorted(path[: t + 1].tolist())
    used = {int(node) for row, n in enumerate(batch.lengths) for node in trees.node_index[row, :n]}
    per_tree = {
        n: {
            tuple(rows[r][: t + 1])
            for r in range(len(rows))
            for t in range(len(rows[r]))
            if int(trees.node_index[r, 0]) // width == n
        }
        for n in range(len(trees.ids))
    }
    assert len(used) == sum(map(len, per_tree.values()))


def test_the_prompt_of_attempts_at_a_question_is_run_once(make_policy, monkeypatch):
    policy = make_policy("bytes")
    assert policy.tree_attention  # tried now, and not in the pass that is counted
    run = []
    policy.model.model.layers[0].mlp.register_forward_hook(lambda _, args, __: run.append(args[0].shape[:2].numel()))
    same = [Trajectory(steps=[Step(prompt=[5] * 50, tokens=[6, 7], logprobs=[0.0] * 2, reward=0.0)]) for _ in range(8)]
    policy.logprobs(collate(same, policy.pad_id))
    assert run == [52]


def test_what_is_hardly_alike_stays_apart():
    rows = [[1, 2, *[n] * 3000] for n in range(4)]
    assert [len(tree) for tree, _ in group_by_prefix(rows)] == [
        1,
        1,
        1,
        1,
    ]  # attention over 12,000 tokens costs more than it saves
    assert [len(tree) for tree, _ in group_by_prefix([[1] * 3000 + [n] * 20 for n in range(4)])] == [4]
    assert [len(tree) for tree, _ in group_by_prefix([[1] * 3000 + [n] * 20 for n in range(4)], 3050)] == [2, 2]


def episodes():
    def of(*steps):
        return Trajectory(steps=[Step(prompt=p, tokens=t, logprobs=[0.0] * len(t), reward=0.5) for p, t in steps])

    same = [of(([1] * n, [2] * m)) for n, m in ((3, 4), (1, 1), (9, 2))]
    return [*same, of(([1, 2], [3]), ([5], [6]))]


@pytest.mark.parametrize("max_tokens", [1, 7, 14, 22, 1000])
def test_micro_batches_hold_every_row_once_within_the_limit(max_tokens):
    batch = collate(episodes(), pad_id=0)
    parts = [batch[rows] for rows in split_rows(batch, max_tokens)]
    for part in parts:
        trees = build_trees(part)
        assert (part.ids if trees is None else trees.ids).numel() <= max_tokens or len(part.ids) == 1
    rows = [part.ids[i, : part.lengths[i]].tolist() for part in parts for i in range(len(part.ids))]
    assert sorted(rows) == sorted(batch.ids[i, : batch.lengths[i]].tolist() for i in range(5))
    assert sum(int(part.mask.sum()) for part in parts) == int(batch.mask.sum())
    assert sorted(owner for part in parts for owner in part.trajectory.tolist()) == [0, 1, 2, 3, 3]
    found = map_parts(lambda part: part.ids * 1.0, batch, max_tokens)
    assert torch.equal(found, batch.ids.float())
