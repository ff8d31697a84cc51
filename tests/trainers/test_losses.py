import math

import pytest
import torch

from trainers.losses import aggregate, clipped_policy_loss, kl_k3


def test_the_clipped_loss_by_hand():
    # Ratios .5, 1, 1.25, 2 with A = 1, then with A = -2; clip low .2, high .28, so the range is [.8, 1.28].
    # A = 1:  min(.5, .8) = .5;  min(1, 1) = 1;  min(1.25, 1.25) = 1.25;  min(2, 1.28) = 1.28
    # A = -2: min(-1, -1.6) = -1.6;  min(-2, -2) = -2;  min(-2.5, -2.5) = -2.5;  min(-4, -2.56) = -4
    logprobs = torch.tensor([0.5, 1, 1.25, 2]).log().repeat(2, 1)
    advantages = torch.tensor([[1.0], [-2.0]]).expand(2, 4)
    loss = clipped_policy_loss(logprobs, torch.zeros(2, 4), advantages, 0.2, 0.28)
    expected = torch.tensor([[-0.5, -1, -1.25, -1.28], [1.6, 2, 2.5, 4]])
    torch.testing.assert_close(loss, expected)


def test_gradient_stops_where_the_clip_holds_and_only_there():
    # d/dlogp of -r A is -r A; a ratio that has already moved as far as the advantage asks for has no gradient.
    logprobs = torch.tensor([[0.5, 2.0], [0.5, 2.0]]).log().requires_grad_()
    advantages = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    clipped_policy_loss(logprobs, torch.zeros(2, 2), advantages, 0.2, 0.28).sum().backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([[-0.5, 0.0], [0.0, 2.0]]))


def test_at_ratio_one_the_gradient_is_that_of_reinforce():
    torch.manual_seed(0)
    logprobs = torch.randn(3, 5).requires_grad_()
    advantages = torch.randn(3, 1).expand(3, 5)
    mask = torch.rand(3, 5) < 0.5
    loss = clipped_policy_loss(logprobs, logprobs.detach(), advantages, 0.2, 0.28)
    (clipped,) = torch.autograd.grad(aggregate(loss, mask, 7), logprobs)
    (reinforce,) = torch.autograd.grad(aggregate(-advantages * logprobs, mask, 7), logprobs)
    torch.testing.assert_close(clipped, reinforce)


def test_without_clipping_it_is_the_importance_weighted_loss():
    torch.manual_seed(0)
    new, old, advantages = torch.randn(3, 4, 4).unbind(0)
    loss = clipped_policy_loss(new, old, advantages, math.inf, math.inf)
    torch.testing.assert_close(loss, -(new - old).exp() * advantages)


def test_k3_by_hand():
    # d = log(reference) - log(policy) = log 2: exp(d) - d - 1 = 2 - .6931 - 1 = .3069; d = -log 2: .5 + .6931 - 1 = .1931
    policy = torch.tensor([0.2, 0.4, 0.3]).log()
    reference = torch.tensor([0.4, 0.2, 0.3]).log()
    torch.testing.assert_close(kl_k3(policy, reference), torch.tensor([0.306853, 0.193147, 0.0]))


def test_k3_is_never_negative_and_its_gradient_is_one_minus_the_ratio():
    policy = torch.linspace(-8, 0, 50, dtype=torch.float64).requires_grad_()
    reference = torch.linspace(-1, -7, 50, dtype=torch.float64)
    kl = kl_k3(policy, reference)
    assert (kl >= 0).all()
    kl.sum().backward()
    torch.testing.assert_close(policy.grad, 1 - (reference - policy.detach()).exp())


def test_k3_estimates_the_kl_divergence():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    expected = (p * (p / q).log()).sum()
    torch.testing.assert_close((p * kl_k3(p.log(), q.log())).sum(), expected)


def test_aggregate_by_hand():
    loss = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
    mask = torch.tensor([[True, False, True], [False, False, True]])
    assert aggregate(loss, mask, 3).item() == pytest.approx(37 / 3)


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
def test_what_is_outside_the_mask_does_not_leak(poison):
    loss = torch.tensor([[1.0, poison, 4.0]], requires_grad=True)
    total = aggregate(loss, torch.tensor([[True, False, True]]), 2)
    assert total.item() == 2.5
    total.backward()
    assert loss.grad.tolist() == [[0.5, 0.0, 0.5]]
