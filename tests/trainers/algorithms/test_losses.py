import math

import pytest
import torch

from trainers.algorithms.losses import (
    aggregate,
    cispo_loss,
    clipped_policy_loss,
    entropy,
    gspo_loss,
    is_clipped,
    kl_k1,
    kl_k2,
    kl_k3,
    sequence_log_ratio,
    sequence_mean,
    value_loss,
)


def test_the_clipped_loss_by_hand():
    # Ratios .5, 1, 1.25, 2 with A = 1, then with A = -2; clip low .2, high .28, so the range is [.8, 1.28].
    # A = 1:  min(.5, .8) = .5;  min(1, 1) = 1;  min(1.25, 1.25) = 1.25;  min(2, 1.28) = 1.28
    # A = -2: min(-1, -1.6) = -1.6;  min(-2, -2) = -2;  min(-2.5, -2.5) = -2.5;  min(-4, -2.56) = -4
    logprobs = torch.tensor([0.5, 1, 1.25, 2]).log().repeat(2, 1)
    advantages = torch.tensor([[1.0], [-2.0]]).expand(2, 4)
    loss = clipped_policy_loss(logprobs, torch.zeros(2, 4), advantages, 0.2, 0.28)
    expected = torch.tensor([[-0.5, -1, -1.25, -1.28], [1.6, 2, 2.5, 4]])
    torch.testing.assert_close(loss, expected)


def test_the_dual_clip_by_hand():
    # A = -2 and c = 3 bound the loss at 6: ratios 2 and 4 weigh 4 and 6 where without it they weigh 4 and 8. A = 1 is as before.
    logprobs = torch.tensor([0.5, 2.0, 4.0]).log().repeat(2, 1).requires_grad_()
    advantages = torch.tensor([[-2.0], [1.0]]).expand(2, 3)
    loss = clipped_policy_loss(logprobs, torch.zeros(2, 3), advantages, 0.2, 0.28, dual_clip=3.0)
    torch.testing.assert_close(loss, torch.tensor([[1.6, 4, 6], [-0.5, -1.28, -1.28]]))
    loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([[0.0, 4, 0], [-0.5, 0, 0]]))


@pytest.mark.parametrize("nats", [21.0, 50.0, 1e4])
def test_a_token_far_off_policy_has_a_bounded_loss_and_no_gradient(nats):
    logprobs = torch.tensor([[nats]], requires_grad=True)
    losses = [
        clipped_policy_loss(logprobs, torch.zeros(1, 1), torch.tensor([[-1.0]]), 0.2, 0.28),
        kl_k3(-logprobs, torch.zeros(1, 1)),
    ]
    for loss in losses:
        assert 0 < loss.item() <= math.exp(20) * (1 + 1e-6)
        (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
        assert gradient.item() == 0
    cispo = cispo_loss(logprobs, torch.zeros(1, 1), torch.tensor([[1.0]]), 0.2, 0.28)
    assert cispo.item() == pytest.approx(-1.28 * nats)


def test_k3_by_hand():
    # d = log(reference) - log(policy) = log 2: exp(d) - d - 1 = 2 - .6931 - 1 = .3069; d = -log 2: .5 + .6931 - 1 = .1931
    policy = torch.tensor([0.2, 0.4, 0.3]).log()
    reference = torch.tensor([0.4, 0.2, 0.3]).log()
    torch.testing.assert_close(kl_k3(policy, reference), torch.tensor([0.306853, 0.193147, 0.0]))


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
def test_what_is_outside_the_mask_does_not_leak(poison):
    loss = torch.tensor([[1.0, poison, 4.0]], requires_grad=True)
    total = aggregate(loss, torch.tensor([[True, False, True]]), 2)
    assert total.item() == 2.5
    total.backward()
    assert loss.grad.tolist() == [[0.5, 0.0, 0.5]]


def test_gspo_by_hand():
    # Log ratios .2 and 0 (and one outside the mask): their mean is .1, s = exp(.1) = 1.10517.
    # A = 2, clip .05: min(2.21034, 2 x 1.05) = 2.1, no gradient. A = -2: min(-2.21034, -2.1) = -2.21034, gradient s A.
    mask = torch.tensor([[True, True, False]])
    for advantage, value, slope in ((2.0, -2.1, 0.0), (-2.0, 2.21034, 2.21034)):
        logprobs = torch.tensor([[-0.8, -2.0, -9.0]], requires_grad=True)
        loss = gspo_loss(logprobs, torch.tensor([[-1.0, -2.0, 5.0]]), torch.full((1, 3), advantage), mask, 0.05, 0.05)
        torch.testing.assert_close(loss[mask], torch.tensor([value, value]), rtol=0, atol=1e-5)
        aggregate(loss, mask, 1).backward()
        torch.testing.assert_close(logprobs.grad, torch.tensor([[slope, slope, 0.0]]), rtol=0, atol=1e-5)


def test_the_ratio_of_an_episode_of_two_rows_by_hand():
    # Log ratios .3 and -.1 in one row and .4 in another of the same episode: .6 / 3 = .2 for both; .5 alone in a third.
    logprobs = torch.tensor([[0.3, -0.1, 9.0], [9.0, 0.4, 0.0], [0.5, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [False, True, False], [True, False, False]])
    sequence = torch.tensor([3, 3, 1]), torch.tensor([0.4, 0.2, 0.0])
    got = sequence_log_ratio(logprobs, torch.zeros(3, 3), mask, *sequence)
    torch.testing.assert_close(got, torch.tensor([[0.2], [0.2], [0.5]]))
    # e^.2 = 1.2214 and e^.5 = 1.6487: above 1.3 is the third alone.
    clipped = is_clipped("gspo", logprobs, torch.zeros(3, 3), mask, 0.3, 0.3, *sequence)
    assert clipped[:, 0].tolist() == [False, False, True]


def test_cispo_by_hand_keeps_the_gradient_of_clipped_tokens():
    # Ratios .5, 1, 3, weights capped at 2: .5, 1, 2; with A = 2 the loss is -2 w log pi and its gradient -2 w.
    logprobs = torch.tensor([0.5, 1.0, 3.0]).log().requires_grad_()
    loss = cispo_loss(logprobs, torch.zeros(3), torch.full((3,), 2.0), 1.0, 1.0)
    torch.testing.assert_close(loss, torch.tensor([0.693147, 0.0, -4.394449]))
    loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([-1.0, -2.0, -4.0]))


def test_the_value_loss_by_hand():
    # V = 1, old 0, G = 2, clip .5: clipped V = .5; max(1, 2.25) / 2 = 1.125, no gradient. V = .25: unclipped,
    # 1.75 squared / 2 = 1.53125, gradient -1.75. V = -1: clipped -.5, max(9, 6.25) / 2 = 4.5, gradient -3.
    values = torch.tensor([1.0, 0.25, -1.0], requires_grad=True)
    loss = value_loss(values, torch.zeros(3), torch.full((3,), 2.0), 0.5)
    torch.testing.assert_close(loss, torch.tensor([1.125, 1.53125, 4.5]))
    loss.sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([0.0, -1.75, -3.0]))
    plain = value_loss(values, torch.zeros(3), torch.full((3,), 2.0), math.inf)
    torch.testing.assert_close(plain, 0.5 * (values - 2) ** 2)


