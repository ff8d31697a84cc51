"""Model cards; tests/trainers/lifecycle/test_resume.py has those of a run."""

import json
import shlex
from pathlib import Path

from huggingface_hub import HfApi, ModelCard

from trainers import cli, grpo
from trainers.checkpoints import card
from trainers.checkpoints.settings import describe_arguments

ARGUMENTS = {
    "env": "AgentR1/HotpotQA-v0", "env_kwargs": '{"data": "/home/me/data"}', "algorithm": "grpo", "model": "/home/me/x",
    "changed": ["env_kwargs", "lr", "turn_credit", "out"], "lr": 0.5, "turn_credit": True, "out": "/home/me/run",
}  # fmt: skip


def test_the_metadata_names_only_what_the_hub_knows():
    adapter = card.make_card(ARGUMENTS, Path("none"), "best", "Qwen/Qwen2.5-0.5B-Instruct")
    data = ModelCard(adapter).data
    assert data.base_model == "Qwen/Qwen2.5-0.5B-Instruct" and data.library_name == "peft" and "lora" in data.tags
    assert data.datasets == ["hotpotqa/hotpot_qa"] and data.base_model_relation == "adapter"
    whole = card.make_card(ARGUMENTS, Path("none"), "checkpoint-5", None)
    data = ModelCard(whole).data
    assert (data.base_model, data.library_name, data.pipeline_tag) == (None, "transformers", "text-generation")
    assert "/home/me" not in whole and "The weights after 5 updates." in whole
    options = """--env AgentR1/HotpotQA-v0 --model x --env-kwargs '{"data": "data"}' --lr 0.5 --turn-credit"""
    assert f"\npython -m trainers.grpo {options}\n" in whole


def test_it_says_what_an_agent_needs_to_act_as_in_training():
    """Neither folders nor which questions it learned from."""
    assert "--env AgentR1/HotpotQA-v0\n```" in card.make_card(ARGUMENTS, Path("none"), "best", None)
    tasks = {"tasks": {"AgentR1/MuSiQue-v0": 1, "AgentR1/NQ-v0": 1}, "k": 2}
    kwargs = json.dumps({"data": "/home/me/data", "holdout": 9} | tasks)
    acts = {"thinking": "off", "max_new_tokens": 1024, "changed": ["thinking", "max_new_tokens"]}
    mixed = ARGUMENTS | {"env": "AgentR1/Mixture-v0", "env_kwargs": kwargs} | acts
    written = card.make_card(mixed, Path("none"), "best", None)
    assert len(ModelCard(written).data.datasets) == 2
    told = f"--env-kwargs '{json.dumps(tasks)}' --thinking off --max-new-tokens 1024"
    assert f"play --checkpoint FOLDER_OR_ID --env AgentR1/Mixture-v0 {told}\n" in written


def test_its_command_repeats_the_run(tmp_path, monkeypatch):
    """With a file of what no command line takes."""
    monkeypatch.chdir(tmp_path)
    ran = grpo.Args(
        config="dapo", overlong_buffer=16, normalize="tokens", kl_target=1e-5, kl_coef=0.1, scale_by_std=False
    )
    written = card.make_card(json.loads(describe_arguments(ran)), tmp_path, "best", None)
    command, file = (written.partition(f"```{kind}\n")[2].partition("\n```")[0] for kind in ("bash", "toml"))
    (tmp_path / "FILE.toml").write_text(file)
    assert "--normalize" not in command
    again = cli.parse(grpo.Args(), "", "grpo", shlex.split(command)[3:])
    assert json.loads(describe_arguments(again)) == json.loads(describe_arguments(ran))


def test_a_run_of_a_program_names_its_file_and_how_to_evaluate_it():
    ran = ARGUMENTS | {"env": "/home/me/tasks.jsonl", "env_kwargs": "{}", "agent": "mine:solve"}
    written = card.make_card(ran, Path("none"), "best", None)
    assert "/home/me" not in written and "`tasks.jsonl`, a file of tasks for a program." in written
    assert "python -m trainers.evaluate --agent mine:solve --checkpoint FOLDER_OR_ID --env tasks.jsonl\n" in written


def test_it_says_which_weights_were_evaluated(tmp_path):
    for step in (2, 4):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "weights").touch()
    row = {"success": 0.75, "success_interval": (0.5, 1.0), "turns": 1.0, "calls": 0.0, "failed": 0.0, "episodes": 8}
    summary = {"rows": [{"name": name, **row} for name in ("Random agent", "Trained with GRPO")], "source": "seeds"}
    for name in ("checkpoint-2", "checkpoint-4", "best"):
        text = card.make_card(ARGUMENTS, tmp_path, name, None, summary)
        assert ("The trained policy is that after 4 updates." in text) == (name != "checkpoint-4")
        assert "Source: seeds." in text and "| Random agent |" in text


def test_a_push_that_fails_loses_nothing(tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(HfApi, "create_repo", fail)
    assert not card.push(tmp_path, "me/agent")
    said = capsys.readouterr().err
    assert said.startswith("Warning: ") and "ConnectionError: no network" in said and said.count("\n") == 1
    assert "To try again: hf upload me/agent" in said
