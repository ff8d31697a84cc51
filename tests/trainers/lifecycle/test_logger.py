import json
import math
import sys

import numpy as np
import pytest
import torch

from trainers.lifecycle.logger import Logger
from trainers.runtime.progress import METRICS_FILE, read_metrics


def test_each_log_is_one_line_on_disk_at_once(tmp_path):
    with Logger(tmp_path / "run") as logger:
        logger.log(3, {"train/em": np.float32(0.5), "loss": torch.tensor(2.0), "kl": math.nan, "ratio": -math.inf})
        (line,) = (tmp_path / "run" / METRICS_FILE).read_text().splitlines()
    seconds = json.loads(line).pop("seconds")
    expected = {"step": 3, "seconds": seconds, "train/em": 0.5, "loss": 2.0, "kl": None, "ratio": None}
    assert json.loads(line, parse_constant=pytest.fail) == expected
    assert 0 <= seconds < 60


def test_resume_drops_later_lines_and_a_cut_one_and_goes_on_with_the_clock(tmp_path):
    path = tmp_path / METRICS_FILE
    lines = [{"step": step, "seconds": 100.0 * step, "em": None} for step in (0, 1, 2, 3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4, "secon')
    with Logger(tmp_path, resume_from=2) as logger:
        logger.log(2, {"em": 1.0})
    kept = read_metrics(path)
    assert [line["step"] for line in kept] == [0, 1, 2] and kept[1] == lines[1]
    assert 100.0 <= kept[2]["seconds"] < 160.0
    with Logger(tmp_path) as logger:  # not resumed
        logger.log(0, {})
    assert [line["step"] for line in read_metrics(path)] == [0]


@pytest.mark.parametrize("damage", ["3", "null", "[]", "{}", '{"step": "x"}', '"x"', "\0\0\0"])
def test_a_line_that_is_none_does_not_keep_a_run_from_going_on(tmp_path, damage):
    (tmp_path / METRICS_FILE).write_text(f'{{"step": 1}}\n{damage}\n{{"step": 2}}\n')
    with Logger(tmp_path, resume_from=3):
        pass
    assert [line["step"] for line in read_metrics(tmp_path / METRICS_FILE)] == [1, 2]


class Hosted:
    """Stands for both packages, of which this uses `init`, `log`, `finish` and the `id` and `name` of a run."""

    __spec__ = True  # installed

    def __init__(self):
        self.id, self.inits, self.logged, self.finished = "abc", [], [], 0
        self.name = ""

    def init(self, **arguments):
        self.inits.append(arguments)
        self.name = arguments["name"].removesuffix("-2") + "-2"  # there is one of this name
        return self

    def log(self, metrics, step):
        self.logged.append((step, metrics))

    def finish(self):
        self.finished += 1


@pytest.fixture
def hosted(monkeypatch):
    """Stand-ins of Trackio and W&B."""
    packages = Hosted(), Hosted()
    for name, package in zip(("trackio", "wandb"), packages, strict=True):
        monkeypatch.setitem(sys.modules, name, package)
    return packages


def test_hosted_sinks_get_the_same_numbers_and_a_resumed_run_keeps_its_identity(tmp_path, hosted, monkeypatch):
    trackio, wandb = hosted
    for resume_from in (0, 1):
        with Logger(tmp_path / "run-7", ("trackio", "wandb"), {"lr": 1e-3}, resume_from=resume_from) as logger:
            logger.log(resume_from, {"em": 0.5})
    for sink in (trackio, wandb):
        assert sink.logged == [(0, {"em": 0.5}), (1, {"em": 0.5})]
        assert sink.finished == 2
        named = [(call["project"], call["config"]) for call in sink.inits]
        assert named == [("agent-r1", {"lr": 1e-3})] * 2
    assert [call["name"] for call in trackio.inits] == ["run-7", "run-7-2"]
    assert [call["name"] for call in wandb.inits] == ["run-7", "run-7"]
    assert [call["resume"] for call in trackio.inits] == ["never", "allow"]
    assert [call["id"] for call in wandb.inits] == [None, "abc"]
    for name, value in (("TRACKIO_PROJECT", "towns"), ("WANDB_PROJECT", "towns"), ("WANDB_NAME", "first")):
        monkeypatch.setenv(name, value)
    with Logger(tmp_path / "run-8", ("trackio", "wandb")):
        pass
    assert [(sink.inits[-1]["project"], sink.inits[-1]["name"]) for sink in hosted] == [
        ("towns", "run-8"),
        ("towns", "first"),
    ]
    with Logger(tmp_path / "run-7", ("wandb",), resume_from=2) as logger:
        logger.log(1, {"em": 0.6})  # an evaluation that is made up for
    assert wandb.logged[-1] == (2, {"em": 0.6})


def test_tensorboard_gets_the_same_numbers(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with Logger(tmp_path, sinks=("tensorboard",), config={"lr": math.nan, "folder": tmp_path}) as logger:
        logger.log(1, {"eval/em": 0.25})
        logger.log(2, {"eval/em": 0.75})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("eval/em")] == [(1, 0.25), (2, 0.75)]
