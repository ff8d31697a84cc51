"""Where the time goes, of a real run."""

import json

import pytest
import torch
from transformers import LlamaConfig

from trainers import grpo, profile
from trainers.models import gguf
from trainers.rollouts.timing import Timing


@pytest.fixture(scope="module")
def run(letters, tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENT_ENVS_CACHE", str(folder.parent / "cache"))
        grpo.main(
            grpo.Args(
                env=letters, env_kwargs='{"entities": 60, "questions": 20, "max_turns": 2}', updates=3, cold_start_steps=2,
                questions_per_update=2, group_size=3, max_new_tokens=4, eval_questions=2, final_questions=2, out=folder,
            )
        )  # fmt: skip
    return folder


def test_a_runs_phases_add_up(run, capsys):
    result = profile.main(profile.Args(run=run))
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
    phases = result["phases"]
    assert sum(phase["share"] for phase in phases.values()) == pytest.approx(1)
    assert {"prefill", "decode", "tools", "update", "other"} == set(phases)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][2:]  # of updates 2 and 3
    whole = sum(line["time/rollout"] + line["time/update"] for line in lines) / 2
    assert sum(phase["seconds"] for phase in phases.values()) == pytest.approx(whole, rel=0.01)
    assert phases["decode"]["tokens"] == sum(line["tokens/action"] for line in lines) / 2
    assert phases["prefill"]["flops"] == pytest.approx(
        2 * result["weights"] * phases["prefill"]["processed"] / phases["prefill"]["seconds"]
    )
    assert min(result["limits"].values()) > 1e7
    assert (
        4 <= phases["decode"]["steps"] <= 2 * 4 * 6
    )  # turns of four tokens, two or more, of episodes beside each other
    folder = run / "checkpoint-3"
    assert phases["decode"]["bytes"] == phases["decode"]["steps"] * 4 * sum(profile.count_weights(folder))


def test_metrics_of_an_earlier_version(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][1:]
    older = [{name.replace("processed_", "fed_"): value for name, value in line.items()} for line in lines]
    assert older != lines
    assert profile.mean_phases(older) == profile.mean_phases(lines)


def test_metrics_of_earlier_versions_are_read():
    found = profile.mean_phases([{"tokens/fed_prefill": 3.0, "tokens/fed_update": 5.0}, {"tokens/fed_prefill": 5.0}])
    assert (found["prefill"]["processed"], found["update"]["processed"]) == (4.0, 2.5)


def test_weights_that_multiply_each_token(make_policy, tmp_path):
    for tied in (False, True):
        model = make_policy("bytes").model
        model.config.tie_word_embeddings = tied
        model.save_pretrained(tmp_path / str(tied))
        body = sum(p.numel() for name, p in model.named_parameters() if "embed" not in name and "lm_head" not in name)
        head = model.get_output_embeddings().weight.numel()
        assert profile.count_weights(tmp_path / str(tied)) == (body, head)


def test_weights_of_an_adapters_base_in_a_gguf_file(tmp_path, monkeypatch):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "far/away.gguf"}))
    asked, shape = [], LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)

    def read(folder, gguf_file=None):
        asked.append((str(folder), gguf_file))
        return shape

    monkeypatch.setattr(gguf.AutoConfig, "from_pretrained", read)
    assert profile.count_weights(tmp_path) == profile.count_config_weights(shape)
    profile.count_weights(tmp_path, "near/by.gguf")
    assert asked == [("far", "away.gguf"), ("near", "by.gguf")]
    assert profile.count_operations(10, False)["update"] == 60 and profile.count_operations(10, True)["update"] == 40


def test_what_is_no_run_is_said(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no run under runs/"):
        profile.main(profile.Args())
    with pytest.raises(ValueError, match=r"holds no metrics\.jsonl"):
        profile.main(profile.Args(run=tmp_path))
    with pytest.raises(ValueError, match="--skip leaves none"):
        profile.main(profile.Args(run=run, skip=3))


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_models_phases(make_policy, tmp_path, capsys, lora_rank):
    if lora_rank:
        pytest.importorskip("peft")
    policy = make_policy("bytes", family="llama")
    policy.model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    args = profile.Args(model=str(tmp_path), lora_rank=lora_rank, rows=10, tokens=90, dtype="bfloat16")
    result = profile.main(args)
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
    phases = result["phases"]
    assert sum(phase["share"] for phase in phases.values()) == pytest.approx(1)
    update = phases["update"]
    assert update["tokens"] == 10 * 90 and update["processed"] < 10 * 90  # two groups, of eight and of two
    assert update["flops"] == pytest.approx(
        (4 if lora_rank else 6) * result["weights"] * update["processed"] / update["seconds"]
    )
    assert phases["prefill"]["tokens"] == 10 * (90 - profile.NEW_TOKENS)
    assert 0 < phases["decode"]["steps"] <= profile.NEW_TOKENS
    assert phases["decode"]["processed"] <= 10 * profile.NEW_TOKENS
    assert 0.05 < result["peak_gib"] < 100


def test_a_run_and_a_model_are_too_much(tmp_path):
    with pytest.raises(ValueError, match="not both"):
        profile.Args(run=tmp_path, model="x")


def test_timing_counts_what_fails_too():
    timing = Timing()
    with pytest.raises(ZeroDivisionError), timing.measure("x", 3):
        torch.ones(1) / (1 // 0)
    taken = timing.pop_metrics()
    assert taken["tokens/x"] == 3.0 and taken["time/x"] >= 0
