"""What is around an algorithm's loop."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from trainers import grpo
from trainers.lifecycle import run as loop_run
from trainers.lifecycle.rl_run import RLRun
from trainers.lifecycle.setup import open_setup


@pytest.fixture
def args(short_run, tmp_path):
    return short_run(grpo, updates=3, group_size=2, eval_questions=2, out=tmp_path / "run", one_step_off_policy=True)


def make_optimizer(setup):
    return grpo.make_optimizer(setup.policy, [{"params": list(setup.policy.model.parameters()), "lr": 1e-3}])


def test_an_error_in_the_loop_leaves_no_thread_behind(args):
    before = threading.active_count()
    with (
        pytest.raises(ZeroDivisionError),
        open_setup(args, "mine", "Mine") as setup,
        RLRun(setup, make_optimizer(setup)) as run,
    ):
        for step in run.steps():
            run.collect(step)  # the next batch is being collected now
            raise ZeroDivisionError
    assert threading.active_count() == before


def test_a_loop_of_ones_own(args, monkeypatch):
    clock = SimpleNamespace(ahead=0.0, monotonic=lambda: time.monotonic() + clock.ahead)
    monkeypatch.setattr(loop_run, "time", clock)
    args, asked = replace(args, eval_temperature=0.7, final_questions=3, out=args.out), set()
    with open_setup(args, "mine", "Mine") as setup, RLRun(setup, make_optimizer(setup)) as run:
        evaluate = setup.evaluate
        setup.evaluate = lambda count, *a, **b: asked.add((count, b.get("temperature"))) or evaluate(count, *a, **b)
        for step in run.steps():
            step.log({"mine/episodes": float(len(run.collect(step)))})
            clock.ahead += 1000  # an outage, which is no part of the training
            step.waited += 1000
        assert 0 < run.run.seconds < 1000
        summary = run.close()
    assert asked == {(2, 0.7), (3, None)}  # the closing table has the task's own settings
    assert summary["algorithm"] == "mine" and summary["rows"][-1]["name"] == "Mine"
    assert (args.out / "checkpoint-3").is_dir() and '"mine/episodes": 4.0' in (args.out / "metrics.jsonl").read_text()
