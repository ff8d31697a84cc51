import pytest
import torch

from trainers.algorithms.overlong import overlong_penalty
from trainers.models.kl_reference import adaptive_kl_coef


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
