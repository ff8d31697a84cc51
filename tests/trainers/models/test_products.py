import pytest
import torch

from trainers.models import products


@pytest.mark.parametrize("shape", [(5, 576), (3, 4, 576), (1, 576), (2, 0, 576), (50, 576), (5, 64)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_layers_with_gradients(shape, has_bias):
    x, weight = torch.randn(shape, requires_grad=True), torch.randn(96, shape[-1], requires_grad=True)
    bias = torch.randn(96, requires_grad=True) if has_bias else None
    found, expected = (f(x, weight, bias) for f in (products.linear, torch.nn.functional.linear))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert found.is_contiguous()
    inputs = [x, weight, *([bias] if has_bias else [])]
    seed = torch.randn_like(expected)
    of_found, of_expected = (torch.autograd.grad(y, inputs, seed) for y in (found, expected))
    torch.testing.assert_close(of_found, of_expected, rtol=1e-4, atol=1e-4)


def test_other_precisions_and_autocast():
    x, weight = torch.randn(5, 576), torch.randn(576, 576)
    y = products.linear(x.bfloat16(), weight.bfloat16())
    assert y.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert products.linear(x, weight, weight[0]).dtype == torch.bfloat16
