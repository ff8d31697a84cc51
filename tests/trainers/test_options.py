"""What the command line shows, and how it names what is wrong."""

import subprocess
import sys
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path

import pytest

from trainers import gigpo, grpo, ppo
from trainers.cli import parse

ROOT = Path(__file__).resolve().parents[3]


def test_defaults_are_those_of_the_dataclass():
    for module in (grpo, ppo, gigpo):
        assert parse(module.Args(), module.__doc__, "x", []) == module.Args()
    preset = grpo.Args(lr=0.5, log=("tensorboard",))
    assert parse(preset, "", "x", []) == preset


def test_what_is_given_is_put_over_them():
    words = "--lr 1e-3 --no-loss-mask --log wandb tensorboard --turn-credit --out a/b --filter mixed".split()
    expected = replace(
        grpo.Args(), lr=1e-3, loss_mask=False, log=("wandb", "tensorboard"), turn_credit=True, out=Path("a/b"), filter="mixed"
    )  # fmt: skip
    assert parse(grpo.Args(), "", "grpo", words) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lr", "-1"], "python -m trainers.grpo: lr must be above 0, got -1.0"),
        (["--ahead"], "python -m trainers.grpo: --ahead is now called --one-step-off-policy"),
        (["--no_ahead"], "--ahead is now called --one-step-off-policy"),
        (["--cold-start-patience=.5"], "is now called --cold-start-continue-probability"),
        (["--kl-target", "0.1"], "kl_target steers kl_coef"),
        (["--lrr", "1"], "--lrr"),
    ],
)
def test_a_mistake_is_said_and_ends_with_2(capsys, words, said):
    with pytest.raises(SystemExit) as stopped:
        parse(grpo.Args(), grpo.__doc__, "grpo", words)
    assert stopped.value.code == 2
    told = capsys.readouterr()
    assert said in told.err + told.out


def test_help_is_in_groups_in_the_words_of_the_docstrings(capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(grpo.Args(), grpo.__doc__, "grpo", ["--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert "usage: python -m trainers.grpo" in said
    groups = ("environment", "model", "sampling", "optimisation", "algorithm", "evaluation", "output")
    places = [said.index(f" {group} options ") for group in groups]
    assert places == sorted(places)
    assert "--turn-credit" in said[said.index(" algorithm options ") : said.index(" evaluation options ")]
    assert "``" not in said


def test_the_help_of_an_option_is_that_of_the_class_that_sets_it(capsys):
    @dataclass(kw_only=True)
    class Mine(grpo.Args):
        """Mine."""

        lr: float = 1e-4
        """A rate of my own."""

    with pytest.raises(SystemExit):
        parse(Mine(), "", "mine", ["--help"])
    assert "A rate of my own. (default: 0.0001)" in capsys.readouterr().out
    without_source = make_dataclass("Plain", [("x", int, 1)])
    assert parse(without_source(), None, "plain", ["--x", "2"]).x == 2


@pytest.mark.parametrize(
    "command", ["grpo", "ppo", "rloo", "reinforce", "gigpo", "starpo", "sft", "play", "evaluate", "compare", "profile"]
)
def test_help_comes_before_torch(command):
    code = "\n".join(
        [
            "import sys, runpy",
            "sys.argv = ['x', '--help']",
            f"try: runpy.run_module('trainers.{command}', run_name='__main__', alter_sys=True)",
            "except SystemExit: print('torch' in sys.modules, 'transformers' in sys.modules)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"
