"""Layers run one after another are the model's own."""

import torch
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from trainers.engines import llama
from trainers.models.lora import add_lora

SIZES = dict(
    vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8,
)  # fmt: skip
LLAMA3 = dict(
    rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=8,
)  # fmt: skip
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def shaken(model):
    """Zeros and ones, as biases and norms are made, would hide what is left out."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def test_merged_adapters_follow_the_weights():
    """At the addresses that they had: CUDA graphs read them there."""
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES))
    add_lora(model, 2, 4)
    backbone, x = shaken(model).base_model, torch.randn(3, 32)
    merged, called = (llama.CastWeights(backbone, torch.float32, merges=merges) for merges in (True, False))
    before = [weight.data_ptr() for weight, _ in merged._cast.values()]
    for _ in range(2):
        with torch.no_grad():
            for name in ("qkv", "gate_up"):
                for y, expected in zip(merged(1, name, x), called(1, name, x), strict=True):
                    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
            for name, parameter in model.named_parameters():
                parameter.add_(0.1 if "lora_" in name else 0.0)
        merged.refresh()
    assert before == [weight.data_ptr() for weight, _ in merged._cast.values()]
    assert merged.nbytes > called.nbytes == 0


def test_any_layout_of_what_attention_returns(monkeypatch):
    """Kernels on GPUs return the transpose of another layout."""
    kernel = llama.scaled_dot_product_attention

    def other(*args, **kwargs):
        return kernel(*args, **kwargs).transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(llama, "scaled_dot_product_attention", other)
    assert llama.matches_reference(shaken(Qwen2ForCausalLM(Qwen2Config(**SIZES))).base_model, IDS, 1e-5)


def test_a_model_that_does_something_else_is_left_to_itself():
    assert not llama.matches_reference(
        shaken(GemmaForCausalLM(GemmaConfig(**SIZES))).base_model, IDS
    )  # scaled, another gate
    other = shaken(LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu")))
    assert not llama.matches_reference(other.base_model, IDS)
