"""Layers with gradients by hand: they give what the library's and peft's give, as near to float32 as those in bfloat16."""

import copy

import pytest
import torch
from torch.nn.functional import rms_norm, silu
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from trainers.models import hidden_states, llama_layers, row_attention
from trainers.models.critic import Critic
from trainers.models.hidden_states import choose_tree_attention, recompute_activations, round_frozen
from trainers.models.lora import add_lora, trainable_parameters
from trainers.models.policy import Policy
from trainers.trajectory import Sequence, collate_sequences

CONFIGS = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
IDS = [3, 1, 4, 1, 5, 9, 2, 6]


def make_model(family, lora=True, dtype=torch.bfloat16):
    torch.manual_seed(0)
    options = {"sliding_window": None} if family == "mistral" else {}
    config = CONFIGS[family](
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, head_dim=8,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.15, **options,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, mean="norm" in name, std=0.2)
    if lora:
        pytest.importorskip("peft")
        add_lora(model, 2, 6)
        for parameter in trainable_parameters(model):
            torch.nn.init.normal_(parameter, std=0.1)
    if dtype == torch.bfloat16:
        round_frozen(model)
    return model


def make_batch():
    rows = [[*IDS, 11, 12], [*IDS, 11, 13, 14], [*IDS[:3], 20], [30, 31], [*IDS, 11, 13, 14, 15, 16]]
    sequences = [Sequence(ids=r, mask=[True] * len(r), logprobs=[0.0] * len(r), rewards=[0.0] * len(r)) for r in rows]
    return collate_sequences(sequences, list(range(len(rows))), 0)


def run(model, dtype, tree_attention="rows"):
    """Hidden states of all tokens, and the gradients of all that is trained."""
    batch = make_batch()
    hidden, index = hidden_states.compute_hidden_states(model.base_model, batch, dtype, tree_attention)
    found = hidden[index[torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]]]
    loss = (found * torch.arange(found.numel()).cos().view_as(found)).sum()
    return [found.detach(), *torch.autograd.grad(loss, trainable_parameters(model.base_model))]


def errors(found, expected):
    return torch.tensor([float((x - y).norm() / y.norm()) for x, y in zip(found, expected, strict=True)])


def error(found, expected):
    return float(errors(found, expected).max())


@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("family", CONFIGS)
def test_values_and_gradients_are_those_of_the_library(family, lora):
    model = make_model(family, lora)
    exact = run(copy.deepcopy(model).float(), torch.float32, "")
    usual = run(model, torch.bfloat16, "")
    llama_layers.replace(model.base_model)
    found = run(model, torch.bfloat16)
    assert error(found, exact) < 0.06
    assert errors(found, exact).mean() < 1.2 * errors(usual, exact).mean()  # rounded in other places


@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("family", CONFIGS)
def test_in_float32_they_are_the_librarys_to_rounding(family, lora):
    model = make_model(family, lora, torch.float32)
    expected = run(model, torch.float32, "")
    llama_layers.replace(model.base_model)
    assert error(run(model, torch.float32), expected) < 1e-5
    assert all(torch.equal(x, y) for x, y in zip(expected, run(model, torch.float32, ""), strict=True))


def test_single_rows_stay_the_librarys():
    model = make_model("qwen2")
    expected = run(model, torch.bfloat16, "")
    llama_layers.replace(model.base_model)
    assert all(torch.equal(x, y) for x, y in zip(expected, run(model, torch.bfloat16, ""), strict=True))


