import io
import json
import math
import sys

import numpy as np
import pytest
import torch
from rich.console import Console

from trainers import grpo
from trainers.runtime import progress as logger_module
from trainers.runtime.progress import METRICS_FILE, Logger, Progress, logged_as, read_metrics, to_json_types


def steps(folder):
    return [line["step"] for line in read_metrics(folder / METRICS_FILE)]


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
    assert steps(tmp_path) == [0, 1, 2]
    assert read_metrics(path)[1] == lines[1]
    assert 100.0 <= read_metrics(path)[2]["seconds"] < 160.0


def test_without_resume_a_run_starts_over(tmp_path):
    for _ in range(2):
        with Logger(tmp_path) as logger:
            logger.log(0, {})
            logger.log(1, {})
    assert steps(tmp_path) == [0, 1]


def test_unknown_sinks_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"\['mlflow'\].*tensorboard.*trackio.*wandb"):
        Logger(tmp_path / "run", sinks=("mlflow", "wandb"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=f"pip install {name}"):
        Logger(tmp_path, sinks=(name,))


def test_tensorboard_gets_the_same_numbers(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with Logger(tmp_path, sinks=("tensorboard",), config={"lr": math.nan, "folder": tmp_path}) as logger:
        logger.log(1, {"eval/em": 0.25})
        logger.log(2, {"eval/em": 0.75})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("eval/em")] == [(1, 0.25), (2, 0.75)]


class Hosted:
    """Stands for both packages, of which this uses `init`, `log`, `finish`, the `id` of a run and `Table`."""

    __spec__ = True  # installed

    class Table:
        def __init__(self, *, dataframe):
            self.rows = dataframe.to_dict("records")

    def __init__(self):
        self.id, self.inits, self.logged, self.finished = "abc", [], [], 0

    def init(self, **arguments):
        self.inits.append(arguments)
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


def test_hosted_sinks_get_the_same_numbers_and_a_resumed_run_keeps_its_identity(tmp_path, hosted):
    trackio, wandb = hosted
    for resume_from in (0, 1):
        with Logger(tmp_path / "run-7", ("trackio", "wandb"), {"lr": 1e-3}, resume_from=resume_from) as logger:
            logger.log(resume_from, {"em": 0.5})
    for sink in (trackio, wandb):
        assert sink.logged == [(0, {"em": 0.5}), (1, {"em": 0.5})]
        assert sink.finished == 2
        assert all(call["name"] == "run-7" and call["config"] == {"lr": 1e-3} for call in sink.inits)
    assert [call["resume"] for call in trackio.inits] == ["never", "allow"]
    assert [call["id"] for call in wandb.inits] == [None, "abc"]


def test_project_name_and_group_are_given_to_hosted_sinks(tmp_path, hosted):
    args = grpo.Args(log_project="towns", log_name="first", log_group="seeds")
    with Logger(tmp_path / "run-7", ("trackio", "wandb"), **logged_as(args)):
        pass
    with Logger(tmp_path / "run-8", ("trackio", "wandb"), **logged_as(grpo.Args())):
        pass
    for sink in hosted:
        named = [(call["project"], call["name"], call["group"]) for call in sink.inits]
        assert named == [("towns", "first", "seeds"), ("agent-r1", "run-8", None)]


EPISODE = {
    "key": "evaluation/4/policy/0/0", "question": "Where?\x1b[2J", "golds": ["a", "b"], "score": 1.0, "return": 1.25,
    "turns": [{}, {}], "messages": [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "``` <b>there"}],
}  # fmt: skip


def test_sinks_get_a_table_of_the_first_episodes(tmp_path, hosted):
    with Logger(tmp_path, ("trackio", "wandb")) as logger:
        logger.show_episodes(4, [json.dumps(EPISODE | {"score": float(number)}) for number in range(20)])
    for sink in hosted:
        ((step, shown),) = sink.logged
        rows = shown["eval/episodes"].rows
        assert step == 4 and [row["score"] for row in rows] == list(range(16))
        assert rows[0]["question"] == "Where?\\x1b[2J" and rows[0]["golds"] == "a | b" and rows[0]["turns"] == 2
        assert rows[0]["conversation"] == "[user] Where?\n\n[assistant] ``` <b>there"


