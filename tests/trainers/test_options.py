"""What the command line shows, what a configuration sets, and how mistakes are named."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from agent_envs.formats import Hermes
from trainers import cli, gigpo, grpo, ppo, sft
from trainers.cli import parse
from trainers.config import CONFIGS, find_config, mutable_on_resume, read_config, select_options

ROOT = Path(__file__).resolve().parents[2]


def test_defaults_are_those_of_the_dataclass():
    for module in (grpo, ppo, gigpo):
        assert parse(module.Args(), module.__doc__, "x", []) == module.Args()
    preset = grpo.Args(lr=0.5, report_to=("tensorboard",))
    assert parse(preset, "", "x", []) == preset


def test_what_is_given_is_put_over_them():
    words = "--lr 1e-3 --schedule linear --report-to wandb tensorboard --turn-credit --out a/b --filter mixed".split()
    expected = replace(
        grpo.Args(), lr=1e-3, schedule="linear", report_to=("wandb", "tensorboard"), turn_credit=True, out=Path("a/b"),
        filter="mixed",
    )  # fmt: skip
    assert parse(grpo.Args(), "", "grpo", words) == expected


def test_a_class_and_a_data_set_in_arguments_of_the_environment_have_names(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path))
    data = Dataset.from_list([{"question": "Who?", "answer": "Ada"}])
    given = json.loads(grpo.Args(env_kwargs={"format": Hermes, "data": data, "k": 2}).env_kwargs)
    assert given.pop("data") == str(next(tmp_path.rglob("questions.parquet")))
    assert given == {"format": "agent_envs.formats.hermes:Hermes", "k": 2}


def test_a_configuration_is_put_over_the_defaults_and_options_over_it(tmp_path):
    file = tmp_path / "mine.toml"
    text = 'algorithm = "grpo"\nlr = 0.25\ndual_clip = 3.0\ngroup_size = 4\nout = "a/b"\n[env_kwargs]\nk = 2\n'
    file.write_text(text)
    given = parse(grpo.Args(), "", "grpo", ["--config", str(file), "--group-size", "6"])
    assert (given.lr, given.dual_clip, given.group_size, given.out) == (0.25, 3.0, 6, Path("a/b"))
    assert given.env_kwargs == '{"k": 2}'


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.toml")))
def test_shipped_configurations_set_arguments_that_there_are(name):
    text = find_config(name).read_text(encoding="utf-8")
    algorithm = "ppo" if 'algorithm = "ppo"' in text else "grpo"
    defaults = {"grpo": grpo, "ppo": ppo}[algorithm].Args()
    values = read_config(name, defaults, algorithm)
    if "dtype" in values and "model" not in values:  # left to the user
        values["model"] = "a/b"
    args = replace(defaults, **values)
    assert args != defaults


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lr", "-1"], "python -m trainers.grpo: lr must be above 0, got -1.0"),
        (["--dual-clip", "3"], "dual_clip is a key of a configuration file, and no option: --config FILE.toml"),
        (["--no-loss-mask"], "loss_mask is a key of a configuration file"),
        (["--config", "starpo-s"], "starpo-s is a configuration of ppo: python -m trainers.ppo --config starpo-s"),
        (["--config", "nothing"], "there is no configuration nothing: give a TOML file or one of agent-r1, "),
        (["--config", "unknown.toml"], "unknown.toml has unknown keys: lrr; trainers.grpo --help-all lists all"),
        (["--config", "broken.toml"], "broken.toml is not valid TOML: "),
        (["--lrr", "1"], "--lrr"),
    ],
)
def test_a_mistake_is_said_in_one_line_and_ends_with_2(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    Path("unknown.toml").write_text("lrr = 1\n")
    Path("broken.toml").write_text("lr = = 1\n")
    with pytest.raises(SystemExit) as stopped:
        parse(grpo.Args(), grpo.__doc__, "grpo", words)
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("error", [MemoryError("too much"), torch.OutOfMemoryError("CUDA out of memory. Tried")])
def test_out_of_memory_is_said_with_what_takes_less(capsys, error):
    cli._report_end("python -m trainers.grpo", type(error), error, None)
    told = capsys.readouterr().err
    assert told.startswith("python -m trainers.grpo: out of memory (") and told.count("\n") == 1
    for name in ("max-tokens-per-micro-batch", "gradient-checkpointing", "dtype bfloat16", "lora-rank"):
        assert f"--{name}" in told


def read_help(capsys, args, flag: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        parse(args, grpo.__doc__, "grpo", [flag])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_help_shows_what_matters_first(capsys):
    shown, advanced, hidden = (select_options(grpo.Args(), kind) for kind in ("shown", "advanced", "config"))
    assert (len(shown), len(shown + advanced)) == (26, 45)
    short, whole = read_help(capsys, grpo.Args(), "--help"), read_help(capsys, grpo.Args(), "--help-all")
    in_short, in_whole = (
        set(re.findall(r"^\W{1,2}--([a-z][a-z-]+)", text.partition(" options ")[2], re.M)) for text in (short, whole)
    )
    dashed = [{name.replace("_", "-") for name in names} for names in (shown, advanced, hidden)]
    assert dashed[0] <= in_short
    assert not dashed[1] & in_short
    assert dashed[0] | dashed[1] <= in_whole
    assert not dashed[2] & in_whole
    assert all(name in whole for name in hidden)  # said to be keys of a configuration
    assert "usage: python -m trainers.grpo" in short
    assert "``" not in short


def test_the_help_of_an_option_is_that_of_the_class_that_sets_it(capsys):
    @dataclass(kw_only=True)
    class Mine(grpo.Args):
        """Mine."""

        lr: float = 1e-4
        """A rate of my own,
        over two lines."""

    shown = " ".join(read_help(capsys, Mine(), "--help").split())
    assert "A rate of my own, over two lines. (default: 0.0001)" in shown


def test_what_a_resumed_run_may_change():
    free = mutable_on_resume(grpo.Args())
    assert {"updates", "max_seconds", "eval_every", "save_total_limit", "report_to", "out", "resume"} <= free
    assert not free & set("lr seed env env_kwargs model group_size loss temperature dtype kl_coef".split())
    assert free - mutable_on_resume(grpo.Args(schedule="linear")) == {"updates", "max_seconds"}
    assert not mutable_on_resume(sft.Args()) & {"updates", "max_seconds", "epochs", "eval_every", "keep", "lr"}
