import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainers.advantage import group_advantage


def test_by_hand():
    # Group 7: returns 1, 0, 0.5, mean .5, deviations .5, -.5, 0; std sqrt((.25 + .25 + 0) / 2) = .5.
    # Group 3: returns 4, 2, mean 3, deviations 1, -1; std sqrt((1 + 1) / 1) = 1.4142.
    returns, groups = torch.tensor([1.0, 4.0, 0.0, 0.5, 2.0]), torch.tensor([7, 3, 7, 7, 3])
    torch.testing.assert_close(group_advantage(returns, groups), torch.tensor([0.5, 1, -0.5, 0, -1]))
    scaled = group_advantage(returns, groups, scale_by_std=True)
    torch.testing.assert_close(scaled, torch.tensor([1, 0.70711, -1, 0, -0.70711]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("value", [0.0, 0.1, -1 / 3, 1000.1, 1e8])
def test_equal_returns_give_exactly_zero(value, scale):
    """Also where rounding moves their mean: a tiny difference over a tiny deviation would be a large advantage."""
    for size in (1, 3, 7, 8):
        returns, groups = torch.full((size + 2,), value), torch.tensor([0] * size + [1, 1])
        assert group_advantage(returns, groups, scale).tolist() == [0.0] * (size + 2)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-20, 20)), min_size=1, max_size=20))
def test_identities(pairs):
    groups = torch.tensor([group for group, _ in pairs])
    returns = torch.tensor([value / 4 for _, value in pairs])
    advantages = group_advantage(returns, groups)
    for group in groups.unique():
        rows = groups == group
        assert abs(advantages[rows].sum().item()) < 1e-4
        expected = returns[rows] - returns[rows].mean()
        torch.testing.assert_close(advantages[rows], expected, rtol=0, atol=1e-5)
    shifted = group_advantage(returns + 3.0 * groups, groups)  # what every attempt at a question got is nobody's merit
    torch.testing.assert_close(shifted, advantages, rtol=0, atol=1e-5)
    order = torch.randperm(len(groups))
    torch.testing.assert_close(group_advantage(returns[order], groups[order]), advantages[order], rtol=0, atol=1e-5)
