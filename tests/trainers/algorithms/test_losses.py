import math

import pytest
import torch

from trainers.algorithms import losses


def test_the_dual_clip_by_hand():
    # A = -2 and c = 3 bound the loss at 6: ratios 2 and 4 weigh 4 and 6 where without it they weigh 4 and 8. A = 1 is as before.
    logprobs = torch.tensor([0.5, 2.0, 4.0]).log().repeat(2, 1).requires_grad_()
    advantages = torch.tensor([[-2.0], [1.0]]).expand(2, 3)
    loss = losses.clipped_policy_loss(logprobs, torch.zeros(2, 3), advantages, 0.2, 0.28, dual_clip=3.0)
    torch.testing.assert_close(loss, torch.tensor([[1.6, 4, 6], [-0.5, -1.28, -1.28]]))
    loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([[0.0, 4, 0], [-0.5, 0, 0]]))


@pytest.mark.parametrize("nats", [21.0, 50.0, 1e4])
def test_a_token_far_off_policy_has_a_bounded_loss_and_no_gradient(nats):
    logprobs = torch.tensor([[nats]], requires_grad=True)
    bounded = [
        losses.clipped_policy_loss(logprobs, torch.zeros(1, 1), torch.tensor([[-1.0]]), 0.2, 0.28),
        losses.kl_k3(-logprobs, torch.zeros(1, 1)),
    ]
    for loss in bounded:
        assert 0 < loss.item() <= math.exp(20) * (1 + 1e-6)
        (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
        assert gradient.item() == 0
    cispo = losses.cispo_loss(logprobs, torch.zeros(1, 1), torch.tensor([[1.0]]), 0.2, 0.28)
    assert cispo.item() == pytest.approx(-1.28 * nats)


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
def test_what_is_outside_the_mask_does_not_leak(poison):
    loss = torch.tensor([[1.0, poison, 4.0]], requires_grad=True)
    total = losses.aggregate(loss, torch.tensor([[True, False, True]]), 2)
    assert total.item() == 2.5
    total.backward()
    assert loss.grad.tolist() == [[0.5, 0.0, 0.5]]


def test_the_ratio_of_an_episode_of_two_rows_by_hand():
    # Log ratios .3 and -.1 in one row and .4 in another of the same episode: .6 / 3 = .2 for both; .5 alone in a third.
    logprobs = torch.tensor([[0.3, -0.1, 9.0], [9.0, 0.4, 0.0], [0.5, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [False, True, False], [True, False, False]])
    sequence = torch.tensor([3, 3, 1]), torch.tensor([0.4, 0.2, 0.0])
    got = losses.sequence_log_ratio(logprobs, torch.zeros(3, 3), mask, *sequence)
    torch.testing.assert_close(got, torch.tensor([[0.2], [0.2], [0.5]]))
    # e^.2 = 1.2214 and e^.5 = 1.6487: above 1.3 is the third alone.
    clipped = losses.is_clipped("gspo", logprobs, torch.zeros(3, 3), mask, 0.3, 0.3, *sequence)
    assert clipped[:, 0].tolist() == [False, False, True]


def test_entropy_by_hand_and_its_gradient_with_tokens_ruled_out():
    # .5, .25, .25: .5 log 2 + .5 log 4 = 1.5 log 2 = 1.039721; the last token is impossible.
    logits = torch.tensor([[0.5, 0.25, 0.25, 0.0]]).log().requires_grad_()
    found = losses.entropy(logits.log_softmax(-1))
    torch.testing.assert_close(found, torch.tensor([1.039721]))
    found.sum().backward()
    # dH/dlogit_v = -p_v (log p_v + H)
    torch.testing.assert_close(logits.grad, torch.tensor([[-0.173287, 0.086643, 0.086643, 0.0]]), rtol=0, atol=1e-5)


def test_sequence_mean_by_hand():
    # Row means 3 and 8, and an empty row: 11 / 3. As one sequence of three tokens, with an empty one: (2 + 4 + 8) / 3 / 2.
    loss = torch.tensor([[2.0, 99.0, 4.0], [8.0, math.nan, 1.0], [5.0, 5.0, 5.0]])
    mask = torch.tensor([[True, False, True], [True, False, False], [False, False, False]])
    assert losses.sequence_mean(loss, mask, 3).item() == pytest.approx(11 / 3)
    assert losses.sequence_mean(loss, mask, 2, episode_tokens=torch.tensor([3, 3, 0])).item() == pytest.approx(14 / 6)
