"""Runs that meet an outage, a signal, numbers that are not finite or a damaged checkpoint: none loses what it has learned,
and none makes a number of what it has not."""

import errno
import json
import os
import signal
from types import SimpleNamespace

import pytest
import torch

from agent_envs.tool_env import ToolEnv
from experiments import compare
from retrieval_index import durable
from trainers import evaluate, export, grpo, ppo, sft
from trainers.checkpoints import checkpoint
from trainers.episodes.records import read_episodes
from trainers.episodes.report import tables as report
from trainers.evaluation import evaluator
from trainers.loop import setup
from trainers.loop.logger import Logger
from trainers.loop.metrics import CollapseTracker
from trainers.loop.rl_run import RLRun
from trainers.models import lora
from trainers.models.loading import load_policy
from trainers.runtime import retry
from trainers.runtime.progress import read_metrics
from trainers.runtime.signals import TrainingStopped
from trainers.tiny.cold_start import start_policy

SMALL = '{"entities": 60, "questions": 20, "max_turns": 2}'
TIMED = ("seconds", "time/", "tokens/per_second")


@pytest.fixture
def model(make_policy, tmp_path):
    policy = make_policy("subwords")
    policy.model.save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def train(letters, model, tmp_path):
    """Train for three updates in the folder ``name``; with ``resume``, go on there."""

    def run(name="run", resume=False, module=grpo, **changes):
        out = {"resume": tmp_path / name} if resume else {"out": tmp_path / name}
        options = {
            "env": letters, "env_kwargs": SMALL, "model": str(model), "updates": 3, "questions_per_update": 2, "lr": 0.01,
            "group_size": 2, "max_new_tokens": 6, "eval_questions": 2, "eval_every": 100, "final_questions": 2,
        }  # fmt: skip
        return module.main(module.Args(**{**options, **out, **changes}))

    return run


@pytest.fixture
def tools(monkeypatch):
    """Environments all of whose turns have a tool that breaks, while ``tools["broken"]``; no pause is waited for."""
    state, resolve = {"broken": False, "pauses": 0, "mended_after": 99, "now": 0.0}, ToolEnv.resolve

    def break_tools(self, *given):
        *rest, info = resolve(self, *given)
        return *rest, info | {"tool_faults": 2 if state["broken"] else 0}

    def pause(seconds):
        state["pauses"] += 1
        state["now"] += seconds
        state["broken"] = state["pauses"] < state["mended_after"]

    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: state["now"]))
    monkeypatch.setattr(ToolEnv, "resolve", break_tools)
    monkeypatch.setattr(retry, "_pause", pause)
    return state


def weights(folder):
    return load_policy(checkpoint.latest(folder), "cpu").model.state_dict()


def assert_same(ours, theirs):
    """Two runs: weights and metrics, but for how long everything took."""
    assert all(torch.equal(value, weights(theirs)[name]) for name, value in weights(ours).items())
    lines = [
        [{n: v for n, v in line.items() if not n.startswith(TIMED)} for line in read_metrics(folder / "metrics.jsonl")]
        for folder in (ours, theirs)
    ]
    assert lines[0] == lines[1]


def after_first_update(monkeypatch, module, act):
    """Have ``act(metrics)`` called once, after the first update."""
    update, done = module.update, []

    def updated(*given):
        metrics = update(*given)
        if not done:
            done.append(act(metrics))
        return metrics

    monkeypatch.setattr(module, "update", updated)


