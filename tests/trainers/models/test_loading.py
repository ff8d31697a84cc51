"""Weights that come from a file must compute as those that were saved."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainers import export
from trainers.checkpoints import checkpoint
from trainers.models import hidden_states, loading
from trainers.models.loading import _align, load_policy
from trainers.runtime.errors import UserError


def test_loaded_weights_lie_where_pytorch_would_put_them(make_policy, save_model):
    loaded = load_policy(save_model("bpe"), "cpu").model
    assert all(parameter.data_ptr() % 64 == 0 for parameter in loaded.parameters())
    for name, value in make_policy("bpe", 3).model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)


def test_a_weight_at_an_odd_address_is_copied_and_a_tied_one_stays_tied(make_policy):
    model = make_policy("bpe").model
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    values = embedding.weight.detach().clone()
    moved = torch.zeros(values.numel() + 1)[1:].view_as(values).copy_(values)
    assert moved.data_ptr() % 64
    head.weight = embedding.weight = torch.nn.Parameter(moved)
    _align(model)
    assert head.weight is embedding.weight
    assert head.weight.data_ptr() % 64 == 0
    assert torch.equal(head.weight, values)


def test_a_chat_template_of_ones_own_goes_with_the_checkpoints(model_folder, tmp_path):
    """And with an exported adapter, which is otherwise without a tokenizer."""
    file, given = tmp_path / "chat.jinja", "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    file.write_text(given)
    for rank in (0, 2):
        policy = load_policy(model_folder, "cpu", lora_rank=rank, chat_template=file)
        assert policy.prompt_ids("a", "b") == policy.encode("<|im_start|>a<|im_end|><|im_start|>b<|im_end|>")
        saved = checkpoint.save(
            tmp_path / str(rank), model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=1, extra={}
        )
        out = export.main(export.Args(checkpoint=saved, out=tmp_path / f"out{rank}"))
        for folder in (saved, out):
            assert load_policy(folder, "cpu").tokenizer.chat_template == given
    file.write_text("{% for m in messages %}")
    with pytest.raises(UserError, match="cannot be used: the chat template cannot write a conversation: ") as error:
        load_policy(model_folder, "cpu", chat_template=file)
    assert "\n" not in str(error.value)


def test_weights_that_are_missing_are_not_made_up(make_policy, tmp_path):
    policy = make_policy("bpe")
    folder = checkpoint.save(
        tmp_path / "m", model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=1, extra={}
    )
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ValueError, match=r"lacks 1 weights of Qwen2ForCausalLM, such as model.layers.1.mlp.up_proj.weight"
    ):
        load_policy(folder, "cpu")


@pytest.mark.parametrize(("has_products", "runs_in"), [(True, torch.bfloat16), (False, torch.float32)])
def test_a_processor_without_bfloat16_products_runs_in_float32_and_says_so(
    model_folder, monkeypatch, capsys, has_products, runs_in
):
    monkeypatch.setattr(loading, "has_bfloat16_products", lambda device: has_products)
    loaded = load_policy(model_folder, "cpu", "bfloat16", lora_rank=2)
    frozen = {p.dtype for name, p in loaded.model.named_parameters() if "proj.base_layer" in name}
    assert loaded.dtype == runs_in and frozen == {runs_in}
    assert ("no bfloat16 matmul" in capsys.readouterr().err) != has_products


@pytest.mark.parametrize(
    ("instructions", "has_products"), [((), False), (("avx512_bf16",), True), (("amx_tile",), True)]
)
def test_bfloat16_that_a_processor_only_emulates_does_not_count(monkeypatch, instructions, has_products):
    monkeypatch.setattr(hidden_states.platform, "machine", lambda: "x86_64")
    for name in ("avx512_bf16", "amx_tile"):
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda name=name: name in instructions)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)  # also of those that emulate it
    assert hidden_states.has_bfloat16_products("cpu") == has_products
    assert hidden_states.has_bfloat16_products("cuda")
