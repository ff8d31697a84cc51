import io
import math

import numpy as np
import pytest
from rich.console import Console

from trainers.runtime import progress as module
from trainers.runtime.progress import Progress, to_json_types


def test_finite_reaches_into_nested_values(tmp_path):
    value = {"a": [1.5, math.inf, (np.int64(3), np.array([1.0, np.nan]))], "b": tmp_path, 3: None, "c": True}
    assert to_json_types(value) == {"a": [1.5, None, [3, [1.0, None]]], "b": str(tmp_path), "3": None, "c": True}


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_outside_a_terminal_progress_is_a_plain_line_now_and_then(clock, capsys):
    with Progress(100, initial=20) as progress:
        for step in range(21, 61):
            clock[0] += 1.0
            progress.update(step, reward=0.5, tokens_per_s=12345.6)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "training 21/100 steps · 1:19 left · reward 0.50 · tokens/s 12,346"
    assert lines[-1] == "training 60/100 steps · 0:40 left · reward 0.50 · tokens/s 12,346"
    assert len(lines) == 5


def test_the_time_left_is_that_to_the_limit_which_is_nearer(clock, capsys):
    with Progress(80, "updates", initial=20) as progress:  # a quarter of its seconds had been spent
        clock[0] = 60.0
        progress.update(4, share=0.5)
    assert capsys.readouterr().err.splitlines()[0] == "training 4/80 updates · 2:00 left"


def test_figures_stay_until_they_are_given_again_scores_first(capsys):
    with Progress(2) as progress:
        progress.update(0, **{"held-out em": 0.25})
        progress.update(1, reward=0.5, **{"train em": 0.36})
    assert capsys.readouterr().err.endswith(" left · train em 0.36 · held-out em 0.25 · reward 0.50\n")


@pytest.mark.parametrize("width", [60, 120])
def test_in_a_terminal_progress_is_one_live_line(monkeypatch, width):
    screen = io.StringIO()
    monkeypatch.setattr(module, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=width))
    with Progress(10) as progress:
        assert screen.getvalue() == ""  # before there is progress
        for step in range(1, 11):
            progress.update(step, reward=0.25, em=0.5, turns_per_episode=2.5, tokens_per_s=5120)
    last = screen.getvalue().splitlines()[-2]
    assert "training" in last and "━" * 10 in last
    text = "10/10 steps · 0:00 left · reward 0.25 · em 0.50 · turns/episode 2.50 · tokens/s 5,120"
    assert text[: width - 20] in last