@pytest.mark.parametrize("module", [grpo, ppo])
def test_after_an_outage_a_run_is_what_it_would_have_been(train, tools, monkeypatch, tmp_path, module, capsys):
    train("whole", module=module)
    with monkeypatch.context() as patch:
        after_first_update(patch, module, lambda metrics: tools.update(broken=True, mended_after=2))
        train("waited", module=module)
    assert "a tool failed in 100% of the episodes: they are rolled out again in 1 s" in capsys.readouterr().err
    assert_same(tmp_path / "whole", tmp_path / "waited")
    with monkeypatch.context() as patch:
        after_first_update(patch, module, lambda metrics: tools.update(broken=True, mended_after=99, pauses=0))
        with pytest.raises(TrainingStopped, match=r"failed in 100%.*checkpoint-1 is saved: 1 of 3 updates; --resume"):
            train("stopped", module=module, tool_outage_minutes=0.1)
    assert tools["pauses"] == 3  # 1, 2 and 3 seconds are 0.1 minutes
    assert [line["step"] for line in read_metrics(tmp_path / "stopped" / "metrics.jsonl")] == [0, 1]
    tools["broken"] = False
    train("stopped", resume=True, module=module)
    assert_same(tmp_path / "whole", tmp_path / "stopped")


def test_an_evaluation_that_failed_is_no_score(train, tools, monkeypatch, tmp_path):
    """The first validation after the outage is given up; the update before it is kept. Going on makes up for it."""
    train("whole", eval_every=1)
    after_first_update(monkeypatch, grpo, lambda metrics: tools.update(broken=True))
    with pytest.raises(TrainingStopped, match=r"checkpoint-1 is saved"):
        train(eval_every=1, tool_outage_minutes=0.0)
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [("eval/em" in line, line["step"]) for line in lines] == [(True, 0), (False, 1)]
    with pytest.raises(TrainingStopped, match="failed in 100%"):
        train("never-begun", tool_outage_minutes=0.0)
    with pytest.raises(TrainingStopped, match="failed in 100%"):
        train(resume=True, eval_every=1)
    tools["broken"] = False
    train(resume=True, eval_every=1)
    assert_same(tmp_path / "whole", tmp_path / "run")
    keys = [
        [record["key"] for record in read_episodes(tmp_path / name / "episodes.jsonl")] for name in ("whole", "run")
    ]
    assert sorted(keys[0]) == sorted(keys[1])


def test_a_few_failed_episodes_are_counted_and_named(train, monkeypatch, tmp_path, capsys):
    resolve = ToolEnv.resolve

    def break_one(self, *given):
        *rest, info = resolve(self, *given)
        return *rest, info | {"tool_faults": 3 if self.question == self.questions[0] else 0}

    monkeypatch.setattr(ToolEnv, "resolve", break_one)
    summary = train(updates=1, final_questions=4)
    assert [row["failed"] for row in summary["rows"]] == [0.25] * 5
    assert summary["rows"][-1]["tool_faults"] % 3 == 0 and summary["rows"][-1]["tool_faults"] > 0
    page = (tmp_path / "run" / "evaluation.md").read_text()
    assert "| Failed |" in page and page.count("| 0.250 |") >= 5
    for line in read_metrics(tmp_path / "run" / "metrics.jsonl")[1:]:
        assert {"train/failed", "train/tool_faults"} <= line.keys()


def test_the_command_evaluate_fails_where_too_many_episodes_did(monkeypatch, tmp_path):
    resolve, share = ToolEnv.resolve, {"of": 10}

    def break_some(self, *given):
        *rest, info = resolve(self, *given)
        share["turns"] = share.get("turns", 0) + 1
        return *rest, info | {"tool_faults": int(share["turns"] % share["of"] == 0)}

    monkeypatch.setattr(ToolEnv, "resolve", break_some)
    args = evaluate.Args(env="AgentR1/Bandit-v0", questions=20, num_envs=4, out=tmp_path / "out")
    with pytest.raises(TrainingStopped, match=r"a tool failed in \d+\.\d% of the episodes of"):
        evaluate.main(args)
    written = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert all(row["tool_faults"] > 0 for row in written["rows"])
    assert "Failed" in (tmp_path / "out" / "evaluation.md").read_text()
    args.max_failed = 1.0
    assert all(0 < row["failed"] < 1 for row in evaluate.main(args))


