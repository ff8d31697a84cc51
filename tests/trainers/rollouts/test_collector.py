"""Batches that are played one ahead."""

import threading
from types import SimpleNamespace

import pytest
import torch

from trainers import grpo
from trainers.factory import make_engine, make_envs
from trainers.lifecycle.rl_run import RLRun
from trainers.models.loading import load_policy
from trainers.models.lora import add_lora
from trainers.rollouts import collector
from trainers.rollouts.collector import Collector
from trainers.runtime.progress import read_metrics
from trainers.trajectory import collate


@pytest.fixture
def arguments(short_run):
    """``arguments(**changes)``: those of a run one step off-policy."""
    options = {"updates": 4, "save_every": 4, "one_step_off_policy": True}
    return lambda **changes: short_run(grpo, **options | changes)


def change(policy):
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)


def test_each_batch_is_played_with_the_weights_of_one_update_before(arguments, model_folder):
    args = arguments(updates=3)
    policy = load_policy(model_folder, "cpu")
    envs, batches = make_envs(args.env, args.env_kwargs, "train", 6), Collector(args, policy)
    engine = make_engine("transformers", batches.sampler, envs.envs[0].stop)
    assert batches.sampler.model is not policy.model
    torch.manual_seed(0)
    played, weights = [], []
    for number in range(3):
        weights.append({name: p.clone() for name, p in policy.model.named_parameters()})
        played.append(batches.collect(envs, engine, number))
        change(policy)  # while the next one is being played
    for number, batch in enumerate(played):
        policy.model.load_state_dict(weights[max(0, number - 1)], strict=False)
        episodes = collate(batch.trajectories, policy.pad_id)
        with torch.no_grad():
            own, _ = policy.logprobs(episodes)
        torch.testing.assert_close(own, episodes.old_logprobs, rtol=0, atol=1e-4)


def test_the_first_update_of_a_process_runs_beside_nothing(arguments, model_folder):
    """It compiles, and no CUDA graph can be captured meanwhile."""
    args, policy = arguments(), load_policy(model_folder, "cpu")
    goes_on, played = threading.Event(), []

    def roll_out(*values, **options):
        if len(played) == 2:
            assert goes_on.wait(60)
        played.append(1)
        return collector.rollout(*values, **options)

    envs, batches = make_envs(args.env, args.env_kwargs, "train", 6), Collector(args, policy, roll_out)
    engine = make_engine("transformers", batches.sampler, envs.envs[0].stop)
    batches.collect(envs, engine, 0)
    assert len(played) == 2
    batches.collect(envs, engine, 1)
    assert len(played) == 2
    goes_on.set()
    batches.close()


def test_the_sampler_has_no_copy_of_frozen_weights(arguments, model_folder):
    policy = load_policy(model_folder, "cpu")
    add_lora(policy.model, 2, 4)
    sampler = Collector(arguments(), policy).sampler
    pairs = zip(policy.model.parameters(), sampler.model.parameters(), strict=True)
    assert all((ours is theirs) == (not ours.requires_grad) for ours, theirs in pairs)


@pytest.mark.parametrize("cut", [{"top_p": 1e-6}, {"min_p": 1.0}])
def test_what_is_cut_off_is_never_sampled(arguments, model_folder, cut):
    """So much that one token is left, which has a probability of 1."""
    args, policy = arguments(one_step_off_policy=False, importance="tis", **cut), load_policy(model_folder, "cpu")
    envs = make_envs(args.env, args.env_kwargs, "train", 6)
    found = Collector(args, policy).collect(envs, make_engine("transformers", policy, envs.envs[0].stop), 0)
    assert {p for episode in found.trajectories for step in episode.steps for p in step.logprobs} == {0.0}


