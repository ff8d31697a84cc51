"""Rows that begin alike are run once, in parts that fit into memory; `test_agreement` says that nothing but the time shows it."""

import pytest
import torch

from trainers.models.hidden_states import token_cost_of
from trainers.models.micro_batches import map_parts, split_rows
from trainers.models.prefix_trees import TOKEN_COST_WITHOUT_MASK, build_trees, group_by_prefix
from trainers.trajectory import Step, Trajectory, collate


def of(*steps):
    return Trajectory(steps=[Step(prompt=p, tokens=t, logprobs=[0.0] * len(t), reward=0.5) for p, t in steps])


@pytest.mark.parametrize("tree_attention", ["masked", "rows"])
def test_the_prompt_of_attempts_at_a_question_is_run_once(make_policy, tree_attention):
    policy, run = make_policy("bytes"), []
    policy.tree_attention = tree_attention
    policy.model.model.layers[0].mlp.register_forward_hook(lambda _, args, __: run.append(args[0].shape[:2].numel()))
    policy.logprobs(collate([of(([5] * 50, [6, 7]))] * 8, policy.pad_id))
    assert run == [52]


def test_what_is_hardly_alike_stays_apart():
    def sizes(rows, **options):
        return [len(tree) for tree, _ in group_by_prefix(rows, **options)]

    assert (
        sizes([[1, 2, *[n] * 3000] for n in range(4)]) == [1] * 4
    )  # attention over 12,000 tokens costs more than it saves
    assert sizes([[1] * 3000 + [n] * 20 for n in range(4)]) == [4]
    assert sizes([[1] * 3000 + [n] * 20 for n in range(4)], max_tokens=3050) == [2, 2]
    assert sizes([[1] * 100 + [n] * 300 for n in range(3)]) == [1] * 3
    assert sizes([[1] * 100 + [n] * 300 for n in range(3)], token_cost=10_000) == [3]
    for kind, counts in {"masked": [1] * 3, "rows": [3], "packed": [3], "fused": [3]}.items():
        assert sizes([[1] * 100 + [n] * 900 for n in range(3)], token_cost=token_cost_of(kind)) == counts


@pytest.mark.parametrize("cost", [1000, TOKEN_COST_WITHOUT_MASK, None])
@pytest.mark.parametrize("max_tokens", [1, 7, 14, 22, 1000])
def test_micro_batches_hold_every_row_once_within_the_limit(max_tokens, cost):
    played = [*(of(([1] * n, [2] * m)) for n, m in ((3, 4), (1, 1), (9, 2))), of(([1, 2], [3]), ([5], [6]))]
    batch = collate(played, pad_id=0)
    parts = [batch[rows] for rows in split_rows(batch, max_tokens, cost)]
    for part in parts:
        ids = part.ids if cost is None else build_trees(part, cost).ids
        assert ids.numel() <= max_tokens or len(part.ids) == 1
    assert sorted(owner for part in parts for owner in part.trajectory.tolist()) == [0, 1, 2, 3, 3]
    assert torch.equal(map_parts(lambda part: part.ids * 1.0, batch, max_tokens, cost), batch.ids.float())