@pytest.mark.parametrize("where", ["evaluate", "compare", "export"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_command_without_updates_at_once(monkeypatch, tmp_path, capsys, where, number):
    out = tmp_path / "out"

    def interrupt(*_, **__):
        os.kill(os.getpid(), number)
        pytest.fail("it went on")

    monkeypatch.setattr(evaluate, "make_envs", interrupt)
    monkeypatch.setattr(compare.check, "check", interrupt)
    monkeypatch.setattr(export.Args, "check_inputs", lambda _: None)
    monkeypatch.setattr(export.checkpoint, "read_extra", interrupt)
    run = {
        "evaluate": lambda: evaluate.main(evaluate.Args(out=out)),
        "compare": lambda: compare.main(compare.Args(out=out)),
        "export": lambda: export.main(export.Args(checkpoint=tmp_path, out=out)),
    }[where]
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 128 + number
    assert capsys.readouterr().err == f"Stopped by {signal.Signals(number).name}\n"
    assert not out.exists() or not any(out.iterdir())


@pytest.mark.parametrize("what", ["metrics", "weights", "state", "report"])
def test_a_disk_that_gets_full_ends_a_run_in_one_line(train, monkeypatch, tmp_path, what):
    """In the second update, or at the end; libraries say it in words of their own."""
    train("whole")
    number = errno.EROFS if what == "report" else errno.ENOSPC
    full, calls = OSError(number, os.strerror(number)), []
    owner, name, error, fails_at = {
        "metrics": (Logger, "log", full, 3),
        "weights": (checkpoint, "write_checksums", RuntimeError(f"Error: {full.strerror} (os error 28)"), 2),
        "state": (torch, "save", full, 2),
        "report": (report, "write_summary", full, 1),
    }[what]
    works = getattr(owner, name)

    def write(*given, **named):
        calls.append(0)
        if len(calls) == fails_at:
            raise error
        return works(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, write)
        with pytest.raises(
            TrainingStopped, match=rf"run cannot be written to \({full.strerror}\)\. .*checkpoint-"
        ) as ended:
            train(save_every=1)
    assert f"--resume {tmp_path / 'run'}" in str(ended.value) and "\n" not in str(ended.value)
    assert all(path.name.startswith("checkpoint-") for path in checkpoint.step_folders(tmp_path / "run"))
    assert checkpoint.find_latest(tmp_path / "run")[1] == []
    train(resume=True, save_every=1)
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_an_evaluation_is_shown_before_it_is_written(monkeypatch, tmp_path, capsys):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable, "write_text", refuse)
    with pytest.raises(OSError, match="No space left"):
        evaluate.main(evaluate.Args(env="AgentR1/Bandit-v0", questions=4, num_envs=4, out=tmp_path / "out"))
    assert "Random agent" in capsys.readouterr().out


def test_what_else_goes_wrong_in_a_run_is_no_full_disk(train, monkeypatch):
    monkeypatch.setattr(Logger, "log", lambda *_: {}["x"])
    with pytest.raises(KeyError):
        train()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_after_the_update_in_hand(train, monkeypatch, tmp_path, capfd, number):
    train("whole", eval_every=1)
    with monkeypatch.context() as patch:
        after_first_update(patch, grpo, lambda metrics: os.kill(os.getpid(), number))
        with pytest.raises(SystemExit) as ended:
            train("parts", eval_every=1)
    assert ended.value.code == 128 + number
    said = capfd.readouterr().err
    assert f"Stopped by {signal.Signals(number).name}: " in said and "Traceback" not in said
    assert "checkpoint-1 is saved: 1 of 3 updates; --resume" in said
    assert "Unfinished, after 1 of 3 updates." in (tmp_path / "parts" / "evaluation.md").read_text()
    assert "Unfinished, after 1 of 3 updates." in (tmp_path / "parts" / "report.html").read_text()
    assert (tmp_path / "parts" / "learning_curve.png").exists() and not (tmp_path / "parts" / "summary.json").exists()
    train("parts", resume=True, eval_every=1)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_signal_ends_fine_tuning_after_the_update_in_hand(model, monkeypatch, tmp_path, capfd):
    def run(**where):
        kwargs = '{"entities": 60, "questions": 24}'
        return sft.main(sft.Args(env_kwargs=kwargs, model=str(model), demonstrations=6, updates=3, **where))

    whole = load_policy(run(out=tmp_path / "whole")["checkpoint"], "cpu").model.state_dict()
    with monkeypatch.context() as patch:
        after_first_update(patch, sft, lambda metrics: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit) as ended:
            run(out=tmp_path / "parts")
    assert ended.value.code == 143 and "checkpoint-1 is saved: 1 of 3 updates; --resume" in capfd.readouterr().err
    again = load_policy(run(resume=tmp_path / "parts")["checkpoint"], "cpu").model.state_dict()
    assert all(torch.equal(value, again[name]) for name, value in whole.items())


def spoil(policy):
    next(policy.model.parameters()).data.view(-1)[3] = float("nan")


def test_weights_that_are_not_finite_are_refused_when_they_are_loaded(make_policy, model, tmp_path, letters):
    policy = make_policy("subwords")
    checkpoint.save(tmp_path / "good", model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=1, extra={})
    spoil(policy)
    checkpoint.save(tmp_path / "bad", model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=1, extra={})
    load_policy(tmp_path / "good")
    with pytest.raises(ValueError, match=r"bad holds numbers that are NaN or infinite, in model\.embed_tokens\.weight"):
        load_policy(tmp_path / "bad")
    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(2)).sum().backward()
    optimizer.step()
    optimizer.state[module.weight]["exp_avg"][0, 0] = float("inf")
    common = {"model": make_policy("subwords").model, "tokenizer": None, "step": 1, "extra": {}}
    checkpoint.save(tmp_path / "moments", optimizers=[optimizer], **common)
    with pytest.raises(ValueError, match=r"NaN or infinite, in optimizers\.0\.state\.0\.exp_avg"):
        checkpoint.load_state(tmp_path / "moments", [optimizer])
    module.bias.data[0] = float("nan")
    checkpoint.save(tmp_path / "critic", optimizers=[], modules={"critic": module}, **common)
    with pytest.raises(ValueError, match=r"NaN or infinite, in modules\.critic\.bias"):
        checkpoint.load_state(tmp_path / "critic", [], {"critic": module})


