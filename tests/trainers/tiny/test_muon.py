import pytest
import torch

from trainers.tiny import muon


def make_matrices() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in ((32, 32), (64, 32), (32, 64), (32, 32))]


@pytest.mark.parametrize("has_products", (True, False))
def test_steps_are_those_of_torch(monkeypatch, has_products):
    """To the rounding of bfloat16, in which PyTorch's computes: 1 % of what three steps add up to."""
    monkeypatch.setattr(muon, "has_bfloat16_products", lambda device: has_products)
    own, reference = make_matrices(), make_matrices()
    optimizers = [
        muon.Muon(own, lr=0.1),
        torch.optim.Muon(reference, lr=0.1, momentum=0.95, weight_decay=0.0, adjust_lr_fn="original"),
    ]
    for _ in range(3):
        gradients = [torch.randn_like(matrix) for matrix in own]
        for matrices, optimizer in zip((own, reference), optimizers, strict=True):
            for matrix, gradient in zip(matrices, gradients, strict=True):
                matrix.grad = gradient.clone()
            optimizer.step()
    for begin, ours, theirs in zip(make_matrices(), own, reference, strict=True):
        moved, difference = (theirs - begin).norm(), (ours - theirs).norm()
        assert moved > 0.5
        assert difference < 0.02 * moved


def test_a_gradient_of_zeros_stays_zero():
    assert muon.orthogonalize(torch.zeros(1, 4, 4)).count_nonzero() == 0
