import pytest
import torch

from trainers.algorithms.advantages import compare_groups
from trainers.algorithms.group_filters import mixed_groups, most_signal, most_uncertain

# Groups 8, 1, 5, 2 with deviations .70711, 0, 1.41421, .35355; their sum is 2.47487.
GROUPS = torch.tensor([8, 1, 5, 2, 8, 1, 5, 2])
RETURNS = torch.tensor([0.0, 0.1, 0.0, 0.0, 1.0, 0.1, 2.0, 0.5])


def kept(selection):
    return sorted(set(GROUPS[selection].tolist()))


def test_deviations_by_hand():
    _, deviation, index = compare_groups(RETURNS, GROUPS)
    torch.testing.assert_close(deviation, torch.tensor([0.0, 0.353553, 1.414214, 0.707107]))
    assert index.tolist() == [3, 0, 2, 1] * 2


@pytest.mark.parametrize(
    ("share", "expected"), [(0.25, [5]), (0.01, [5]), (0.5, [5, 8]), (0.74, [5, 8]), (1.0, [2, 5, 8])]
)
def test_starpo_s_keeps_the_most_uncertain(share, expected):
    assert kept(most_uncertain(RETURNS, GROUPS, share)) == expected


@pytest.mark.parametrize(
    # .5 x 2.475 = 1.24 <= 1.414; .8 x 2.475 = 1.98 <= 1.414 + .707 = 2.121; .9 x 2.475 = 2.227 > 2.121
    ("p", "expected"),
    [(0.01, [5]), (0.5, [5]), (0.8, [5, 8]), (0.9, [2, 5, 8]), (1.0, [2, 5, 8])],
)
def test_ragen_2_keeps_groups_until_their_deviations_add_up(p, expected):
    assert kept(most_signal(RETURNS, GROUPS, p)) == expected


def test_rounding_does_not_ask_for_one_group_more():
    groups = torch.arange(10).repeat(2)
    returns = torch.cat([torch.zeros(10), torch.full((10,), 0.3)])
    assert int(most_signal(returns, groups, 0.9).sum()) == 18
    assert int(most_uncertain(returns, groups, 0.3).sum()) == 6
    assert groups[most_uncertain(returns, groups, 0.3)].unique().tolist() == [0, 1, 2]  # of equals the first ones


@pytest.mark.parametrize("select", [mixed_groups, most_uncertain, most_signal])
def test_nothing_is_left_of_zero_std_groups(select):
    assert not select(torch.full((8,), 0.1), GROUPS).any()
    assert not select(RETURNS, torch.arange(8)).any()  # groups of one
    assert not select(torch.full((7,), 1e8 / 3), torch.zeros(7, dtype=torch.long)).any()  # whose mean is rounded
    assert select(RETURNS[:0], GROUPS[:0]).shape == (0,)


@pytest.mark.parametrize("select", [mixed_groups, most_uncertain, most_signal])
def test_an_episode_in_error_neither_counts_nor_stays(select):
    returns, valid = RETURNS.clone(), torch.ones(8, dtype=torch.bool)
    returns[1], valid[1] = torch.nan, False  # group 1 would have the largest deviation of all
    returns[6], valid[6] = 50.0, False  # and of group 5 one attempt is left
    selected = select(returns, GROUPS, valid=valid)
    assert not selected[[1, 2, 5, 6]].any()
    assert selected[[0, 4]].all()
    assert not select(returns, GROUPS, valid=~valid & valid).any()


def test_shares_outside_their_range_are_rejected():
    for select in (most_uncertain, most_signal):
        for share in (0.0, 1.1):
            with pytest.raises(ValueError, match="above 0 and at most 1"):
                select(RETURNS, GROUPS, share)


@pytest.mark.parametrize(
    # Deviations 1.41421, .70711, .35355, 0; .9 of their sum is 2.22738. The first two hold 2.12132, .10607 less.
    ("selection_eps", "expected"),
    [(0.0, [2, 5, 8]), (0.01, [2, 5, 8]), (0.106, [2, 5, 8]), (0.1061, [5, 8]), (0.82, [5]), (2.22, [5]), (2.23, [])],
)
def test_an_epsilon_less_will_do(selection_eps, expected):
    assert kept(most_signal(RETURNS, GROUPS, selection_eps=selection_eps)) == expected