def test_an_adapter_that_is_not_finite_is_refused(model, tmp_path):
    pytest.importorskip("peft")
    policy = load_policy(model, "cpu", lora_rank=2)
    lora.trainable_parameters(policy.model)[0].data[0, 0] = float("inf")
    policy.model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match="adapter holds numbers that are NaN or infinite"):
        load_policy(tmp_path / "adapter", "cpu")


@pytest.mark.parametrize("what", ["loss", "weight"])
def test_training_stops_where_a_number_is_not_finite(train, monkeypatch, tmp_path, what):
    def spoil_update(metrics):
        if what == "loss":
            metrics["policy/loss"] = float("nan")
        else:
            spoil(policies[-1])

    policies, start = [], setup.start_policy

    def start_policy(*given):
        policies.append(start(*given)[0])
        return policies[-1], 0.0

    monkeypatch.setattr(setup, "start_policy", start_policy)
    after_first_update(monkeypatch, grpo, spoil_update)
    with pytest.raises(
        TrainingStopped, match=r"(policy/loss is nan|in model\.embed.*) after update 1, which is not saved"
    ):
        train(save_every=1)
    assert checkpoint.latest(tmp_path / "run") is None


def test_fine_tuning_stops_where_a_loss_is_not_finite(model, monkeypatch, tmp_path):
    after_first_update(monkeypatch, sft, lambda metrics: metrics.update({"train/loss": float("inf")}))
    kwargs = '{"entities": 60, "questions": 24}'
    with pytest.raises(TrainingStopped, match="train/loss is inf after update 1"):
        sft.main(sft.Args(env_kwargs=kwargs, model=str(model), demonstrations=6, updates=3, out=tmp_path / "run"))


