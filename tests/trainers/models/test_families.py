"""Every family of models: what is sampled, what is learned from and what the library computes agree, in small random models."""

import json
import warnings

import pytest
import torch
from family_models import DELTA, EXPERTS, FAMILIES, MIXED, ROWS, batch_of, build, plain_logprobs
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

from trainers.checkpoints import checkpoint
from trainers.engines.engine import generate
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models.hidden_states import recompute_activations
from trainers.models.loading import load_policy
from trainers.models.lora import add_lora, trainable_parameters
from trainers.trajectory import Step, Trajectory, collate

every_family = pytest.mark.parametrize("family", FAMILIES)
WITH_ADAPTERS = "llama", "seed_oss", "qwen3", "gemma"


@pytest.mark.parametrize(
    ("family", "lora"), [*((family, False) for family in FAMILIES), *((family, True) for family in WITH_ADAPTERS)]
)
def test_the_sampler_the_trainer_and_the_library_agree(tokenizers, family, lora):
    """Over turns of conversations of different lengths, which outgrow windows, blocks and chunks beside longer ones."""
    policy, how = build(tokenizers, family, lora), FAMILIES[family][0]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        engine = TransformersEngine(policy, ())
    sampled = {"library": "is sampled from with the library's own cache", "nothing": "is sampled from without a cache"}
    told = [str(w.message) for w in said if "is sampled from" in str(w.message)]
    assert len(told) == (how in sampled) and all(sampled[how] in each for each in told)
    assert engine.runner._runs_as_llama == (how == "ours")
    assert (policy.tree_attention == "") == (how in sampled or family in ROWS)
    contexts, episodes = {0: [7, 8, 9], 1: [*range(40, 70)], 2: [5] * 11}, {key: Trajectory() for key in range(3)}
    for turn in range(2):
        for key, done in generate(engine, contexts, 7 - turn, 0.8).items():
            episodes[key].steps.append(Step(prompt=contexts[key], tokens=done.tokens, logprobs=done.logprobs))
            contexts[key] = [*contexts[key], *done.tokens, *range(80, 84 + 3 * key)]
    batch = collate(list(episodes.values()), policy.pad_id)
    with torch.no_grad():
        trained = policy.logprobs(batch, 0.8)[0]
        for row, mask, length, own, sampled in zip(
            batch.ids, batch.mask, batch.lengths, trained, batch.old_logprobs, strict=True
        ):
            mask = mask[:length]
            expected = plain_logprobs(policy, row[:length].tolist(), 0.8)[mask[1:]]
            torch.testing.assert_close(own[:length][mask], expected, rtol=0, atol=1e-4)
            torch.testing.assert_close(sampled[:length][mask], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "mixtral", "qwen3_5_text", "granitemoehybrid"])
def test_in_bfloat16_what_was_sampled_is_near(tokenizers, family):
    """Beside an adapter, where experts are stored in it; the head and what comes after it stay float32."""
    policy = build(tokenizers, family, lora=True, dtype=torch.bfloat16)
    with warnings.catch_warnings(action="ignore"):
        engine = TransformersEngine(policy, ())
    prompts = {0: [7, 8, 9], 1: [*range(40, 70)]}
    done = generate(engine, prompts, 9, 1.0)
    steps = [Step(prompt=prompts[k], tokens=c.tokens, logprobs=c.logprobs) for k, c in done.items()]
    batch = collate([Trajectory(steps=[step]) for step in steps], policy.pad_id)
    with torch.no_grad():
        difference = (policy.logprobs(batch)[0] - batch.old_logprobs)[batch.mask].abs()
    assert difference.mean() < 0.03 and difference.max() < 0.2


@every_family
@pytest.mark.parametrize("lora", [False, True])
def test_gradients_through_the_masked_loss_are_plain_ones(tokenizers, family, lora):
    """In rows that share a prefix longer than windows, and end at different lengths."""
    policy = build(tokenizers, family, lora)
    rows = [[*range(20, 32), *tail] for tail in ([3, 4, 5, 6, 7, 8], [9], [3, 4, 40, 41, 42, 43, 44, 45, 46, 47])]
    batch, parameters = batch_of(rows), trainable_parameters(policy.model)
    logprobs, _ = policy.logprobs(batch)
    found = torch.autograd.grad((logprobs * batch.mask).sum(), parameters, allow_unused=True)
    total = sum(
        plain_logprobs(policy, row)[mask[1 : len(row)]].sum() for row, mask in zip(rows, batch.mask, strict=True)
    )
    assert logprobs.sum().item() == pytest.approx(float(total), rel=1e-5)
    expected = torch.autograd.grad(total, parameters, allow_unused=True)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5 * max(1.0, b.abs().max().item()))


