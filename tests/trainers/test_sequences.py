"""A sequence is an episode, however many rows it has. `test_reference_update` has whole updates of such episodes."""

import numpy as np
import pytest
import torch

from trainers import grpo
from trainers.algorithms.losses import is_clipped, sequence_log_ratio
from trainers.rollouts.batching import count_normalizer, shuffle_minibatches
from trainers.trajectory import Sequence, collate_sequences


@pytest.fixture
def batch():
    """Four episodes of one to three turns, whose rows are their turns."""
    rows, owners = [], []
    for owner, turns in enumerate((3, 1, 2, 3)):
        for turn in range(turns):
            mask = [False, True, True]
            numbers = [-1, turn, turn]
            rows.append(Sequence(ids=[5, 6, 7], mask=mask, logprobs=[0.0] * 3, rewards=[0.0] * 3, turns=numbers))
            owners.append(owner)
    return collate_sequences(rows, owners, 0)


def test_the_ratio_of_a_sequence_by_hand():
    # Log ratios .3 and -.1 in one row and .4 in another of the same episode: .6 / 3 = .2 for both; .5 alone in a third.
    logprobs = torch.tensor([[0.3, -0.1, 9.0], [9.0, 0.4, 0.0], [0.5, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [False, True, False], [True, False, False]])
    sequence = torch.tensor([3, 3, 1]), torch.tensor([0.4, 0.2, 0.0])
    got = sequence_log_ratio(logprobs, torch.zeros(3, 3), mask, *sequence)
    torch.testing.assert_close(got, torch.tensor([[0.2], [0.2], [0.5]]))
    # e^.2 = 1.2214 and e^.5 = 1.6487: above 1.3 is the third alone.
    clipped = is_clipped("gspo", logprobs, torch.zeros(3, 3), mask, 0.3, 0.3, *sequence)
    assert clipped[:, 0].tolist() == [False, False, True]


def test_the_rows_of_an_episode_are_in_one_gradient_step(batch):
    args = grpo.Args(loss="gspo", minibatches=3, epochs=4)
    parts = list(shuffle_minibatches(batch, args, np.random.default_rng(0)))
    assert len(parts) == 12
    for epoch in range(4):
        own = parts[3 * epoch : 3 * epoch + 3]
        assert sorted(torch.cat(own).tolist()) == list(range(9))
        owners = [set(batch.trajectory[rows].tolist()) for rows in own]
        assert sum(map(len, owners)) == 4 == len(set.union(*owners))
        assert [count_normalizer(batch, rows, torch.ones(4, dtype=bool), args) for rows in own] == [
            len(some) for some in owners
        ]


@pytest.mark.parametrize("options", [dict(), dict(loss="gspo")])
def test_episodes_of_one_row_are_shuffled_as_rows(batch, options):
    batch = batch[torch.tensor([0, 3, 4, 6])]
    args = grpo.Args(minibatches=2, epochs=2, **options)
    got = torch.cat(list(shuffle_minibatches(batch, args, np.random.default_rng(7)))).tolist()
    rng = np.random.default_rng(7)
    assert got == [*rng.permutation(4).tolist(), *rng.permutation(4).tolist()]
