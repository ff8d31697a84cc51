import json
import runpy
import sys

import pytest

from trainers import grpo, starpo
from trainers.runtime.progress import read_metrics

SMALL = {"entities": 60, "questions": 20, "max_turns": 2}


def test_the_configurations_are_those_of_the_papers():
    plain, stabilised, ragen2 = (starpo.make_args(name) for name in ("starpo", "starpo-s", "ragen-2"))
    for args in (plain, stabilised, ragen2):
        assert (args.questions_per_update, args.group_size) == (8, 16)
        assert (args.gamma, args.lam) == (1.0, 1.0)
    assert (plain.filter, plain.kl_coef, plain.clip_range) == ("none", 0.001, (0.2, 0.2))
    assert (stabilised.filter, stabilised.kl_coef) == ("uncertain", 0.0)
    assert stabilised.clip_range == (0.2, 0.28)
    assert (ragen2.filter, ragen2.kl_coef) == ("signal", 0.0)


def test_over_grpo_they_have_grpos_own_estimator():
    for name in ("starpo", "starpo-s", "ragen-2"):
        over_ppo, over_grpo = starpo.make_args(name), starpo.make_args(f"{name}-grpo")
        assert isinstance(over_grpo, grpo.Args)
        assert over_grpo.scale_by_std
        for field in ("questions_per_update", "group_size", "filter", "kl_coef", "clip_low", "clip_high"):
            assert getattr(over_grpo, field) == getattr(over_ppo, field)


@pytest.mark.parametrize("name", ["starpo-s", "starpo-s-grpo"])
def test_a_run_from_the_command_line(letters, model_folder, tmp_path, monkeypatch, name):
    words = {
        "env": letters, "env-kwargs": json.dumps(SMALL), "model": model_folder, "updates": 1, "questions-per-update": 4,
        "group-size": 3, "max-new-tokens": 6, "eval-questions": 4, "final-questions": 4, "out": tmp_path / "run",
    }  # fmt: skip
    argv = ["starpo", name, *(str(word) for option, value in words.items() for word in (f"--{option}", value))]
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.delitem(sys.modules, "trainers.starpo")  # or Python warns that it is there already
    runpy.run_module("trainers.starpo", run_name="__main__")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["algorithm"] == name
    assert summary["rows"][-1]["name"] == f"Trained with {name}"
    line = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    assert line["policy/grad_norm"] > 0
    assert line["filter/kept"] == 0.25  # one group of four
    assert ("policy/value_loss" in line) == (not name.endswith("-grpo"))