def test_k1_and_k2_by_hand():
    # log(.4 / .2) = .693147, squared / 2 = .240227.
    policy, reference = torch.tensor([0.4, 0.2, 0.3]).log().requires_grad_(), torch.tensor([0.2, 0.4, 0.3]).log()
    torch.testing.assert_close(kl_k1(policy, reference), torch.tensor([0.693147, -0.693147, 0.0]))
    torch.testing.assert_close(kl_k2(policy, reference), torch.tensor([0.240227, 0.240227, 0.0]))
    assert not kl_k1(policy, reference).requires_grad


def test_the_expected_gradients_of_the_kl_estimates():
    """Over all tokens of a vocabulary: k2's is that of KL(policy | reference), k3's that of KL(reference | policy), and
    k1, if it had one, would have none in expectation."""
    torch.manual_seed(0)
    logits, other = torch.randn(2, 11, dtype=torch.float64).unbind(0)
    logits.requires_grad_()
    p, q = logits.log_softmax(0), other.log_softmax(0)
    sampled = p.exp().detach()

    def gradient(value):
        return torch.autograd.grad(value, logits, retain_graph=True)[0]

    forward, backward = gradient((p.exp() * (p - q)).sum()), gradient((q.exp() * (q - p)).sum())
    torch.testing.assert_close(gradient((sampled * kl_k2(p, q)).sum()), forward)
    torch.testing.assert_close(gradient((sampled * kl_k3(p, q)).sum()), backward)
    assert (forward - backward).abs().max() > 0.05
    torch.testing.assert_close(gradient((sampled * (p - q)).sum()), torch.zeros_like(forward))


def test_entropy_by_hand_and_its_gradient_with_tokens_ruled_out():
    # .5, .25, .25: .5 log 2 + .5 log 4 = 1.5 log 2 = 1.039721; the last token is impossible.
    logits = torch.tensor([[0.5, 0.25, 0.25, 0.0]]).log().requires_grad_()
    found = entropy(logits.log_softmax(-1))
    torch.testing.assert_close(found, torch.tensor([1.039721]))
    found.sum().backward()
    # dH/dlogit_v = -p_v (log p_v + H)
    torch.testing.assert_close(logits.grad, torch.tensor([[-0.173287, 0.086643, 0.086643, 0.0]]), rtol=0, atol=1e-5)


def test_sequence_mean_by_hand():
    # Row means 3 and 8, and an empty row: 11 / 3. As one sequence of three tokens, with an empty one: (2 + 4 + 8) / 3 / 2.
    loss = torch.tensor([[2.0, 99.0, 4.0], [8.0, math.nan, 1.0], [5.0, 5.0, 5.0]])
    mask = torch.tensor([[True, False, True], [True, False, False], [False, False, False]])
    assert sequence_mean(loss, mask, 3).item() == pytest.approx(11 / 3)
    assert sequence_mean(loss, mask, 2, sequence_tokens=torch.tensor([3, 3, 0])).item() == pytest.approx(14 / 6)
