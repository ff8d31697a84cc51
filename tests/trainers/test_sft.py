"""Supervised fine-tuning: its gradient, its schedule, and whole runs that stop, resume and serve as a start."""

import json
import random
from pathlib import Path

import pytest
import torch

from trainers import grpo, sft
from trainers.checkpoints import checkpoint
from trainers.evaluation.evaluator import load_agent
from trainers.imitation.demonstrations import FILE, Demonstration, read_demonstrations, split_by_length
from trainers.models.loading import load_policy
from trainers.runtime import integrity
from trainers.runtime.progress import read_metrics
from trainers.trajectory import BatchRow

SMALL = '{"entities": 60, "questions": 24}'


def sequence(rng, vocabulary=200):
    ids = [rng.randrange(10, vocabulary) for _ in range(rng.randint(4, 30))]
    mask = [False, *(rng.random() < 0.5 for _ in ids[2:]), True]
    zeros = [0.0] * len(ids)
    return BatchRow(ids=ids, mask=mask, logprobs=zeros, rewards=zeros)


@pytest.fixture
def train(save_model, tmp_path):
    """Run the command on the small model."""
    model = save_model("bpe", 0, scale=0.02)
    defaults = {"env_kwargs": SMALL, "model": model, "tokens_per_update": 1500, "lr": 3e-3, "eval_every": 3}

    def run(out="run", **options):
        options = defaults | {"out": None if "resume" in options else tmp_path / out} | options
        return sft.main(sft.Args(**options))

    return run


def plain_loss(policy, sequences):
    """The sum over taught tokens of −log π, one row at a time with the library's own head, and how many they are."""
    total, count = torch.zeros(()), 0
    for one in sequences:
        logprobs = policy.model(torch.tensor([one.ids])).logits[0].log_softmax(-1)
        for place, taught in enumerate(one.mask):
            if taught:
                total = total - logprobs[place - 1, one.ids[place]]
                count += 1
    return total, count


@pytest.mark.parametrize("micro_batch", [1, 64, 8192])
def test_the_gradient_is_that_of_the_taught_tokens_alone(make_policy, micro_batch):
    rng = random.Random(0)
    rows = [sequence(rng) for _ in range(5)]
    ours, theirs = make_policy("bytes"), make_policy("bytes")
    args = sft.Args(max_tokens_per_micro_batch=micro_batch, max_grad_norm=1e9)
    metrics = sft.update(args, ours, torch.optim.SGD(ours.model.parameters(), lr=1.0), rows)
    total, count = plain_loss(theirs, rows)
    (total / count).backward()
    assert metrics["train/loss"] == pytest.approx(float(total.detach() / count), rel=1e-4)
    assert metrics["tokens/action"] == count
    for name, parameter in theirs.model.named_parameters():
        moved = parameter.detach() - ours.model.get_parameter(name).detach()
        torch.testing.assert_close(moved, parameter.grad, rtol=1e-3, atol=1e-5)


def test_the_held_out_loss_is_a_mean_over_tokens(make_policy):
    rng, policy = random.Random(1), make_policy("bytes")
    rows = [sequence(rng) for _ in range(7)]
    total, count = plain_loss(policy, rows)
    for most in (20, 64, 8192):
        evaluation = sft.HeldOutLoss(sft.Args(max_tokens_per_micro_batch=most), policy, rows)
        assert evaluation.evaluate(0) == pytest.approx({"eval/loss": float(total.detach() / count)}, rel=1e-5)
    assert sft.HeldOutLoss(sft.Args(), policy, []).evaluate(0) == {}


@pytest.mark.parametrize("tokens", [1, 40, 100, 10_000])
def test_batches_by_length(tokens):
    rng = random.Random(2)
    rows = [sequence(rng) for _ in range(30)]
    parts = split_by_length(rows, tokens)
    assert sorted(id(row) for part in parts for row in part) == sorted(map(id, rows))
    for part in parts:
        assert len(part) == 1 or len(part) * max(len(row.ids) for row in part) <= tokens
    widths = [len(row.ids) for part in parts for row in part]
    assert widths == sorted(widths)


def test_every_pass_has_every_episode_once_in_another_order():
    rng = random.Random(3)
    rows = [sequence(rng) for _ in range(30)]
    args = sft.Args(tokens_per_update=60)
    count = len(split_by_length(rows, 60))
    stream = sft.batches(args, rows)
    passes = [[row for _ in range(count) for row in next(stream)] for _ in range(2)]
    for one in passes:
        assert sorted(map(id, one)) == sorted(map(id, rows))
    assert passes[0] != passes[1]


@pytest.mark.parametrize(
    ("patience", "losses", "stops"),
    [(2, [3.0, 2.0, 2.5, 2.1], True), (2, [3.0, 2.0, 2.5, 2.0], False), (0, [3.0, 4.0, 5.0], False)],
)
def test_it_stops_after_losses_without_a_new_lowest(patience, losses, stops):
    evaluation = sft.HeldOutLoss(sft.Args(patience=patience), None, [])
    stopped = [evaluation.observe(step, {"eval/loss": loss}, None) for step, loss in enumerate(losses)]
    assert stopped == [False] * (len(losses) - 1) + [stops]
    assert not evaluation.observe(99, {"train/loss": 9.0}, None)  # nothing was measured


@pytest.fixture
def measured(monkeypatch):
    """Have losses given by hand; returns the embeddings that each was measured with."""
    weights = []

    def give(*losses):
        rest = iter(losses)

        def evaluate(self, done):
            weights.append(self.policy.model.get_input_embeddings().weight.detach().clone())
            return {"eval/loss": next(rest)}

        monkeypatch.setattr(sft.HeldOutLoss, "evaluate", evaluate)
        return weights

    return give


