"""Agents for others: small folders that evaluate as the checkpoints that they were made from."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from trainers import export
from trainers.checkpoints import checkpoint
from trainers.checkpoints.settings import warn_of_other_env_kwargs
from trainers.evaluation import evaluator
from trainers.models.loading import load_policy
from trainers.models.lora import trainable_parameters

ENV_KWARGS = {"data": "/home/me/data", "k": 2, "max_chars": 500, "holdout": 10, "rewards": {"f1": 0.5}}
EXTRA = {
    "dtype": "bfloat16", "max_new_tokens": 7, "thinking": "5", "model": "/home/me/model", "env": "AgentR1/HotpotQA-v0",
    "env_kwargs": json.dumps(ENV_KWARGS),
}  # fmt: skip
EXPORTED = {**EXTRA, "env_kwargs": '{"k": 2, "max_chars": 500}'}
del EXPORTED["model"]


@pytest.fixture(scope="module")
def base(save_model):
    return save_model("bpe")


def save(policy, folder):
    optimizer = torch.optim.AdamW(trainable_parameters(policy.model))
    for parameter in trainable_parameters(policy.model):
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    parts = {"model": policy.model, "tokenizer": policy.tokenizer, "optimizers": [optimizer]}
    return checkpoint.save(folder, **parts, step=4, extra=EXTRA)


def test_an_adapter_is_small_names_its_public_base_and_plays_as_it_did(base, tmp_path, capsys, bfloat16_products):
    pytest.importorskip("peft")
    policy = load_policy(base, lora_rank=2)
    saved = save(policy, tmp_path / "checkpoint-4")
    with pytest.raises(ValueError, match="exists already"):
        export.main(export.Args(checkpoint=saved, out=saved))
    out = export.main(export.Args(checkpoint=saved, out=tmp_path / "out", base_model="someone/their-model"))
    assert str(out) in capsys.readouterr().out
    weights = load_file(out / "adapter_model.safetensors")
    assert weights and {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == "someone/their-model"
    assert not (out / "tokenizer.json").exists()
    assert checkpoint.read_extra(out) == EXPORTED
    assert str(tmp_path) not in "".join(path.read_text() for path in out.glob("*.json"))
    agent, longest = evaluator.load_agent(out, str(base))
    assert (agent.dtype, longest, agent.thought_tokens) == (torch.bfloat16, 7, 5)
    for a, b in zip(trainable_parameters(agent.model), trainable_parameters(policy.model), strict=True):
        assert torch.equal(a, b.to(torch.bfloat16).float())
    assert agent.encode("a b c") == policy.encode("a b c")


def test_a_base_that_moved_is_named_and_loaded(base, tmp_path):
    pytest.importorskip("peft")
    here, moved = shutil.copytree(base, tmp_path / "here"), tmp_path / "moved"
    saved = save(load_policy(here, lora_rank=2), tmp_path / "checkpoint-4")
    here.rename(moved)
    with pytest.raises(ValueError, match=r"which is not here: give its base model \(--base-model"):
        export.main(export.Args(checkpoint=saved, out=tmp_path / "out"))
    out = export.main(export.Args(checkpoint=saved, out=tmp_path / "out", base_model=str(moved)))
    assert not (out / "tokenizer.json").exists()
    assert evaluator.load_agent(out)[0].encode("a b") == load_policy(moved).encode("a b")


def test_a_template_that_its_public_base_has_otherwise_is_exported(base, tmp_path):
    pytest.importorskip("peft")
    changed = shutil.copytree(base, tmp_path / "changed")
    (template,) = [path for path in changed.iterdir() if path.suffix == ".jinja"]
    template.write_text(template.read_text() + "{# mine #}")
    saved = save(load_policy(changed, lora_rank=2), tmp_path / "checkpoint-4")
    out = export.main(export.Args(checkpoint=saved, out=tmp_path / "out", base_model=str(base)))
    assert load_policy(out).tokenizer.chat_template.endswith("{# mine #}")


def test_odd_options_of_sampling_do_not_keep_a_model_from_being_exported(base, tmp_path):
    odd = shutil.copytree(base, tmp_path / "odd")
    options = json.loads((odd / "generation_config.json").read_text()) | {"temperature": 0.9, "top_p": 0.6}
    (odd / "generation_config.json").write_text(json.dumps(options))  # without do_sample, which cannot be saved
    saved = save(load_policy(odd), tmp_path / "checkpoint-4")
    out = export.main(export.Args(checkpoint=saved, out=tmp_path / "out"))
    assert "temperature" not in json.loads((out / "generation_config.json").read_text())


def test_a_whole_model_keeps_its_tokenizer(base, tmp_path):
    policy = load_policy(base)
    saved = save(policy, tmp_path / "checkpoint-4")
    out = export.main(export.Args(checkpoint=saved, out=tmp_path / "out"))
    agent, _ = evaluator.load_agent(out)
    assert (
        set(json.loads((out / "generation_config.json").read_text())["eos_token_id"]) == policy.end_ids == agent.end_ids
    )
    for a, b in zip(agent.model.parameters(), policy.model.parameters(), strict=True):
        torch.testing.assert_close(a.float(), b, rtol=0.01, atol=0)
    with pytest.raises(ValueError, match="no base model"):
        export.main(export.Args(checkpoint=saved, out=tmp_path / "other", base_model="someone/their-model"))


def test_of_a_mixture_the_tasks_are_kept_and_not_their_folders(base, tmp_path, capsys):
    kwargs = {
        "tasks": {"AgentR1/HotpotQA-v0": {"weight": 2, "kwargs": {"data": "/home/me/data"}}},
        "k": 2,
        "max_chars": 500,
    }
    extra = EXTRA | {"env": "AgentR1/Mixture-v0", "env_kwargs": json.dumps(kwargs)}
    policy = load_policy(base)
    saved = checkpoint.save(
        tmp_path / "checkpoint-4", model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=4, extra=extra
    )
    kept = checkpoint.read_extra(export.main(export.Args(checkpoint=saved, out=tmp_path / "out")))
    assert json.loads(kept["env_kwargs"]) == {"tasks": {"AgentR1/HotpotQA-v0": 1}, "k": 2, "max_chars": 500}
    warn_of_other_env_kwargs("my-agent", kept, "AgentR1/HotpotQA-v0", '{"k": 2, "max_chars": 500}')
    assert not capsys.readouterr().err.count("was trained on")


@pytest.mark.parametrize(
    ("env", "kwargs", "here"),
    [
        ("AgentR1/HotpotQA-v0", {"k": 2, "max_chars": 500, "data": "elsewhere", "source": "local"}, None),
        ("AgentR1/Mixture-v0", {"k": 2, "max_chars": 500, "tasks": {"HotpotQA": 1, "NQ": 1}}, None),
        ("MuSiQue", {"max_chars": 500, "k": 2}, '{"k": 2, "max_chars": 500}'),
        ("HotpotQA", {"k": 2, "max_chars": 1200}, '{"k": 2, "max_chars": 1200}'),
        ("AgentR1/Mixture-v0", {"tasks": {}, "k": 3}, '{"k": 3}'),
        ("AgentR1/FrozenLake-v0", {}, "{}"),
    ],
)
def test_an_agent_in_another_task_or_with_another_interface_is_named(env, kwargs, here, capsys):
    warn_of_other_env_kwargs("my-agent", EXPORTED, env, json.dumps(kwargs))
    warning = capsys.readouterr().err
    trained = 'Warning: my-agent was trained on AgentR1/HotpotQA-v0 with {"k": 2, "max_chars": 500}, '
    assert (
        not warning
        if here is None
        else warning.startswith(trained) and warning.endswith(f"here it is {env} with {here}\n")
    )