def test_the_best_weights_are_those_of_one_kind_of_evaluation(train, monkeypatch, tmp_path, capsys):
    """A score on few questions, or sampled, is no measure for one on others."""
    scores = iter([0.1, 1.0, 0.2, 0.4])
    monkeypatch.setattr(RLRun, "evaluate", lambda self, done: {"eval/em": next(scores)})
    train(eval_every=1, save_every=1, updates=1)
    run = tmp_path / "run"
    train(updates=2, resume=run, out=None, eval_every=1)
    assert checkpoint.read_extra(run / "best")["best"]["score"] == 1.0
    assert "chosen by other evaluations" not in capsys.readouterr().err
    train(updates=3, resume=run, out=None, eval_every=1, eval_questions=3)
    assert checkpoint.read_extra(run / "best")["best"] == {
        "update": 3, "score": 0.4, "eval_questions": 3, "eval_temperature": 0.0
    }  # fmt: skip
    assert "best was chosen by other evaluations" in capsys.readouterr().err


def test_the_newest_checkpoints_and_the_best_weights_are_kept(train, monkeypatch, tmp_path, capsys):
    scores = iter([0.1, 0.3, 0.2, 0.3])
    monkeypatch.setattr(RLRun, "evaluate", lambda self, done: {"eval/em": next(scores)})
    train(eval_every=1, save_every=1, save_total_limit=1)
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.is_dir()) == ["best", "checkpoint-3"]
    assert checkpoint.read_extra(tmp_path / "run" / "best")["best"]["update"] == 1
    said = capsys.readouterr().err
    assert "checkpoint-1 is removed" in said and "checkpoint-2 is removed" in said
    with pytest.raises(ValueError, match="save_total_limit must be at least 1"):
        grpo.Args(save_total_limit=0)


def test_weights_that_do_no_better_than_the_start_are_not_kept(train, monkeypatch, tmp_path):
    scores = iter([0.5, 0.3, 0.5, 0.2])
    monkeypatch.setattr(RLRun, "evaluate", lambda self, done: {"eval/em": next(scores)})
    train(eval_every=1)
    assert not (tmp_path / "run" / "best").exists()


@pytest.mark.parametrize("stops", [True, False])
def test_a_collapse_ends_a_run_that_is_to_stop_there_and_no_other(train, monkeypatch, stops):
    monkeypatch.setattr(CollapseTracker, "record", lambda *_: True)
    summary = train(stop_on_collapse=stops)
    assert summary["stopped_on_collapse"] == stops and summary["episodes"] == (4 if stops else 12)


@pytest.mark.parametrize("lost", ["model.safetensors", "SHA256SUMS"])
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(train, tmp_path, capsys, lost):
    run = tmp_path / "run"
    train(save_every=1, eval_every=3)
    expected = weights(run)
    (run / "summary.json").unlink()
    if lost == "SHA256SUMS":
        (run / "checkpoint-3" / lost).unlink()
    else:
        content = bytearray((run / "checkpoint-3" / lost).read_bytes())
        content[-1] ^= 1
        (run / "checkpoint-3" / lost).write_bytes(content)
    with pytest.raises(checkpoint.CheckpointDamaged):  # nor is it taken for a plain model
        evaluator.load_agent(run / "checkpoint-3")
    with pytest.raises(checkpoint.CheckpointDamaged):
        start_policy(grpo.Args(model=str(run / "checkpoint-3")), None, 0)
    capsys.readouterr()
    train(resume=True, eval_every=3)
    said = capsys.readouterr().err
    assert "It is set aside as checkpoint-3.damaged, and checkpoint-2 is continued from" in said
    assert "the last 1 updates are after the checkpoint" in said
    assert (run / "checkpoint-3.damaged").is_dir()
    assert all(torch.equal(value, weights(run)[name]) for name, value in expected.items())
    for path in checkpoint.step_folders(run):
        (path / "SHA256SUMS").unlink()
    with pytest.raises(ValueError, match=r"no checkpoint in .* is whole: "):
        train(resume=True)
    with pytest.raises(ValueError, match="holds an earlier run"):
        train()


def test_what_an_earlier_run_left_is_not_deleted(train, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 0, "episodes": 0}\n')
    train(updates=1)
    assert (tmp_path / "run" / "metrics.jsonl.earlier").read_text() == '{"step": 0, "episodes": 0}\n'
    assert "is kept as metrics.jsonl.earlier" in capsys.readouterr().err
