"""Layers run one after another are the model's own."""

import pytest
import torch

from trainers.engines import llama
from trainers.engines.model_runner import ModelRunner
from trainers.models.lora import add_lora, trainable_parameters


def test_merged_adapters_follow_the_weights(make_policy):
    """At the addresses that they had: CUDA graphs read them there."""
    model, x = make_policy("bytes").model, torch.randn(3, 32)
    add_lora(model, 2, 4)
    for parameter in trainable_parameters(model):
        torch.nn.init.normal_(parameter, std=0.2)
    backbone = model.base_model
    merged, called = (llama.CastWeights(backbone, torch.float32, merges=merges) for merges in (True, False))
    before = [weight.data_ptr() for weight, *_ in merged._weights.values()]
    for _ in range(2):
        with torch.no_grad():
            for name in ("qkv", "gate_up"):
                for y, expected in zip(merged(1, name, x), called(1, name, x), strict=True):
                    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
            for name, parameter in model.named_parameters():
                parameter.add_(0.1 if "lora_" in name else 0.0)
        merged.refresh()
    assert before == [weight.data_ptr() for weight, *_ in merged._weights.values()]
    assert merged.nbytes > called.nbytes == 0


def test_any_layout_of_what_attention_returns(make_policy, monkeypatch):
    """Kernels on GPUs return the transpose of another layout."""
    kernel = llama.scaled_dot_product_attention

    def other(*args, **kwargs):
        return kernel(*args, **kwargs).transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(llama, "scaled_dot_product_attention", other)
    assert ModelRunner(make_policy("bytes"))._runs_as_llama


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_does_something_else_is_left_to_the_library(make_policy, monkeypatch, dtype):
    policy = make_policy("bytes", family="llama")
    policy.dtype = dtype
    assert ModelRunner(policy)._runs_as_llama
    monkeypatch.setattr(llama, "silu", torch.nn.functional.gelu)
    assert not ModelRunner(policy)._runs_as_llama