@every_family
def test_recomputed_activations_have_the_same_gradients(tokenizers, family):
    """Some layers drop out by themselves in training mode."""
    policy, again = build(tokenizers, family), build(tokenizers, family)
    batch, found = batch_of([[*range(20, 32), 3, 4, 5], [*range(20, 32), 9]]), []
    recompute_activations(again.model)
    for one in (policy, again):
        logprobs, parameters = one.logprobs(batch)[0], trainable_parameters(one.model)
        found.append(torch.autograd.grad(logprobs.sum(), parameters, allow_unused=True))
    for expected, got in zip(*found, strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(20, 45)[None], use_cache=False).logits


@every_family
def test_an_adapter_merges_and_what_is_saved_is_what_is_loaded(tokenizers, family, tmp_path):
    policy = build(tokenizers, family)
    common = {"tokenizer": policy.tokenizer, "optimizers": [], "step": 1, "extra": {}}
    base = checkpoint.save(tmp_path / "base", model=policy.model, **common)
    with warnings.catch_warnings(action="ignore"):
        adapted = load_policy(base, "cpu", lora_rank=2)
    assert torch.equal(logits(adapted.model), logits(policy.model))  # a new adapter adds zeros
    with torch.no_grad():
        for parameter in trainable_parameters(adapted.model):
            parameter += torch.randn_like(parameter) * 0.1
    expected = logits(adapted.model)
    assert not torch.allclose(expected, logits(policy.model), atol=1e-2)
    saved = checkpoint.save(tmp_path / "adapter", model=adapted.model, **common)
    loaded = load_policy(saved, "cpu").model
    assert torch.equal(logits(loaded), expected)
    for module in loaded.modules():
        if isinstance(module, BaseTunerLayer):
            module.merge()
    torch.testing.assert_close(logits(loaded), expected, rtol=0, atol=5e-4)


def test_experts_that_an_adapter_leaves_frozen_are_named(tokenizers):
    policy = build(tokenizers, "gpt_oss")
    with pytest.warns(
        UserWarning, match=r"an adapter of GptOssForCausalLM leaves its experts frozen, \d\d% of all weights"
    ):
        add_lora(policy.model, 2, 4)


def test_an_adapter_is_beside_what_is_called_alone(tokenizers):
    """Jamba multiplies by the weight of dt_proj itself, and Mamba's kernels by that of out_proj."""
    for family, idle in (("jamba", "dt_proj"), ("mamba", "out_proj")):
        policy = build(tokenizers, family, lora=True)
        adapted = {name.split(".")[-4] for name, p in policy.model.named_parameters() if p.requires_grad}
        assert "in_proj" in adapted and idle not in adapted


def test_a_short_conversation_beside_one_that_fills_all_positions(tokenizers, monkeypatch):
    """A row that has ended goes on with its batch, and must not go beyond the positions that the model has."""
    monkeypatch.setitem(
        FAMILIES, "gpt_neo-short", ("library", {**FAMILIES["gpt_neo"][1], "max_position_embeddings": 256})
    )
    policy = build(tokenizers, "gpt_neo-short")
    with warnings.catch_warnings(action="ignore"):
        done = generate(TransformersEngine(policy, ()), {0: [5] * 252, 1: [6, 7]}, 9, 1.0)
    assert [len(one.tokens) for one in done.values()] == [4, 9]


