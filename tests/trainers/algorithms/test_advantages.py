import pytest
import torch

from trainers.algorithms.advantages import (
    episode_returns,
    group_advantage,
    leave_one_out,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    to_tokens,
    whiten,
)


def test_by_hand():
    # Group 7: returns 1, 0, 0.5, mean .5, deviations .5, -.5, 0; std sqrt((.25 + .25 + 0) / 2) = .5.
    # Group 3: returns 4, 2, mean 3, deviations 1, -1; std sqrt((1 + 1) / 1) = 1.4142.
    returns, groups = torch.tensor([1.0, 4.0, 0.0, 0.5, 2.0]), torch.tensor([7, 3, 7, 7, 3])
    torch.testing.assert_close(group_advantage(returns, groups), torch.tensor([0.5, 1, -0.5, 0, -1]))
    scaled = group_advantage(returns, groups, scale_by_std=True)
    torch.testing.assert_close(scaled, torch.tensor([1, 0.70711, -1, 0, -0.70711]), rtol=0, atol=1e-4)


def close(a, b):
    torch.testing.assert_close(a, torch.tensor(b), rtol=0, atol=1e-5)


def test_leave_one_out_by_hand():
    # Returns 1, 0, .5: the others' means are .25, .75, .5. Returns 4, 2: 2 and 4. A single attempt has no others.
    returns, groups = torch.tensor([1.0, 4.0, 0.0, 0.5, 2.0, 9.0]), torch.tensor([7, 3, 7, 7, 3, 5])
    close(leave_one_out(returns, groups), [0.75, 2.0, -0.75, 0.0, -2.0, 0.0])


def test_no_episodes_at_all():
    nothing, none = torch.tensor([]), torch.tensor([], dtype=torch.long)
    assert group_advantage(nothing, none).shape == leave_one_out(nothing, none).shape == (0,)
    mask = torch.zeros(2, 0, dtype=torch.bool)
    assert reinforce_plus_plus(torch.zeros(2, 0), mask).shape == (2, 0)


def test_whiten_by_hand():
    # 1, 2, 6: mean 3, deviations -2, -1, 3; std sqrt((4 + 1 + 9) / 2) = 2.64575.
    values, mask = torch.tensor([[1.0, torch.nan, 2.0], [6.0, 77.0, torch.inf]]), torch.tensor([[1, 0, 1], [1, 0, 0]])
    close(whiten(values, mask.bool()), [[-0.755929, 0, -0.377964], [1.133893, 0, 0]])


@pytest.mark.parametrize("value", [0.1, 1e8, -1 / 3])
def test_whitening_equal_values_one_value_or_none_gives_exact_zeros(value):
    values = torch.full((3, 7), value)
    for tokens in (21, 1, 0):
        mask = torch.arange(21).view(3, 7) < tokens
        assert not whiten(values, mask).any()


MASK = torch.tensor([[True, True, False], [True, False, False]])
REWARDS = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])


def test_reinforce_plus_plus_by_hand():
    # With KL .5, .25 | 1 at beta .4 the rewards are -.2, .9 | -.4; returns .7, .9 | -.4; mean .4; deviations
    # .3, .5, -.8; std sqrt((.09 + .25 + .64) / 2) = .7.
    kl = torch.tensor([[0.5, 0.25, torch.nan], [1.0, 9.0, 9.0]])
    close(reinforce_plus_plus(REWARDS, MASK, kl, 0.4), [[0.428571, 0.714286, 0], [-1.142857, 0, 0]])
    with pytest.raises(ValueError, match="there is no kl"):
        reinforce_plus_plus(REWARDS, MASK, kl_coef=0.4)


def test_reinforce_plus_plus_baseline_by_hand():
    # Returns 1, 0, centred .5, -.5; over tokens .5, .5, -.5: mean 1/6, deviations 1/3, 1/3, -2/3,
    # std sqrt((1/9 + 1/9 + 4/9) / 2) = .57735.
    centred = reinforce_plus_plus_baseline(REWARDS, MASK, torch.tensor([4, 4]))
    close(centred, [[0.57735, 0.57735, 0], [-1.154701, 0, 0]])
    assert not reinforce_plus_plus_baseline(REWARDS, MASK, torch.tensor([4, 5])).any()


def test_returns_and_back_to_tokens():
    close(episode_returns(REWARDS, MASK), [1.0, 0.0])
    close(to_tokens(torch.tensor([2.0, -1.0]), MASK), [[2.0, 2.0, 0], [-1.0, 0, 0]])
