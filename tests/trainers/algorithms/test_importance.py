import pytest
import torch

from trainers.algorithms.importance import masked_importance, sequence_masked_importance, truncated_importance
from trainers.algorithms.overlong import overlong_penalty
from trainers.models.kl_reference import adaptive_kl_coef


def test_token_corrections_by_hand():
    # Weights .4, 1, 4, 6: cut at 2 by TIS; outside [.5, 5] left out by IcePop.
    sampler = torch.tensor([[-1.0, -2.0, -3.0, -4.0]])
    trainer = (sampler + torch.tensor([0.4, 1, 4, 6]).log()).requires_grad_()
    tis, icepop = truncated_importance(trainer, sampler), masked_importance(trainer, sampler)
    torch.testing.assert_close(tis, torch.tensor([[0.4, 1, 2, 2]]))
    torch.testing.assert_close(icepop, torch.tensor([[0.0, 1, 4, 0]]))
    assert not tis.requires_grad
    assert not icepop.requires_grad


def test_the_sequence_correction_by_hand():
    # 2 x .5 x 1.5 = 1.5 is kept, 2 x 1.5 = 3 is not; what is outside the mask does not count; an empty row keeps 1.
    weights = torch.tensor([[2, 0.5, 1.5], [2, 1.5, 0.1], [9.0, 9.0, 9.0]])
    mask = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])
    got = sequence_masked_importance(weights.log(), torch.zeros(3, 3), mask)
    torch.testing.assert_close(got, torch.tensor([[1.5] * 3, [0.0] * 3, [1.0] * 3]))


def test_one_and_the_same_policy_needs_no_correction():
    logprobs = torch.randn(3, 4)
    for weight in (
        truncated_importance(logprobs, logprobs),
        masked_importance(logprobs, logprobs),
        sequence_masked_importance(logprobs, logprobs, torch.ones(3, 4).bool()),
    ):
        assert torch.equal(weight, torch.ones(3, 4))


def test_the_overlong_penalty_by_hand():
    # Up to 10 tokens, over the last 4 of them: 6 and fewer cost nothing, each further token a quarter.
    got = overlong_penalty(torch.tensor([0, 6, 7, 9, 10, 50]), 10, 4)
    torch.testing.assert_close(got, torch.tensor([0.0, 0.0, -0.25, -0.75, -1.0, -1.0]))
    for buffer in (0, 11):
        with pytest.raises(ValueError, match="buffer"):
            overlong_penalty(torch.tensor([1]), 10, buffer)


def test_the_kl_controller_by_hand():
    # 50 % over the target counts as 20 %: x 1.02; 10 % over: x 1.01; far under: x .98; at the target: x 1.
    for kl, expected in ((0.15, 0.102), (0.11, 0.101), (0.0, 0.098), (0.1, 0.1)):
        assert adaptive_kl_coef(0.1, kl, 0.1) == pytest.approx(expected)