def test_a_run_one_ahead_repeats_and_measures_how_far_its_sampler_is(arguments, tmp_path):
    for name in "ab":
        grpo.main(arguments(importance="tis", out=tmp_path / name))
    first, second = (read_metrics(tmp_path / name / "metrics.jsonl") for name in "ab")
    timed = lambda name: name.startswith("time/") or name in ("seconds", "tokens/per_second")  # noqa: E731
    for a, b in zip(first, second, strict=True):
        assert {n: v for n, v in a.items() if not timed(n)} == {n: v for n, v in b.items() if not timed(n)}
    assert first[1]["mismatch/logprob"] < 1e-4  # the first batch is not old
    assert all(line["mismatch/logprob"] > 1e-3 for line in first[2:])
    assert [line["episodes"] for line in first] == [0, 6, 12, 18, 24]
    synchronous = grpo.main(arguments(one_step_off_policy=False, out=tmp_path / "c"))
    assert synchronous["episodes"] == 24
    line = read_metrics(tmp_path / "c" / "metrics.jsonl")[1]
    assert line["train/return"] == first[1]["train/return"]  # the same first batch


def test_each_batch_ahead_has_random_numbers_of_its_own(arguments, model_folder):
    """Also if an update compiles meanwhile, and with that sets the process's back to where it began."""
    args, policy, states = arguments(updates=3), load_policy(model_folder, "cpu"), []

    def roll_out(*values, **options):
        states.append(torch.get_rng_state())
        return collector.rollout(*values, **options)

    envs, batches = make_envs(args.env, args.env_kwargs, "train", 6), Collector(args, policy, roll_out)
    engine = make_engine("transformers", batches.sampler, envs.envs[0].stop)
    for number in range(3):
        before = torch.get_rng_state()
        batches.collect(envs, engine, number)
        batches.update_weights()
        torch.set_rng_state(before)
    batches.close()
    assert len({state.numpy().tobytes() for state in states}) == 3


def test_an_error_in_what_is_played_ahead_is_an_error(arguments, tmp_path, monkeypatch):
    real, calls = collector.rollout, []

    def rollout(*args, **kwargs):
        calls.append(1)
        if len(calls) > 2:
            raise RuntimeError("the index is gone")
        return real(*args, **kwargs)

    monkeypatch.setattr(collector, "rollout", rollout)
    with pytest.raises(RuntimeError, match="the index is gone"):
        grpo.main(arguments(out=tmp_path / "run"))


def test_a_resumed_run_begins_with_the_weights_that_were_saved(arguments, tmp_path):
    common = dict(importance="tis", lr=0.05)
    grpo.main(arguments(out=tmp_path / "run", **common))
    grpo.main(arguments(resume=tmp_path / "run", updates=6, **common))
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert lines[5]["mismatch/logprob"] < 1e-4 < lines[6]["mismatch/logprob"]


def test_seconds_are_those_of_playing(arguments, model_folder, monkeypatch):
    """Not those of an outage; and those that somebody else waited for the next batch."""
    clock = SimpleNamespace(now=0.0)

    def play(args, envs, policy, engine, number, roll_out):
        clock.now += 5.0  # an outage
        clock.now += 2.0
        return collector.Collected(sampled=[], trajectories=[], rng=None, metrics={}, seconds=2.0)

    monkeypatch.setattr(collector, "collect_batch", play)
    monkeypatch.setattr(collector.time, "monotonic", lambda: clock.now)
    policy = load_policy(model_folder, "cpu")
    batches = Collector(arguments(one_step_off_policy=False, updates=3), policy)
    assert [batches.collect(None, None, number).metrics["time/rollout"] for number in range(3)] == [2.0, 2.0, 2.0]
    ahead = Collector(arguments(updates=3, one_step_off_policy=True), policy)
    ahead.collect(None, None, 0)
    ahead._waited = 1.5  # by an evaluation
    assert ahead.collect(None, None, 1).metrics["time/rollout"] >= 1.5
    ahead.close()


def test_an_evaluation_waits_for_what_is_being_played():
    """Both draw from one generator."""
    seeds = []
    collector = SimpleNamespace(update_weights=lambda: seeds.append(torch.initial_seed()))
    recorder = SimpleNamespace(lines=[])
    setup = SimpleNamespace(
        collector=collector, score="em", title="", make_recorder=lambda *_: recorder,
        evaluate=lambda *_: {"em": torch.initial_seed()},
    )  # fmt: skip
    run = SimpleNamespace(
        setup=setup, args=grpo.Args(seed=5), episodes_so_far=7, _record=lambda _: None,
    )  # fmt: skip
    torch.manual_seed(77)
    assert RLRun.evaluate(run, 0) == {"eval/em": 5, "episodes": 7}
    assert seeds == [77] and torch.initial_seed() == 77
