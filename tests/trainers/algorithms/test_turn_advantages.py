import pytest
import torch

from trainers.algorithms.turn_advantages import gigpo, turn_advantage, turn_returns


def close(a, b):
    torch.testing.assert_close(a, torch.as_tensor(b), rtol=0, atol=1e-5)


# Trajectory 0: two turns (two tokens and one), paid 1 and 0. Trajectory 1: three turns, paid 0, 2 and 6.
TURNS = torch.tensor([[0, 0, -1, 1, -1], [0, -1, 1, 2, 2]])
REWARDS = torch.tensor([[0.0, 1, 0, 0, 0], [0.0, 0, 2, 0, 6]])
MASK, GROUPS = TURNS >= 0, torch.tensor([3, 3])


def test_turn_returns_by_hand():
    # gamma .5: 0, then 1 + 0 = 1. And 6; 2 + 3 = 5; 0 + 2.5 = 2.5.
    returns, played = turn_returns(REWARDS, TURNS, MASK, 0.5)
    close(returns, [[1.0, 0, 0], [2.5, 5, 6]])
    assert played.tolist() == [[True, True, False], [True, True, True]]


def test_turn_advantage_by_hand():
    # Turn 0: 1 and 2.5, mean 1.75. Turn 1: 0 and 5, mean 2.5. Turn 2 was reached once. Any two numbers have standard
    # deviation |a - b| / sqrt 2, so that scaled they are at -+ .70711.
    plain = turn_advantage(REWARDS, TURNS, MASK, GROUPS, 0.5, scale_by_std=False)
    close(plain, [[-0.75, -0.75, 0, -2.5, 0], [0.75, 0, 2.5, 0, 0]])
    scaled = turn_advantage(REWARDS, TURNS, MASK, GROUPS, 0.5)
    close(scaled, [[-0.70711, -0.70711, 0, -0.70711, 0], [0.70711, 0, 0.70711, 0, 0]])
    assert not turn_advantage(REWARDS, TURNS, MASK, torch.tensor([1, 2]), 0.5).any()


# Three attempts at one question, two turns of one token each, and a stranger in another group who was in state x too.
G_TURNS = torch.tensor([[0, 1]] * 4)
G_REWARDS = torch.tensor([[0.0, 1], [0, 0], [0, 0], [0, 9]])
G_GROUPS, G_ANCHORS = torch.tensor([0, 0, 0, 1]), [["s", "x"], ["s", "y"], ["s", "x"], ["s", "x"]]


def test_gigpo_by_hand():
    # Episodes: returns 1, 0, 0: 2/3, -1/3, -1/3. Turn returns at gamma .5: (.5, 1), (0, 0), (0, 0).
    # State s: .5, 0, 0, mean 1/6: 1/3, -1/6, -1/6. State x: 1 and 0: .5, -.5. State y: alone, 0. The stranger: 0.
    ours = gigpo(G_REWARDS, G_TURNS, G_TURNS >= 0, G_GROUPS, G_ANCHORS, 0.5)
    close(ours, [[1, 7 / 6], [-0.5, -1 / 3], [-0.5, -5 / 6], [0, 0]])
    half = gigpo(G_REWARDS, G_TURNS, G_TURNS >= 0, G_GROUPS, G_ANCHORS, 0.5, step_weight=0.5)
    close(half, [[2 / 3 + 1 / 6, 2 / 3 + 1 / 4], [-5 / 12, -1 / 3], [-5 / 12, -1 / 3 - 1 / 4], [0, 0]])


def test_episodes_in_error_are_in_no_comparison():
    valid = torch.tensor([True, True, False, True])
    anchors = [*G_ANCHORS[:2], [], G_ANCHORS[3]]  # an episode in error need not have anchors
    rewards = G_REWARDS.clone()
    rewards[2] = torch.nan
    ours = gigpo(rewards, G_TURNS, G_TURNS >= 0, G_GROUPS, anchors, 0.5, valid=valid)
    close(ours, [[0.75, 0.5], [-0.75, -0.5], [0, 0], [0, 0]])
    ours = turn_advantage(rewards, G_TURNS, G_TURNS >= 0, G_GROUPS, 0.5, False, valid)
    close(ours, [[0.25, 0.5], [-0.25, -0.5], [0, 0], [0, 0]])


def test_equal_returns_give_exactly_zero_in_any_order():
    """.1 + .2 + .3 is not .3 + .2 + .1 in single precision."""
    paid = torch.tensor([[0.1, 0.2, 0.3, 1.0], [0.3, 0.2, 0.1, 1.0], [0.2, 0.3, 0.1, 1.0], [0.3, 0.1, 0.2, 1.0]])
    turns, mask, groups = (
        torch.arange(4).expand(4, 4),
        torch.ones(4, 4, dtype=torch.bool),
        torch.zeros(4, dtype=torch.long),
    )
    assert turn_advantage(paid, turns, mask, groups, 1.0, True)[:, 0].eq(0).all()
    assert gigpo(paid, turns, mask, groups, [[None] * 4] * 4, 1.0, scale_by_std=True).eq(0).all()


@pytest.mark.parametrize(
    ("anchors", "message"),
    [([["s", "x"]] * 3, "3 lists of anchors for 4"), ([["s", "x"]] * 3 + [["s"]], "trajectory 3 has 1 anchors")],
)
def test_missing_anchors_are_named(anchors, message):
    with pytest.raises(ValueError, match=message):
        gigpo(G_REWARDS, G_TURNS, G_TURNS >= 0, G_GROUPS, anchors)
