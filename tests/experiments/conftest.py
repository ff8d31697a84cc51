"""The fixtures of the trainers' tests, and the command of a comparison."""

import pytest
import tyro

from experiments import compare
from tests.trainers.conftest import *  # noqa: F403


@pytest.fixture
def ask(tmp_path):
    """``ask(text, *words)``: the arguments of the command for a recipe, with words of the command line."""

    def make(text, *words):
        (tmp_path / "small.toml").write_text(text, encoding="utf-8")
        words = ("--recipe", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out"), *words)
        return tyro.cli(compare.Args, args=words)

    return make
