"""What is around an algorithm's loop."""

import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from trainers import grpo
from trainers.episodes.records import EPISODES_FILE, read_episodes
from trainers.lifecycle import run as loop_run
from trainers.lifecycle import setup as loop_setup
from trainers.lifecycle.rl_run import RLRun
from trainers.lifecycle.setup import BEFORE, open_setup


@pytest.fixture
def args(short_run, tmp_path):
    return short_run(grpo, updates=3, group_size=2, eval_questions=2, out=tmp_path / "run", one_step_off_policy=True)


def make_optimizer(setup):
    return grpo.make_optimizer(setup.policy, [{"params": list(setup.policy.model.parameters()), "lr": 1e-3}])


def test_an_error_in_the_loop_leaves_no_thread_behind(args):
    before = set(threading.enumerate())
    with (
        pytest.raises(ZeroDivisionError),
        open_setup(args, "mine", "Mine") as setup,
        RLRun(setup, make_optimizer(setup)) as run,
    ):
        for step in run.steps():
            run.collect(step)  # the next batch is being collected now
            raise ZeroDivisionError
    assert not set(threading.enumerate()) - before  # those of other tests may end meanwhile


def test_a_loop_of_ones_own(args, monkeypatch):
    clock = SimpleNamespace(ahead=0.0, monotonic=lambda: time.monotonic() + clock.ahead)
    monkeypatch.setattr(loop_run, "time", clock)
    args, asked = replace(args, eval_temperature=0.7, final_questions=3, out=args.out), set()
    with open_setup(args, "mine", "Mine") as setup, RLRun(setup, make_optimizer(setup)) as run:
        evaluate = setup.evaluate
        setup.evaluate = lambda count, *rest: asked.add((count, rest[1])) or evaluate(count, *rest)
        for step in run.steps():
            step.log({"mine/episodes": float(len(run.collect(step)))})
            clock.ahead += 1000  # an outage, which is no part of the training
            step.waited += 1000
        assert 0 < run.run.seconds < 1000
        summary = run.close()
    assert asked == {(2, 0.7), (3, 0.0)}  # the closing table has the task's own settings
    assert summary["algorithm"] == "mine" and summary["rows"][-1]["name"] == "Mine"
    assert (args.out / "checkpoint-3").is_dir() and '"mine/episodes": 4.0' in (args.out / "metrics.jsonl").read_text()


def test_a_question_is_rolled_out_once_by_the_same_weights(args, monkeypatch):
    """The evaluations before and after training are part of the table's first and last row."""
    roll_out, greedy = loop_setup.rollout, []

    def rolled_out(*args, questions, temperature, **options):
        if temperature == 0:
            greedy.append(questions)
        return roll_out(*args, questions=questions, temperature=temperature, **options)

    monkeypatch.setattr(loop_setup, "rollout", rolled_out)
    args = replace(args, updates=2, eval_every=1, eval_questions=2, final_questions=3, out=args.out)
    with open_setup(args, "mine", "Mine") as setup, RLRun(setup, make_optimizer(setup)) as run:
        for step in run.steps():
            run.collect(step)
        run.close()
    assert greedy == [[0, 1, 2], [0, 1], [0, 1], [2]]  # of the weights after 0, 1, 2 and 2 updates
    records = [r for r in read_episodes(args.out / EPISODES_FILE) if r["phase"] == "evaluation"]
    ours = Counter(r["step"] for r in records if r["agent"] in ("Mine", BEFORE))
    assert ours == {0: 2 + 3, 1: 2, 2: 2 + 3}  # each evaluation has records of its own
