"""Steps in turn: what is timed, in which order, and a runner that breaks."""

import time
from functools import partial
from pathlib import Path

import pytest

from benchmarks.training.race import race


def sleeper(log: Path, name: str, seconds: float, pace) -> dict:
    steps = 0
    pace()
    for _ in range(3):
        with log.open("a") as file:
            file.write(name)
        time.sleep(seconds)
        steps += 1
        pace()
    return {"steps": steps}


def broken(pace) -> dict:
    pace()
    raise ValueError("no further")


def test_one_step_each_in_turn_and_each_round_begins_with_another(tmp_path):
    log = tmp_path / "order"
    seconds, said = race({name: partial(sleeper, log, name, wait) for name, wait in (("a", 0.0), ("b", 0.2))}, 3)
    assert log.read_text() == "abbaab"
    assert said == {"a": {"steps": 3}, "b": {"steps": 3}}
    assert all(len(values) == 3 for values in seconds.values())
    assert min(seconds["b"]) >= 0.2  # and the time of waiting for others is not counted:
    assert sum(seconds["a"]) < 0.6


def test_a_runner_that_breaks_is_named(capfd):
    with pytest.raises(RuntimeError, match="second ended early"):
        race({"second": broken}, 3)
    assert "no further" in capfd.readouterr().err
