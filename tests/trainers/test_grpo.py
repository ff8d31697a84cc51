"""A run of GRPO from its first line to its report."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from trainers import evaluate, factory, grpo
from trainers.checkpoints.run_dir import create_run_dir
from trainers.episodes.report import figures
from trainers.runtime import integrity
from trainers.runtime.progress import read_metrics


def test_a_whole_run(short_run, letters, tmp_path, capsys, monkeypatch, save_picture):
    monkeypatch.setattr(figures, "save", save_picture)
    out = tmp_path / "run"
    args = short_run(grpo, updates=4, save_every=2, final_questions=6, report_to=("tensorboard",), out=out)
    summary = grpo.main(args)
    written = json.loads((out / "summary.json").read_text())
    assert written["env"] == letters and written["episodes"] == 4 * 6
    assert written["source"].startswith("miniwiki:validation")
    scores = {f"em_{agent}" for agent in ("cold_start", "trained")}
    assert scores | {"seed", "seconds_cold_start", "seconds_training"} <= set(written)
    assert [row["episodes"] for row in summary["rows"]] == [6] * 5
    lines = read_metrics(out / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert [line["step"] for line in lines if "eval/em" in line] == [0, 2, 4]
    assert lines[-1]["episodes"] == 24
    for line in lines[1:]:
        terms = sum(value for name, value in line.items() if name.startswith("reward/"))
        assert terms == pytest.approx(line["train/return"], abs=1e-6)
        assert line["policy/sampler_kl"] == pytest.approx(0, abs=1e-6)
    assert (out / "learning_curve.png").stat().st_size > 10_000
    assert written["source"] in (out / "evaluation.md").read_text()
    page = (out / "report.html").read_text()
    assert "Trained with GRPO</th>" in page and "Unfinished" not in page
    assert list(out.glob("**/events.out.tfevents.*"))
    shown, told = capsys.readouterr()
    assert "baselines 0/" in told, "what comes before the first update takes minutes with a large model"
    assert "Trained with GRPO" in shown and out.name in shown
    rows = evaluate.main(
        evaluate.Args(
            env=letters, env_kwargs=args.env_kwargs, checkpoint=(integrity.latest(out),), questions=6, max_new_tokens=6,
            out=out,
        )
    )  # fmt: skip
    assert {**rows[-1], "name": ""} == {**summary["rows"][-1], "name": ""}


def test_questions_of_ones_own_kind_need_no_ids():
    def envs(*questions):
        return SimpleNamespace(envs=[SimpleNamespace(questions=questions)])

    factory.check_splits(envs("a", "b"), envs("b"))  # whether they are the same is not known
    ours, theirs = SimpleNamespace(id="1"), SimpleNamespace(id="2")
    factory.check_splits(envs(ours, "a"), envs(theirs, "a"))
    with pytest.raises(ValueError, match="1 held-out questions are training questions too"):
        factory.check_splits(envs(ours, theirs), envs("a", ours))


def test_learning_raises_the_return(short_run, tmp_path):
    """A random policy is paid for lower-case letters, so it should soon write little else."""
    many = dict(updates=12, questions_per_update=2, group_size=8, lr=0.03, eval_every=100, save_every=100)
    grpo.main(short_run(grpo, **many, out=tmp_path / "run"))
    returns = [line["train/return"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")[1:]]
    assert np.mean(returns[-3:]) > np.mean(returns[:3]) + 0.3


def test_a_run_without_a_name_gets_a_folder_of_its_own(short_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for expected in ("runs/grpo-Letters-v0-0", "runs/grpo-Letters-v0-0-2"):
        with create_run_dir(short_run(grpo), "grpo") as folder:
            (folder / "summary.json").touch()
        assert str(folder) == expected


@pytest.mark.parametrize(
    ("millions", "has_adapter", "rates"),
    [(1, False, (5e-4, 1e-3)), (135, False, (1e-6, 1e-4)), (135, True, (2e-4, 1e-4)), (3000, True, (1e-5, 1e-5))],
)
def test_learning_rates_follow_the_size_of_the_model(millions, has_adapter, rates):
    model = SimpleNamespace(num_parameters=lambda: millions * 1_000_000, **{"peft_config": {}} if has_adapter else {})
    assert grpo.default_rates(model) == rates
