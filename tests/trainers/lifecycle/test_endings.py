"""Runs that meet failed episodes or numbers that are not finite, commands that are stopped, and which weights are kept;
`test_interruptions` has runs that go on."""

import errno
import json
import os
import shutil
import signal

import pytest
import torch

from agent_envs.tool_env import ToolEnv
from experiments import compare
from retrieval_index import durable
from trainers import evaluate, grpo, sft
from trainers.checkpoints import checkpoint
from trainers.lifecycle import setup
from trainers.lifecycle.collapse_monitor import CollapseMonitor
from trainers.lifecycle.rl_run import RLRun
from trainers.models.loading import load_policy
from trainers.runtime import integrity
from trainers.runtime.progress import read_metrics
from trainers.runtime.signals import TrainingStopped


@pytest.fixture
def train(short_run, tmp_path):
    """Train for three updates; with ``resume``, go on there."""

    def run(resume=None, module=grpo, **changes):
        where = {"resume": resume} if resume else {"out": tmp_path / "run"}
        few = {"updates": 3, "group_size": 2, "eval_questions": 2, "eval_every": 100, "final_questions": 2}
        return module.main(short_run(module, **few | {"save_every": 100} | where | changes))

    return run


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


@pytest.mark.parametrize("module", [evaluate, compare])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_command_without_updates_at_once(monkeypatch, tmp_path, capsys, module, number):
    out = tmp_path / "out"

    def interrupt(*_, **__):
        os.kill(os.getpid(), number)
        pytest.fail("it went on")

    monkeypatch.setattr(evaluate, "make_envs", interrupt)
    monkeypatch.setattr(compare.check, "check", interrupt)
    with pytest.raises(SystemExit) as ended:
        module.main(module.Args(out=out))
    assert ended.value.code == 128 + number
    assert capsys.readouterr().err == f"Stopped by {signal.Signals(number).name}\n"
    assert not out.exists() or not any(out.iterdir())


def test_an_evaluation_is_shown_before_it_is_written(monkeypatch, tmp_path, capsys):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable, "write_text", refuse)
    with pytest.raises(OSError, match="No space left"):
        evaluate.main(evaluate.Args(env="AgentR1/Bandit-v0", questions=4, num_envs=4, out=tmp_path / "out"))
    assert "Random agent" in capsys.readouterr().out


def spoil(policy):
    next(p for p in policy.model.parameters() if p.requires_grad).data.view(-1)[3] = float("nan")


def test_weights_that_are_not_finite_are_refused_when_they_are_loaded(make_policy, model_folder, tmp_path):
    pytest.importorskip("peft")
    adapted = load_policy(model_folder, "cpu", lora_rank=2)
    spoil(adapted)
    adapted.model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match="adapter holds numbers that are NaN or infinite"):
        load_policy(tmp_path / "adapter", "cpu")
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


@pytest.mark.parametrize("what", ["loss", "weight", "sft"])
def test_training_stops_where_a_number_is_not_finite(train, model_folder, monkeypatch, tmp_path, what):
    policies, start, module = [], setup.start_policy, sft if what == "sft" else grpo
    update = module.update

    def start_policy(*given):
        policies.append(start(*given)[0])
        return policies[-1], 0.0

    def spoil_update(*given):
        metrics = update(*given)
        if what == "weight":
            spoil(policies[-1])
        else:
            metrics["train/loss" if what == "sft" else "policy/loss"] = float("nan")
        return metrics

    monkeypatch.setattr(setup, "start_policy", start_policy)
    monkeypatch.setattr(module, "update", spoil_update)
    said = r"(policy/loss is nan|train/loss is nan|in model\.embed.*) after update 1, which is not saved"
    with pytest.raises(TrainingStopped, match=said):
        if what == "sft":
            kwargs, out = {"entities": 60, "questions": 24}, tmp_path / "run"
            few = {"demonstrations": 6, "updates": 3, "save_every": 1}
            sft.main(sft.Args(env_kwargs=kwargs, model=model_folder, out=out, **few))
        else:
            train(save_every=1)
    assert integrity.latest(tmp_path / "run") is None


