"""A run that goes on takes its arguments from its checkpoint; its checkpoints say what they are, here and on the hub."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.utils import filter_repo_objects

from trainers import export, grpo, sft
from trainers.checkpoints import checkpoint
from trainers.checkpoints import run_dir as run_folder
from trainers.checkpoints.settings import restore
from trainers.cli import parse
from trainers.episodes.records import read_episodes
from trainers.lifecycle.setup import Setup
from trainers.models.loading import load_policy
from trainers.runtime import integrity
from trainers.tiny import cold_start
from trainers.tiny.cold_start import START


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def hub():
    """The files of each repository that was uploaded to."""
    repositories = {}

    def upload_folder(self, repo_id, folder_path, ignore_patterns):
        names = [path.relative_to(folder_path).as_posix() for path in Path(folder_path).rglob("*")]
        repositories[repo_id] = set(filter_repo_objects(names, ignore_patterns=ignore_patterns))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HfApi, "create_repo", lambda self, name, private, exist_ok: SimpleNamespace(repo_id=name))
        patch.setattr(HfApi, "upload_folder", upload_folder)
        patch.setenv("HF_TOKEN", "hf_secret")
        yield repositories


@pytest.fixture(scope="module")
def args(folder, short_run):
    options = {"updates": 1, "eval_every": 1, "turn_credit": True, "push_to_hub": "me/agent"}
    return short_run(grpo, env="MiniWiki", out=folder / "run", **options)


@pytest.fixture(scope="module")
def run(args, hub):
    grpo.main(args)
    return args.out


def ask(run: Path, *words: str) -> grpo.Args:
    return parse(grpo.Args(), "", "grpo", ["--resume", str(run), *words])


def test_a_run_goes_on_with_nothing_else_given(run, args):
    assert ask(run) == replace(args, out=None, resume=run)
    assert parse(grpo.Args(), "", "grpo", [f"--resume={run}", "--updates", "9"]).updates == 9
    assert restore(grpo.Args(), run) == ask(run)


def test_it_goes_on(run, capsys):
    summary = grpo.main(ask(run, "--updates", "2", "--push-to-hub", ""))
    assert " · train em 0.00 · held-out em 0.00 · " in capsys.readouterr().err
    assert summary["settings"]["updates"] == 2 and (run / "checkpoint-2").is_dir()


def test_fine_tuning_goes_on_likewise(folder, model_folder, capsys):
    options = {"env_kwargs": {"entities": 60, "questions": 24}, "script": ["oracle", "scripted"], "demonstrations": 6}
    args = sft.Args(**options, model=model_folder, updates=2, save_every=1, out=folder / "sft")
    sft.main(args)
    words = ["--resume", str(folder / "sft")]
    assert parse(sft.Args(), "", "sft", words) == replace(args, out=None, resume=folder / "sft")
    again = [*words, "--script", "oracle", "--script", "scripted"]  # as it was given the first time
    assert parse(sft.Args(), "", "sft", again).script == ("oracle", "scripted")
    with pytest.raises(ValueError, match="is finished"):
        sft.main(replace(args, out=None, resume=folder / "sft"))
    for given in (["--updates", "3"], ["--script", "oracle"], ["--lr", "0.1"]):
        with pytest.raises(SystemExit):
            parse(sft.Args(), "", "sft", words + given)
        assert f"{given[0][2:]}=" in capsys.readouterr().err
    text = (folder / "sft" / "best" / "README.md").read_text()
    assert "--script oracle --script scripted" in text


def test_a_checkpoint_says_what_it_is(run, args):
    path = run / "checkpoint-1"
    text = (path / "README.md").read_text()
    data = ModelCard.load(path / "README.md").data
    assert data.library_name == "transformers" and "grpo" in data.tags and data.base_model is None
    for part in ("`AgentR1/MiniWiki-v0` with", "| Trained with GRPO", "--turn-credit"):
        assert part in text, part
    assert str(run.parent) not in text
    integrity.verify(path)  # the card was written anew, and is no damage
    (path / "README.md").write_text("mine")
    integrity.verify(path)


def test_what_lies_on_the_hub_is_not_for_training_alone(run, hub, folder):
    assert {"README.md", "model.safetensors", "tokenizer.json"} <= hub["me/agent"]
    assert not hub["me/agent"] & {"trainer_state.pt", "SHA256SUMS", "arguments.json"}
    out = export.main(export.Args(checkpoint=run / "checkpoint-1", out=folder / "given", push_to_hub="me/other"))
    assert (out / "README.md").is_file() and hub["me/other"] >= {"README.md", "model.safetensors"}
    assert not (out / "arguments.json").exists() and str(folder) not in (out / "README.md").read_text()


@pytest.fixture
def saved(make_policy, tmp_path):
    """A checkpoint of a policy over bytes."""
    policy = make_policy("bytes")
    path = tmp_path / "checkpoint-1"
    return checkpoint.save(path, model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=1, extra={})


def test_weights_of_another_vocabulary_are_refused(make_policy, saved):
    """They would be taken for those of other words, where the numbers of tokens are equal."""
    policy = make_policy("bytes")
    run_folder.load_weights(policy, saved)
    swapped = json.loads((saved / "tokenizer.json").read_text())
    words = swapped["model"]["vocab"]
    first, second = [word for word in words if len(word) == 1][:2]
    words[first], words[second] = words[second], words[first]
    (saved / "tokenizer.json").write_text(json.dumps(swapped))
    with pytest.raises(ValueError, match=r"has another vocabulary .*begin another run with --model"):
        run_folder.load_weights(policy, saved)


def test_going_on_leaves_the_precision_of_products_alone(make_policy, saved):
    """Beside layers in bfloat16 a GPU multiplies in TF32; what reads a checkpoint in float32 must not end that."""
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        run_folder.load_weights(make_policy("bytes"), saved)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.fixture
def train(short_run, tmp_path, small_cold_start):
    """Train the tiny policy on Bandit after a cold start of two steps; with ``resume``, go on. Returns its weights."""

    def run(name, resume=False, **changes):
        where = {"resume": tmp_path / name} if resume else {"out": tmp_path / name}
        options = {"env": "Bandit", "env_kwargs": {}, "model": "tiny", "cold_start_steps": 2, "kl_coef": 0.1}
        few = {"group_size": 2, "eval_every": 100, "eval_questions": 2, "final_questions": 2}
        grpo.main(short_run(grpo, **options | few | where | changes))
        return load_policy(integrity.latest(tmp_path / name), "cpu").model.state_dict()

    return run


def test_a_run_keeps_its_own_cold_start(train, tmp_path, monkeypatch, capsys):
    """The cache may be gone, and another version teaches otherwise: it goes on as if nothing had changed."""
    whole = train("whole", updates=2)
    train("parts", updates=1)
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr(cold_start, "make_policy", lambda *_: pytest.fail("a cold start was made anew"))
    parts = train("parts", resume=True, updates=2)
    assert all(torch.equal(weight, parts[name]) for name, weight in whole.items())

    damaged = tmp_path / "parts" / START / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    capsys.readouterr()
    with pytest.raises(pytest.fail.Exception, match="made anew"):
        train("parts", resume=True, updates=3)
    assert "the cold start is made anew" in capsys.readouterr().err


def test_a_run_that_goes_on_has_its_baselines(train, tmp_path, monkeypatch):
    """They are played again only about other questions; then the records are of these, once each."""

    def summarize():
        rows = json.loads((tmp_path / "run" / "summary.json").read_text())["rows"]
        records = read_episodes(tmp_path / "run" / "episodes.jsonl")
        return rows, [record["key"] for record in records if record["table"] and record["agent"] != rows[-1]["name"]]

    train("run", updates=1)
    rows, keys = summarize()
    assert len(keys) == len(set(keys)) == 2 * (len(rows) - 1) > 0
    with monkeypatch.context() as patch:
        patch.setattr(Setup, "_evaluate_baselines", lambda self: pytest.fail("baselines were evaluated again"))
        train("run", resume=True, updates=2)
    assert summarize()[1] == keys
    assert summarize()[0][:-1] == rows[:-1]
    train("run", resume=True, updates=3, final_questions=3)
    again, keys = summarize()
    assert {row["episodes"] for row in again} == {3}
    assert len(keys) == len(set(keys)) == 3 * (len(again) - 1)
    first = next(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    assert first["advantage"] == first["seconds"] == 0.0  # has a type, which `datasets` takes for all