def test_tensorboard_shows_episodes_as_text_that_is_no_markup(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with Logger(tmp_path, ("tensorboard",)) as logger:
        logger.show_episodes(4, [json.dumps(EPISODE)])
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (event,) = events.Tensors("eval/episodes/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert event.step == 4 and "<b>there" in text and all(line.startswith("    ") for line in text.splitlines())


def test_an_evaluation_of_a_run_shows_its_episodes(tmp_path, hosted, letters, make_policy):
    policy = make_policy("subwords", 3)
    policy.model.save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    grpo.main(
        grpo.Args(
            env=letters, env_kwargs='{"entities": 60, "questions": 20, "max_turns": 2}', model=str(tmp_path / "model"),
            updates=1, questions_per_update=2, group_size=2, max_new_tokens=6, eval_questions=3, eval_every=1,
            final_questions=2, log=("wandb",), log_group="g", out=tmp_path / "run",
        )
    )  # fmt: skip
    shown = [(step, metrics["eval/episodes"].rows) for step, metrics in hosted[1].logged if "eval/episodes" in metrics]
    assert [(step, len(rows)) for step, rows in shown] == [(0, 3), (1, 3)]
    assert all(row["key"].startswith(f"evaluation/{step}/policy/") for step, rows in shown for row in rows)
    assert hosted[1].inits[0]["group"] == "g" and hosted[1].inits[0]["config"]["log_group"] == "g"


def test_finite_reaches_into_nested_values(tmp_path):
    value = {"a": [1.5, math.inf, (np.int64(3), np.array([1.0, np.nan]))], "b": tmp_path, 3: None, "c": True}
    assert to_json_types(value) == {"a": [1.5, None, [3, [1.0, None]]], "b": str(tmp_path), "3": None, "c": True}


def test_outside_a_terminal_progress_is_a_plain_line_now_and_then(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(logger_module.time, "monotonic", lambda: clock[0])
    with Progress(100, initial=20) as progress:
        for step in range(21, 61):
            clock[0] += 1.0
            progress.update(step, reward=0.5, tokens_per_s=12345.6)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "training 21/100 steps · 1:19 left · reward 0.50 · tokens/s 12,346"
    assert lines[-1] == "training 60/100 steps · 0:40 left · reward 0.50 · tokens/s 12,346"
    assert len(lines) == 5


def test_the_time_left_is_that_to_the_limit_which_is_nearer(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(logger_module.time, "monotonic", lambda: clock[0])
    with Progress(80, "updates", initial=20) as progress:  # a quarter of its seconds had been spent
        clock[0] = 60.0
        progress.update(4, share=0.5)
    assert capsys.readouterr().err.splitlines()[0] == "training 4/80 updates · 2:00 left"


def test_figures_stay_until_they_are_given_again(capsys):
    with Progress(600, unit="s") as progress:
        progress.update(0, em=0.25)
        progress.update(300.4, turns_per_episode=2.5)
    assert " · em 0.25 · turns/episode 2.50" in capsys.readouterr().err.splitlines()[-1]


def test_scores_come_first_those_of_training_before_the_held_out_ones(capsys):
    with Progress(2) as progress:
        progress.update(0, **{"held-out em": 0.25})
        progress.update(1, reward=0.5, **{"train em": 0.36})
    assert capsys.readouterr().err.endswith(" left · train em 0.36 · held-out em 0.25 · reward 0.50\n")


def test_there_is_no_bar_before_there_is_progress(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(logger_module, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=80))
    with Progress(10):
        pass
    assert screen.getvalue() == ""


@pytest.mark.parametrize("width", [60, 80, 120])
def test_in_a_terminal_progress_is_one_live_line(monkeypatch, width):
    screen = io.StringIO()
    monkeypatch.setattr(logger_module, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=width))
    with Progress(10) as progress:
        for step in range(1, 11):
            progress.update(step, reward=0.25, em=0.5, turns_per_episode=2.5, tokens_per_s=5120)
    last = screen.getvalue().splitlines()[-2]
    assert "training" in last and "━" * 10 in last
    text = "10/10 steps · 0:00 left · reward 0.25 · em 0.50 · turns/episode 2.50 · tokens/s 5,120"
    assert text[: width - 20] in last


@pytest.mark.parametrize("damage", ["3", "null", "[]", "{}", '{"step": "x"}', '"x"', "\0\0\0"])
def test_a_line_that_is_none_does_not_keep_a_run_from_going_on(tmp_path, damage):
    (tmp_path / METRICS_FILE).write_text(f'{{"step": 1}}\n{damage}\n{{"step": 2}}\n')
    with Logger(tmp_path, resume_from=3):
        pass
    assert [line["step"] for line in read_metrics(tmp_path / METRICS_FILE)] == [1, 2]
