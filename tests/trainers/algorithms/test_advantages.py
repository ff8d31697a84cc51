"""Advantages at the edges; `test_reference_update` has their numbers, `tests/invariants` what holds of any."""

import pytest
import torch

from trainers.algorithms.advantages import group_advantage, leave_one_out, reinforce_plus_plus, whiten


def test_no_episodes_at_all():
    nothing, none = torch.tensor([]), torch.tensor([], dtype=torch.long)
    assert group_advantage(nothing, none).shape == leave_one_out(nothing, none).shape == (0,)
    mask = torch.zeros(2, 0, dtype=torch.bool)
    assert reinforce_plus_plus(torch.zeros(2, 0), mask).shape == (2, 0)


@pytest.mark.parametrize("value", [0.1, 1e8, -1 / 3])
def test_whitening_equal_values_one_value_or_none_gives_exact_zeros(value):
    values = torch.full((3, 7), value)
    for tokens in (21, 1, 0):
        mask = torch.arange(21).view(3, 7) < tokens
        assert not whiten(values, mask).any()