def passes(monkeypatch):
    """Counts the layers that run here."""
    counts = []
    run_layer = llama_layers._run
    monkeypatch.setattr(llama_layers, "_run", lambda *args: counts.append(args[0]) or run_layer(*args))
    return counts


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setattr(row_attention, "MIN_WIDTH", 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chosen_where_they_agree(wide, monkeypatch, dtype):
    counts = passes(monkeypatch)
    model = make_model("llama", dtype=dtype)
    assert choose_tree_attention(model.base_model, IDS, dtype) == "rows"
    counts.clear()
    run(model, dtype)
    assert counts == list(model.base_model.layers)
    right = llama_layers.SwiGLU.backward
    monkeypatch.setattr(llama_layers.SwiGLU, "backward", lambda ctx, by_out: right(ctx, 2 * by_out))
    with pytest.warns(UserWarning, match="in the library's layers: with ours hidden states and gradients differ by"):
        assert choose_tree_attention(model.base_model, IDS, dtype) == "rows"
    counts.clear()
    run(model, dtype)
    assert not counts


def test_a_frozen_model_whose_inputs_have_gradients_is_compared_by_its_values(wide):
    """A reference, copied from a policy that recomputes activations: the library has its inputs ask for gradients."""
    model = make_model("llama", lora=False, dtype=torch.float32).requires_grad_(False)
    model.enable_input_require_grads()
    assert choose_tree_attention(model.base_model, IDS, torch.float32) == "rows"


@pytest.mark.parametrize("change", ["dropout", "two adapters", "trained base", "activation"])
def test_other_layers_are_left_to_the_library(wide, monkeypatch, change):
    model = make_model("llama")
    layer = model.base_model.layers[1]
    if change == "dropout":
        layer.mlp.up_proj.lora_dropout["default"] = torch.nn.Dropout(0.0).train()
    elif change == "two adapters":
        model.add_adapter(copy.deepcopy(model.peft_config["default"]), "second")
        model.set_adapter(["default", "second"])
    elif change == "trained base":
        layer.self_attn.o_proj.base_layer.weight.requires_grad_(True)
    else:
        model.config.hidden_act = "gelu"
    expected = run(model, torch.bfloat16)
    assert choose_tree_attention(model.base_model, IDS, torch.bfloat16) == "rows"
    counts = passes(monkeypatch)
    assert all(torch.equal(x, y) for x, y in zip(expected, run(model, torch.bfloat16), strict=True))
    assert not counts


def test_an_adapter_of_some_layers_only():
    model = make_model("llama", lora=False)
    config = pytest.importorskip("peft").LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"])
    model.add_adapter(config)
    for parameter in trainable_parameters(model):
        torch.nn.init.normal_(parameter, std=0.1)
    usual = run(model, torch.bfloat16, "")
    llama_layers.replace(model.base_model)
    assert error(run(model, torch.bfloat16), usual) < 0.06


def test_copies_run_their_own_weights(monkeypatch):
    model = make_model("llama")
    llama_layers.replace(model.base_model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in trainable_parameters(other):
            parameter.zero_()
    counts = passes(monkeypatch)
    assert not torch.equal(run(model, torch.bfloat16)[0], run(other, torch.bfloat16)[0])
    assert counts == [*model.base_model.layers, *other.base_model.layers]


def test_a_critic_has_them_too(make_policy, wide, monkeypatch):
    policy = make_policy(family="llama")
    policy = Policy(policy.model, policy.tokenizer, torch.bfloat16)
    critic = Critic(policy)
    counts = passes(monkeypatch)
    critic(make_batch())
    assert counts == list(critic.backbone.layers)


def test_recomputed_layers_give_the_same():
    model = make_model("llama")
    llama_layers.replace(model.base_model)
    expected = run(model, torch.bfloat16)
    recompute_activations(model)
    assert all(torch.equal(x, y) for x, y in zip(expected, run(model, torch.bfloat16), strict=True))


def test_a_frozen_model_runs_without_gradients():
    model = make_model("llama")
    expected = run(model, torch.bfloat16, "")[0]
    llama_layers.replace(model.base_model)
    model.requires_grad_(False)
    round_frozen(model)  # the adapter too, as in a reference
    with torch.no_grad():
        hidden, index = hidden_states.compute_hidden_states(model.base_model, make_batch(), torch.bfloat16, "rows")
    batch = make_batch()
    assert error([hidden[index[torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]]]], [expected]) < 0.05


def gradients(function, *inputs):
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = function(*leaves)
    return [
        out.detach(),
        *torch.autograd.grad((out.float() * torch.arange(out.numel()).cos().view_as(out)).sum(), leaves),
    ]


def test_each_function_is_its_formula():
    torch.manual_seed(0)
    wide, weight = torch.randn(5, 3, 8) * 2, torch.randn(8)
    x, gate, up = (torch.randn(5, 3, 8).to(torch.bfloat16) for _ in range(3))
    angle = torch.rand(5, 1, 4).repeat(1, 1, 2)
    sign = torch.tensor([-1.0] * 4 + [1.0] * 4)
    pairs = [
        (gradients(lambda x, w: llama_layers.RMSNorm.apply(x, w, 1e-3, torch.bfloat16), wide, weight),
         gradients(lambda x, w: rms_norm(x, (8,), w, 1e-3), wide, weight)),
        (gradients(lambda x: llama_layers.Rotation.apply(x, angle.cos(), angle.sin() * sign), x),
         gradients(lambda x: apply_rotary_pos_emb(x, x, angle.cos(), angle.sin(), 0)[0], x.float())),
        (gradients(llama_layers.SwiGLU.apply, gate, up),
         gradients(lambda gate, up: silu(gate) * up, gate.float(), up.float())),
    ]  # fmt: skip
    for found, expected in pairs:
        assert error(found, expected) < 0.01
