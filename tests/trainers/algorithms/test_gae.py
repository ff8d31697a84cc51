import pytest
import torch

from trainers.algorithms.gae import bi_level_gae, gae, returns_to_go, turn_level_gae


def close(a, b):
    torch.testing.assert_close(a, torch.as_tensor(b), rtol=0, atol=1e-6)


def test_returns_to_go_by_hand():
    # 1, 0, 2 at gamma .5: 2; 0 + .5 x 2 = 1; 1 + .5 x 1 = 1.5.
    rewards, mask = torch.tensor([[1.0, 0.0, 2.0, 0.0]]), torch.tensor([[True, True, True, False]])
    close(returns_to_go(rewards, mask, 0.5), [[1.5, 1.0, 2.0, 0.0]])
    close(returns_to_go(rewards, mask), [[3.0, 2.0, 2.0, 0.0]])


def test_gae_by_hand():
    # gamma = lambda = .5, own tokens r = 0, 1, 2 and V = .5, 1, .25; a tool's token and padding in between.
    # delta 3 = 2 - .25 = 1.75;            A 3 = 1.75
    # delta 2 = 1 + .5 x .25 - 1 = .125;   A 2 = .125 + .25 x 1.75 = .5625
    # delta 1 = 0 + .5 x 1 - .5 = 0;       A 1 = 0 + .25 x .5625 = .140625
    rewards = torch.tensor([[0.0, 0, 1, 0, 2, 0]])
    values = torch.tensor([[0.5, torch.nan, 1, 1e9, 0.25, torch.inf]])
    mask = torch.tensor([[True, False, True, False, True, False]])
    advantages, targets = gae(rewards, values, mask, 0.5, 0.5)
    close(advantages, [[0.140625, 0, 0.5625, 0, 1.75, 0]])
    close(targets, [[0.640625, 0, 1.5625, 0, 2.0, 0]])


# Two turns of two tokens, the first one without a reward; a tool's token between them, another behind the end.
TURNS = torch.tensor([[0, 0, -1, 1, 1, -1]])
REWARDS, VALUES = torch.tensor([[0.0, 0, 0, 0, 1, 0]]), torch.tensor([[0.5, 0.25, torch.nan, 0.75, 0.5, torch.nan]])


def test_bi_level_gae_by_hand():
    # gamma = lambda = .5, turn gamma .8, turn lambda .5.
    # turns:  A_2 = 1 - .5 = .5                              A_1 = 0 + .8 x .5 - .25 + .4 x .5 = .35
    # tokens: second turn: .5 at its end; before it .5 x .5 - .75 + .25 x .5 = -.375
    #         first turn: .35 at its end; before it .5 x .25 - .5 + .25 x .35 = -.2875
    advantages, targets = bi_level_gae(REWARDS, VALUES, TURNS, TURNS >= 0, 0.5, 0.5, 0.8, 0.5)
    close(advantages, [[-0.2875, 0.35, 0, -0.375, 0.5, 0]])
    close(targets, [[0.2125, 0.6, 0, 0.375, 1.0, 0]])


def test_a_kl_penalty_inside_a_turn_stays_inside():
    # As above with -1 at the first token of each turn: A there is 1 lower, and nothing else moves.
    rewards = REWARDS + torch.tensor([[-1.0, 0, 0, -1, 0, 0]])
    advantages, _ = bi_level_gae(rewards, VALUES, TURNS, TURNS >= 0, 0.5, 0.5, 0.8, 0.5)
    close(advantages, [[-1.2875, 0.35, 0, -1.375, 0.5, 0]])


def random(n=5, a=12, seed=0):
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(n, a, generator=g) < 0.7
    rewards, values = torch.randn(2, n, a, generator=g, dtype=torch.float64).unbind(0)
    return rewards * mask, values, mask


def test_a_critic_in_half_precision_does_not_round_the_discounts():
    rewards, values, mask = random()
    values = values.bfloat16()
    turns = mask.cumsum(1)
    rewards = rewards.float()
    for half, full in (
        (gae(rewards, values, mask, 0.99, 0.95), gae(rewards, values.float(), mask, 0.99, 0.95)),
        (bi_level_gae(rewards, values, turns, mask), bi_level_gae(rewards, values.float(), turns, mask)),
    ):
        assert all(torch.equal(a, b) for a, b in zip(half, full, strict=True))


def test_no_gradient_reaches_the_critic_through_its_targets():
    rewards, values, mask = random()
    values.requires_grad_()
    for estimate in (gae(rewards, values, mask), bi_level_gae(rewards, values, mask.long() - 1, mask)):
        assert not any(x.requires_grad for x in estimate)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": torch.tensor([[0.0, 0, 3, 0, 1, 0]])}, "outside the action mask would be lost"),
        ({"rewards": torch.tensor([[0, 0, 0, 0, 1, 0]])}, "rewards must be floats"),
        ({"rewards": torch.tensor([[0.0, 0, 0, 0, torch.nan, 0]])}, "a reward is not finite"),
        ({"mask": torch.ones(1, 6)}, "must be bool"),
        ({"mask": torch.ones(1, 5).bool()}, "of the rewards' shape"),
        ({"valid": torch.tensor([True, False])}, r"valid must be bool \[1\]"),
        ({"turns": torch.tensor([[0, -1, -1, 1, 1, -1]])}, "belongs to no turn"),
        ({"turns": torch.tensor([[1, 1, -1, 0, 0, -1]])}, "in the order they were taken"),
        ({"turns": torch.tensor([[1, 1]])}, "turns must be of the mask's shape"),
    ],
)
def test_bad_input_is_refused(change, message):
    good = {"rewards": REWARDS, "values": VALUES, "turns": TURNS, "mask": TURNS >= 0}
    with pytest.raises(ValueError, match=message):
        bi_level_gae(**(good | change))


def test_turn_level_gae_by_hand():
    # Two turns of two tokens with a gap between; r_0 = .1 + 0, r_1 = 1; V_0 = .5, V_1 = .2; gamma .9, lambda .5:
    # A_1 = 1 - .2 = .8;  A_0 = .1 + .9 * .2 - .5 + .45 * .8 = .14. Targets: .64 and 1. Values inside a turn are not read.
    rewards = torch.tensor([[0.1, 0.0, 0.0, 0.0, 1.0, 0.0]])
    values = torch.tensor([[0.5, 9.0, float("nan"), 0.2, 9.0, float("nan")]])
    turns = torch.tensor([[0, 0, -1, 1, 1, -1]])
    advantages, targets = turn_level_gae(rewards, values, turns, turns >= 0, 0.9, 0.5)
    torch.testing.assert_close(advantages, torch.tensor([[0.14, 0.14, 0, 0.8, 0.8, 0]]))
    torch.testing.assert_close(targets, torch.tensor([[0.64, 0.64, 0, 1.0, 1.0, 0]]))