def test_a_run_learns_and_its_checkpoint_is_a_start_for_the_others(train, tmp_path):
    done = train(updates=16, lr=0.01, tokens_per_update=3000)
    assert done["heldout_loss"] < 0.8 * done["heldout_loss_before"]
    assert done["episodes"] + done["episodes_held_out"] == 24
    assert done["episodes_held_out"] == 1
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(done["updates"] + 1))
    assert min(line["eval/loss"] for line in lines if "eval/loss" in line) == done["heldout_loss"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["checkpoint"] == done["checkpoint"]
    integrity.verify(done["checkpoint"])
    options = {"questions_per_update": 2, "group_size": 2, "updates": 1, "eval_questions": 2, "final_questions": 2}
    options |= {"max_new_tokens": 4, "out": tmp_path / "rl", "env_kwargs": SMALL}
    assert grpo.main(grpo.Args(model=done["checkpoint"], **options))["seconds_training"] > 0


@pytest.mark.parametrize(
    ("losses", "options", "best", "done"),
    [
        ((5.0, 4.0, 4.5, 4.6, 9.9), {"updates": 50, "eval_every": 2, "patience": 2}, 1, 6),
        ((1.0, 3.0, 2.0, 4.0), {"updates": 3, "eval_every": 1}, 2, 3),  # only got worse: the least bad ones
    ],
)
def test_the_weights_of_the_lowest_held_out_loss_are_kept(
    make_policy, measured, tmp_path, capsys, losses, options, best, done
):
    weights, rng = measured(*losses), random.Random(4)
    demonstrations = [Demonstration(question=str(i), rows=[sequence(rng)]) for i in range(6)]
    summary = sft.fit(sft.Args(held_out=0.2, **options), make_policy("bytes"), demonstrations, tmp_path)
    assert summary["checkpoint"] == str(tmp_path / "best") and summary["updates"] == done
    assert torch.equal(load_policy(tmp_path / "best", "cpu").model.get_input_embeddings().weight, weights[best])
    assert (summary["heldout_loss_before"], summary["heldout_loss"]) == (losses[0], losses[best])
    kept = checkpoint.read_extra(tmp_path / "best")["best"]
    assert kept == {"update": best * options["eval_every"], "score": losses[best]}
    assert ("the held-out loss rose, from 1.000 to 2.000 at best" in capsys.readouterr().err) == (best == 2)


def test_time_can_say_when_it_ends(train, quarter_seconds):
    done = train(max_seconds=1.4, held_out=0.0, save_every=1)
    assert (done["seconds"], done["updates"]) == (1.5, 6)
    assert done["heldout_loss"] is None
    lines = read_metrics(f"{done['folder']}/metrics.jsonl")
    assert lines[-1]["policy/lr"] < max(line["policy/lr"] for line in lines)
    (Path(done["folder"]) / "summary.json").unlink()
    again = train(resume=Path(done["folder"]), max_seconds=1.4, held_out=0.0)
    assert again["updates"] == done["updates"]


def test_several_sources_at_once(train, tmp_path):
    line = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
    (tmp_path / "m.jsonl").write_text(json.dumps(line) + "\n")
    train("first", demonstrations=5, updates=1)
    done = train(
        "second", script=("oracle",), demonstrations=4, messages=(str(tmp_path / "m.jsonl"),),
        episodes=(str(tmp_path / "first"),), updates=1, held_out=0.0,
    )  # fmt: skip
    assert done["episodes"] == 5 + 4 + 1


def test_rejection_sampling_learns_from_the_best_attempts(train, make_policy, letters, tmp_path):
    """The environment pays for lower-case letters; no attempt answers."""
    options = {"sample": 4, "demonstrations": 3, "max_new_tokens": 8, "only_solved": False, "env": letters}
    done = train("a", **options, updates=1, held_out=0.0)
    policy = make_policy("bpe")
    best = read_demonstrations(tmp_path / "a", policy)
    assert done["episodes"] == len(best) == 3
    train("b", **options, updates=1, held_out=0.0, keep=0)
    every = read_demonstrations(tmp_path / "b", policy)
    assert len(every) == 12
    for one in best:
        assert one.episode_return == max(e.episode_return for e in every if e.question == one.question)
    least = sorted(one.episode_return for one in every)[-2]
    train("c", **options, updates=1, held_out=0.0, keep=0, min_reward=least)
    assert min(one.episode_return for one in read_demonstrations(tmp_path / "c", policy)) == least


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"script": ("nobody",)}, "has no script 'nobody'; it has .*'oracle'"),
        ({"sample": 65}, "sample must be at most 64, got 65"),
        ({"script": ("random",), "min_reward": 99.0}, "there is nothing to imitate"),
        ({"max_length": 2}, "there is nothing to imitate"),
    ],
)
def test_what_cannot_be_imitated(train, tmp_path, options, said):
    with pytest.raises(ValueError, match=said):
        train(**options)
    assert not (tmp_path / "run" / FILE).exists()


def test_what_was_taught_is_played_with_turns_as_long(train, make_policy):
    done = train(updates=2, held_out=0.0, save_every=1)
    extra = checkpoint.read_extra(done["checkpoint"])
    masks = [s.mask for one in read_demonstrations(Path(done["folder"]), make_policy("bpe")) for s in one.rows]
    longest = max(len(run) for mask in masks for run in "".join("x" if t else " " for t in mask).split())
    assert extra["longest_turn"] == longest
    assert load_agent(done["checkpoint"])[1] == max(128, longest)
    assert checkpoint.read_extra(Path(done["folder"]) / "checkpoint-1")["longest_turn"] == longest