def test_packed_experts_are_read_as_the_numbers_that_they_stand_for(tokenizers, tmp_path, monkeypatch):
    """gpt-oss as it is published, in MXFP4: four bits and a power of two for each 32 of them."""
    monkeypatch.setitem(
        FAMILIES,
        "gpt_oss-packed",
        (
            "layers",
            {**EXPERTS, **MIXED, "hidden_size": 64, "num_hidden_layers": 1, "layer_types": None},
        ),
    )
    policy = build(tokenizers, "gpt_oss-packed")
    folder = checkpoint.save(
        tmp_path / "base", model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=1, extra={}
    )
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, rows, columns = weights.pop(name).transpose(1, 2).shape
        weights[f"{name}_blocks"] = torch.full((experts, rows, columns // 32, 16), 0x21, dtype=torch.uint8)  # .5, 1., …
        weights[f"{name}_scales"] = torch.full((experts, rows, columns // 32), 126, dtype=torch.uint8)  # halves
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    loaded = load_policy(folder, "cpu").model
    experts = loaded.model.layers[0].mlp.experts
    assert experts.down_proj.dtype == torch.float32 and experts.down_proj[0, :4, 0].tolist() == [0.25, 0.5, 0.25, 0.5]
    again = load_policy(
        checkpoint.save(tmp_path / "again", model=loaded, tokenizer=policy.tokenizer, optimizers=[], step=1, extra={}),
        "cpu",
    )
    assert torch.equal(logits(again.model), logits(loaded))
    (folder / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    )
    with pytest.raises(ValueError, match="holds weights packed by gptq: take the model that it was made from"):
        load_policy(folder, "cpu")


TEXT = {
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "sliding_window": None,
}  # fmt: skip
PICTURES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 28,
            "patch_size": 14}  # fmt: skip
MANY_SIZES = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 4, "deepstack_visual_indexes": []}
ROTARY = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
WIDE = {**ROTARY, "mrope_section": [8, 12, 12]}
LINEAR = {**DELTA, "rope_parameters": {**ROTARY, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25}}


@pytest.mark.parametrize(
    ("family", "text", "vision", "how"),
    [
        ("mistral3", {"model_type": "mistral"}, {"model_type": "pixtral"}, "ours"),
        ("gemma3", {"model_type": "gemma3_text", **MIXED}, {"model_type": "siglip_vision_model"}, "layers"),
        ("qwen2_5_vl", {"model_type": "qwen2_5_vl_text", "head_dim": 64, "rope_parameters": WIDE}, MANY_SIZES, "layers"),
        ("qwen3_vl", {"model_type": "qwen3_vl_text", "rope_parameters": ROTARY}, MANY_SIZES, "layers"),
        ("qwen3_5", {"model_type": "qwen3_5_text", **LINEAR}, MANY_SIZES, "library"),
        ("llama4", {"model_type": "llama4_text", **FAMILIES["llama4_text"][1]}, {"model_type": "llama4_vision_model"}, "library"),
    ],
)  # fmt: skip
def test_a_model_that_reads_pictures_too_is_one_of_text(tokenizers, tmp_path, family, text, vision, how):
    """As wide as those whose trees run in rows. Its layers for pictures are loaded and saved, and nothing else."""
    size = {"hidden_size": 256, "vocab_size": len(tokenizers["bytes"])}
    vision = (PICTURES if vision.keys() == {"model_type"} else {"out_hidden_size": 256}) | vision
    config = AutoConfig.for_model(family, text_config={**TEXT, **size, **text}, vision_config=vision)
    config.get_text_config().eos_token_id = config.eos_token_id = tokenizers["bytes"].eos_token_id
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config)
    common = {"tokenizer": tokenizers["bytes"], "optimizers": [], "step": 1, "extra": {}}
    base = checkpoint.save(tmp_path / "base", model=model, **common)
    (base / "preprocessor_config.json").write_text("{}")
    with warnings.catch_warnings(action="ignore"):
        policy, adapted = load_policy(base, "cpu"), load_policy(base, "cpu", lora_rank=2)
        engine = TransformersEngine(policy, ())
    assert type(policy.model) is type(model) and engine.runner._runs_as_llama == (how == "ours")
    assert torch.equal(logits(policy.model), logits(model.eval()))
    adapted_layers = {name for name, parameter in adapted.model.named_parameters() if parameter.requires_grad}
    assert adapted_layers and all("language_model" in name for name in adapted_layers)
    trees = "" if how == "library" or "sliding_window" in text else "rows"
    assert policy.tree_attention == adapted.tree_attention == trees
    for prompt in ([5, 6, 7], [*range(40, 70)]):
        done = generate(engine, {0: prompt}, 5, 1.0)[0]
        expected = plain_logprobs(policy, [*prompt, *done.tokens])[len(prompt) - 1 :]
        torch.testing.assert_close(torch.tensor(done.logprobs), expected, rtol=0, atol=1e-4)
    again = checkpoint.save(tmp_path / "again", model=policy.model, **common)
    assert (again / "preprocessor_config.json").exists()
    names = [load_file(folder / "model.safetensors").keys() for folder in (base, again)]
    assert names[0] == names[1] and any("visual" in name or "vision" in name for name in names[0])