def test_the_newest_checkpoints_and_the_best_weights_are_kept(train, monkeypatch, tmp_path, capsys):
    scores = iter([0.1, 0.3, 0.2, 0.3])
    monkeypatch.setattr(RLRun, "evaluate", lambda self, done: {"eval/em": next(scores)})
    train(eval_every=1, save_every=1, save_total_limit=1)
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.is_dir()) == ["best", "checkpoint-3"]
    assert checkpoint.read_extra(tmp_path / "run" / "best")["best"]["update"] == 1
    printed, said = capsys.readouterr()
    assert "checkpoint-1 is removed" in said and "checkpoint-2 is removed" in said
    last = "The table has the weights after 3 updates."
    assert f"{last} --checkpoint {tmp_path / 'run'} takes best, from update 1." in " ".join(printed.split())
    with pytest.raises(ValueError, match="save_total_limit must be at least 1"):
        grpo.Args(save_total_limit=0)


def test_the_best_weights_outlive_a_run_that_goes_on_from_before_them(train, monkeypatch, tmp_path):
    """On a GPU, updates that are made again end elsewhere."""
    scores = iter([0.1, 0.2, 0.5, 0.3, 0.4, 0.4])
    monkeypatch.setattr(RLRun, "evaluate", lambda self, done: {"eval/em": next(scores)})
    train(eval_every=1, save_every=1, save_total_limit=9)
    for lost in ("checkpoint-3", "checkpoint-2"):
        shutil.rmtree(tmp_path / "run" / lost)
    train(tmp_path / "run", eval_every=1, save_every=1, save_total_limit=9)
    assert checkpoint.read_extra(tmp_path / "run" / "best")["best"] == {"update": 2, "score": 0.5}


def test_after_a_signal_the_resumed_run_evaluates(train, monkeypatch, tmp_path):
    """A kill may come sooner than the end of an evaluation."""

    def update(*given):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*given)

    real, evaluated = grpo.update, []
    monkeypatch.setattr(RLRun, "evaluate", lambda self, done: evaluated.append(done) or {"eval/em": done / 10})
    with monkeypatch.context() as patched:
        patched.setattr(grpo, "update", update)
        with pytest.raises(SystemExit):
            train(eval_every=1)
    run = tmp_path / "run"
    assert evaluated == [0] and integrity.latest(run).name == "checkpoint-1" and not (run / "best").exists()
    train(run, eval_every=1)
    assert evaluated == [0, 1, 2, 3] and checkpoint.read_extra(run / "best")["best"]["update"] == 3
    lines = read_metrics(run / "metrics.jsonl")
    assert [line["eval/em"] for line in lines if "eval/em" in line] == [0.0, 0.1, 0.2, 0.3]
    assert [line["step"] for line in lines if "time/update" in line] == [1, 2, 3]


def test_weights_that_do_no_better_than_the_start_are_not_kept(train, monkeypatch, tmp_path):
    scores = iter([0.5, 0.3, 0.5, 0.2])
    monkeypatch.setattr(RLRun, "evaluate", lambda self, done: {"eval/em": next(scores)})
    train(eval_every=1)
    assert not (tmp_path / "run" / "best").exists()


@pytest.mark.parametrize("stops", [True, False])
def test_a_collapse_ends_a_run_that_is_to_stop_there_and_no_other(train, monkeypatch, stops):
    monkeypatch.setattr(CollapseMonitor, "record", lambda *_: True)
    summary = train(stop_on_collapse=stops)
    assert summary["stopped_on_collapse"] == stops and summary["episodes"] == (4 if stops else 12)


def test_a_run_that_was_to_end_there_does_not_train_on(train, monkeypatch, tmp_path):
    """It was killed after its last update, before its report."""
    monkeypatch.setattr(CollapseMonitor, "record", lambda *_: True)
    with monkeypatch.context() as patch:
        patch.setattr(RLRun, "close", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(stop_on_collapse=True)
    summary = train(resume=tmp_path / "run", out=None, stop_on_collapse=True)
    assert summary["stopped_on_collapse"]
    assert summary["episodes"] == 4


def test_what_an_earlier_run_left_is_not_deleted(train, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 0, "episodes": 0}\n')
    train(updates=1)
    assert (tmp_path / "run" / "metrics.jsonl.earlier").read_text() == '{"step": 0, "episodes": 0}\n'
    assert "is kept as metrics.jsonl.earlier" in capsys.readouterr().err
