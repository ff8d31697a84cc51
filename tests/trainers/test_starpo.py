import json
import runpy
import sys

import pytest
import tyro

from trainers import grpo, ppo, starpo
from trainers.runtime.progress import read_metrics


def chosen(*words):
    return tyro.extras.overridable_config_cli(starpo.PRESETS, args=list(words))


def test_the_presets_are_those_of_the_papers():
    plain, stabilised, ragen2 = (chosen(name) for name in ("starpo", "starpo-s", "ragen-2"))
    for args in (plain, stabilised, ragen2):
        assert (args.questions_per_update, args.group_size) == (8, 16)
        assert (args.gamma, args.lam) == (1.0, 1.0)
    assert (plain.filter, plain.kl_coef, plain.clip_range) == ("none", 0.001, (0.2, 0.2))
    assert (stabilised.filter, stabilised.kl_coef) == ("uncertain", 0.0)
    assert stabilised.clip_range == (0.2, 0.28)
    assert (ragen2.filter, ragen2.kl_coef) == ("signal", 0.0)


def test_over_grpo_they_have_grpos_own_estimator():
    for name in ("starpo", "starpo-s", "ragen-2"):
        over_ppo, over_grpo = chosen(name), chosen(f"{name}-grpo")
        assert isinstance(over_grpo, grpo.Args)
        assert over_grpo.scale_by_std
        for field in ("questions_per_update", "group_size", "filter", "kl_coef", "clip_low", "clip_high"):
            assert getattr(over_grpo, field) == getattr(over_ppo, field)


def test_gspo_has_the_clip_range_of_sequences(monkeypatch):
    ran = []
    monkeypatch.setattr(grpo, "main", lambda args, name: ran.append(args.clip_range))
    for words in ((), ("--loss", "gspo"), ("--loss", "gspo", "--clip-low", "0.1", "--clip-high", "0.3")):
        starpo.main("starpo-grpo", chosen("starpo-grpo", *words))
    assert ran == [(0.2, 0.2), (3e-4, 4e-4), (0.1, 0.3)]


def test_options_stand_beside_the_preset():
    args = chosen("starpo-s", "--env", "AgentR1/Bandit-v0", "--updates", "3", "--bi-level", "--filter", "signal")
    assert (args.env, args.updates, args.bi_level, args.filter) == ("AgentR1/Bandit-v0", 3, True, "signal")
    assert args.group_size == 16
    assert starpo.PRESETS["starpo-s"][1].updates == ppo.Args().updates  # the preset is left as it was
    for wrong in (["starpo-x"], [], ["starpo", "--filter", "best"]):
        with pytest.raises(SystemExit):
            chosen(*wrong)


@pytest.mark.parametrize("name", ["starpo", "starpo-s", "ragen-2", "starpo-s-grpo"])
def test_a_run_from_the_command_line(letters, make_policy, tmp_path, monkeypatch, name):
    policy = make_policy("bpe", 3)
    policy.model.save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    words = {
        "env": letters, "env-kwargs": '{"entities": 60, "questions": 20, "max_turns": 2}', "model": tmp_path / "model",
        "updates": 2, "questions-per-update": 4, "group-size": 3, "max-new-tokens": 6, "eval-questions": 4,
        "final-questions": 4, "out": tmp_path / "run",
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
    kept = {"starpo": None, "starpo-s": 0.25, "starpo-s-grpo": 0.25}  # one group of four
    assert line.get("filter/kept") == kept.get(name, line.get("filter/kept"))
    assert ("policy/value_loss" in line) == (not name.endswith("-grpo"))
