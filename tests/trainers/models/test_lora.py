"""LoRA: what is trained, what it starts from, and what can be made of its checkpoints."""

import json
import shutil
import sys

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM

from trainers import evaluate, grpo
from trainers.checkpoints import checkpoint
from trainers.models import loading
from trainers.models.critic import Critic
from trainers.models.loading import load_policy
from trainers.models.lora import add_lora, load_lora_weights, make_reference, trainable_parameters
from trainers.runtime import integrity
from trainers.runtime.progress import read_metrics
from trainers.trajectory import collate

peft = pytest.importorskip("peft")
SMALL = '{"entities": 60, "questions": 20, "max_turns": 2}'
LINEAR = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def shaken(policy, seed=0):
    """With an adapter that does something: a new one does nothing."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in trainable_parameters(policy.model):
            parameter += 0.3 * torch.randn_like(parameter)
    return policy


def save(policy, folder):
    return checkpoint.save(folder, model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=1, extra={})


def logits(model):
    with torch.no_grad():
        return model(torch.arange(40).reshape(2, 20)).logits


@pytest.fixture(autouse=True)
def seeded(make_policy):
    """The random numbers that new adapters are drawn with, whatever ran before."""
    make_policy("subwords", 3)


@pytest.fixture
def episodes(roll_out):
    return lambda policy: roll_out(policy, [["a", "b"], ["a"], ["c", "d", "long " * 5], ["c"]])


def test_a_new_adapter_is_beside_all_linear_layers_but_the_head_and_changes_nothing(model_folder):
    policy, base = load_policy(model_folder, "cpu", lora_rank=2), load_policy(model_folder, "cpu")
    assert torch.equal(logits(policy.model), logits(base.model))
    own = [name for name, parameter in policy.model.named_parameters() if parameter.requires_grad]
    assert {name.split(".")[-4] for name in own} == LINEAR
    assert len(own) == 2 * len(LINEAR)  # two matrices each, in one layer
    assert all("lora_" in name for name in own)
    assert {type(module) for module in policy.model.modules() if "Dropout" in type(module).__name__} == set()


def test_a_saved_adapter_loads_here_in_transformers_and_in_peft(model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(model_folder.parent)
    policy = shaken(
        load_policy(model_folder.name, "cpu", lora_rank=2)
    )  # by a relative path, found again from elsewhere
    saved = save(policy, tmp_path / "c")
    monkeypatch.chdir("/")
    expected = logits(policy.model)
    assert torch.equal(logits(load_policy(saved, "cpu").model), expected)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(saved).eval()), expected)
    of_peft = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_folder), saved)
    assert torch.equal(logits(of_peft.eval()), expected)
    whole = logits(of_peft.double())  # in float32 the two round differently, on some CPUs by more
    torch.testing.assert_close(logits(of_peft.merge_and_unload()), whole, rtol=0, atol=1e-4)
    assert not (saved / "model.safetensors").exists()
    config = json.loads((saved / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (2, 32, "LORA")
    assert config["target_modules"] == sorted(config["target_modules"])


def test_weights_go_into_the_adapter_that_is_there_if_they_fit(model_folder, make_policy, tmp_path):
    policy = shaken(load_policy(model_folder, "cpu", lora_rank=2))
    saved, expected = save(policy, tmp_path / "c"), logits(policy.model)
    parameters = trainable_parameters(policy.model)
    shaken(policy, 1)
    assert not torch.equal(logits(policy.model), expected)
    load_lora_weights(policy.model, saved)
    assert torch.equal(logits(policy.model), expected)
    assert all(a is b for a, b in zip(trainable_parameters(policy.model), parameters, strict=True))
    other = make_policy("subwords", 3)
    other.model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ValueError, match="other layers"):
        load_lora_weights(other.model, saved)


def test_in_bfloat16_an_adapter_reads_what_its_layer_reads(model_folder, episodes, monkeypatch):
    monkeypatch.setattr(loading, "has_bfloat16_products", lambda device: True)
    policy = load_policy(model_folder, "cpu", dtype="bfloat16", lora_rank=2)
    read = {}
    for name, module in policy.model.named_modules():
        if name.endswith(("o_proj.lora_A.default", "down_proj.lora_A.default")):  # the others read a norm, in float32
            module.register_forward_pre_hook(lambda module, args, name=name: read.update({name: args[0].dtype}))
    policy.logprobs(collate(episodes(policy), policy.pad_id))
    assert set(read.values()) == {torch.bfloat16}


def test_an_adapter_of_the_head_is_loaded_in_bfloat16(model_folder, episodes, tmp_path, bfloat16_products):
    """With the head, which stays float32."""
    policy = load_policy(model_folder, "cpu")
    policy.model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj", "lm_head"], task_type="CAUSAL_LM"))
    batch = collate(episodes(policy), policy.pad_id)
    loaded = load_policy(save(shaken(policy), tmp_path / "saved"), "cpu", dtype="bfloat16")
    policy.dtype = torch.bfloat16  # its layers are rounded in each pass
    with torch.no_grad():
        expected = policy.logprobs(batch)[0]
        for one in (loaded, make_reference(loaded)):
            torch.testing.assert_close(one.logprobs(batch)[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rank", [0, 2])
def test_the_reference_stays_where_training_started(model_folder, episodes, rank):
    policy = load_policy(model_folder, "cpu", lora_rank=rank)
    batch = collate(episodes(policy), policy.pad_id)
    before, _ = policy.logprobs(batch)
    reference = make_reference(policy)
    shaken(policy)
    assert torch.equal(reference.logprobs(batch)[0], before)
    assert not torch.allclose(policy.logprobs(batch)[0], before, atol=1e-3)
    assert not trainable_parameters(reference.model)
    shared = {p.data_ptr() for p in policy.model.parameters()} & {p.data_ptr() for p in reference.model.parameters()}
    frozen = [p for p in policy.model.parameters() if not p.requires_grad]
    assert len(shared) == len(frozen)  # the base is there once


def test_a_critic_has_an_adapter_of_its_own_on_the_same_base(model_folder):
    policy = load_policy(model_folder, "cpu", lora_rank=2)
    critic = Critic(policy)
    storage = {p.data_ptr() for p in policy.model.parameters() if not p.requires_grad}
    of_policy, of_critic = trainable_parameters(policy.model), trainable_parameters(critic)
    assert all(p.data_ptr() in storage for p in critic.parameters() if not p.requires_grad)
    assert len(of_critic) == len(of_policy) + 2  # and the head
    assert not {p.data_ptr() for p in of_critic} & ({p.data_ptr() for p in of_policy} | storage)
    assert len(trainable_parameters(Critic(policy, shared=True))) == 2


def test_a_frozen_weight_of_a_critic_is_not_saved_and_a_missing_one_is_missed(model_folder, tmp_path):
    policy = load_policy(model_folder, "cpu", lora_rank=2)
    critic = Critic(policy)
    common = {"model": policy.model, "tokenizer": policy.tokenizer, "optimizers": [], "step": 1, "extra": {}}
    checkpoint.save(tmp_path / "c", modules={"critic": critic}, **common)
    state = torch.load(tmp_path / "c" / integrity.STATE_FILE)["modules"]["critic"]
    assert sorted(state) == sorted(name for name, p in critic.named_parameters() if p.requires_grad)
    checkpoint.load_state(tmp_path / "c", [], {"critic": critic})
    with pytest.raises(RuntimeError, match="Missing key"):
        checkpoint.load_state(tmp_path / "c", [], {"critic": Critic(load_policy(model_folder, "cpu"))})


def test_training_goes_on_with_an_earlier_adapter(short_run, model_folder, letters, tmp_path):
    """And is evaluated as it was trained."""
    saved, base = (
        save(shaken(load_policy(model_folder, "cpu", lora_rank=2)), tmp_path / "c"),
        model_folder / "model.safetensors",
    )
    before, options = base.read_bytes(), {"model": saved, "updates": 1, "kl_coef": 0.1, "out": tmp_path / "run"}
    with pytest.raises(ValueError, match=r"adapter of .*model.* already: leave out lora_rank"):
        grpo.main(short_run(grpo, **options, lora_rank=2))
    summary = grpo.main(short_run(grpo, **options))
    line = read_metrics(tmp_path / "run" / "metrics.jsonl")[1]
    assert line["policy/kl"] == pytest.approx(0, abs=1e-6)  # the reference has the adapter that it started with
    trained = tmp_path / "run" / "checkpoint-1"
    config = json.loads((trained / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(model_folder) and base.read_bytes() == before
    options = {"env": letters, "env_kwargs": SMALL, "questions": 4, "max_new_tokens": 6, "out": tmp_path}
    evaluated = evaluate.main(evaluate.Args(checkpoint=(trained,), **options))
    assert {**evaluated[-1], "name": ""} == {**summary["rows"][-1], "name": ""}


def test_a_missing_peft_is_named(make_policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"\[lora\]"):
        add_lora(make_policy("bytes").model, 2, 32)


def test_an_adapter_with_a_head_of_its_own_samples_what_it_trains(make_policy, episodes):
    """As others' adapters have it, by modules_to_save."""
    policy = make_policy("bpe", seed=1)
    policy.model.add_adapter(
        peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", modules_to_save=["lm_head"])
    )
    policy = shaken(policy)
    batch = collate(episodes(policy), policy.pad_id)
    with torch.no_grad():
        torch.testing.assert_close(policy.logprobs(batch)[0], batch.old_logprobs, rtol=1e-4, atol=1e-4)


def test_an_adapter_in_the_cache_of_the_hub_takes_its_bases_tokenizer(model_folder, tmp_path, monkeypatch):
    """What `trainers.export --push-to-hub` writes has none of its own."""
    saved = save(shaken(load_policy(model_folder, "cpu", lora_rank=2)), tmp_path / "saved")
    snapshot = tmp_path / "hub" / "models--someone--adapter" / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(saved / name, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    loaded = load_policy("someone/adapter", "cpu")
    assert loaded.tokenizer.get_vocab() == load_policy(model_folder, "cpu").tokenizer.get_vocab()
    assert torch.equal(logits(loaded.model), logits(load_policy(saved, "cpu").model))
