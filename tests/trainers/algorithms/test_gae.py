import pytest
import torch

from trainers.algorithms.gae import bi_level_gae, gae

# Two turns of two tokens, the first one without a reward; a tool's token between them, another behind the end.
TURNS = torch.tensor([[0, 0, -1, 1, 1, -1]])
REWARDS, VALUES = torch.tensor([[0.0, 0, 0, 0, 1, 0]]), torch.tensor([[0.5, 0.25, torch.nan, 0.75, 0.5, torch.nan]])


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
