"""What is around an algorithm's loop."""

import threading

import pytest

from trainers import grpo
from trainers.loop.trainer import Run


@pytest.fixture
def args(letters, make_policy, tmp_path):
    policy = make_policy("subwords")
    policy.model.save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    return grpo.Args(
        env=letters, env_kwargs='{"entities": 60, "questions": 20, "max_turns": 2}', model=str(tmp_path / "model"), updates=3,
        questions_per_update=2, group_size=2, max_new_tokens=6, eval_questions=2, final_questions=2, out=tmp_path / "run",
        one_step_off_policy=True,
    )  # fmt: skip


def optimizer_of(run):
    return grpo.make_optimizer(run.policy, [{"params": list(run.policy.model.parameters()), "lr": 1e-3}])


def test_a_loop_that_is_left_early_is_an_error(args):
    with pytest.raises(RuntimeError, match="was left before its end"), Run(args, "mine", "Mine") as run:
        for step in run.steps(optimizer_of(run)):
            run.collect(step)
            break
    assert not (args.out / "summary.json").exists()


def test_an_error_in_the_loop_leaves_no_thread_behind(args):
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), Run(args, "mine", "Mine") as run:
        for step in run.steps(optimizer_of(run)):
            run.collect(step)  # the next batch is being played now
            raise ZeroDivisionError
    assert threading.active_count() == before


def test_a_loop_of_ones_own(args):
    with Run(args, "mine", "Mine") as run:
        for step in run.steps(optimizer_of(run)):
            step.log({"mine/episodes": float(len(run.collect(step)))})
    assert run.summary["algorithm"] == "mine" and run.summary["rows"][-1]["name"] == "Mine"
    assert (args.out / "checkpoint-3").is_dir() and '"mine/episodes": 4.0' in (args.out / "metrics.jsonl").read_text()
