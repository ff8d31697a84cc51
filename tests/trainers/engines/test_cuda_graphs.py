"""What is around CUDA graphs, without a GPU: a graph is stood in for by what repeats a function on the same tensors."""

import gc
import weakref

import pytest
import torch

from trainers.engines import cuda_graphs as graphs
from trainers.engines import model_runner as forward
from trainers.engines.cuda_graphs import Graphs, bucket
from trainers.engines.engine import generate
from trainers.engines.transformers_engine import TransformersEngine

PROMPTS = {3: "the town", 0: "x", 7: "a much longer prompt about the author of the book", 1: "search"}


@pytest.fixture
def recorded(monkeypatch):
    """Makes engines record, and counts recordings and replays."""
    counts = {"recorded": 0, "replayed": 0, "kept": 2**40}

    class Recorder:
        """A pool whose graphs have been dropped takes no others."""

        def __init__(self, device):
            self.alive = weakref.WeakSet()
            self.used = False

        def __call__(self, function):
            assert self.alive or not self.used
            counts["recorded"] += 1
            result = torch.full_like(function(), torch.nan)  # recording computes nothing

            def replay():
                counts["replayed"] += 1
                result.copy_(function())

            self.used = True
            self.alive.add(replay)
            return replay, result

    monkeypatch.setattr(graphs, "Recorder", Recorder)
    monkeypatch.setattr(forward, "recordable", lambda device: True)
    monkeypatch.setattr(forward.Forward, "_fits", lambda self: self._cache.nbytes <= counts["kept"])
    return counts


def test_sizes_that_are_recorded():
    assert [bucket(n, 8) for n in (1, 8, 9, 12, 13, 17, 25, 49, 65, 193)] == [8, 8, 12, 12, 16, 24, 32, 64, 96, 256]
    assert all(n <= bucket(n, 8) < max(9, 1.51 * n) for n in range(1, 500))


@pytest.mark.parametrize("kind", ["bytes", "words"])
def test_turns_are_the_same_with_graphs(make_policy, recorded, kind, monkeypatch):
    """Over turns, with rows that leave and come back, a cache that grows, and weights that change."""
    policy = make_policy(kind, 2)
    engine = TransformersEngine(policy, ())
    for _ in range(2):
        with monkeypatch.context() as plain:
            plain.setattr(forward, "recordable", lambda device: False)
            other = TransformersEngine(policy, ())
        contexts = {key: policy.encode(text) for key, text in PROMPTS.items()}
        for keys in ([3, 0, 7, 1], [0], [7, 1], [3, 0, 7, 1]):
            prompts = {key: contexts[key] for key in keys}
            done, expected = generate(engine, prompts, 30, 0.0), generate(other, prompts, 30, 0.0)
            for key in keys:
                assert done[key].tokens == expected[key].tokens
                assert done[key].logprobs == pytest.approx(expected[key].logprobs, abs=1e-4)
                contexts[key] = contexts[key] + done[key].tokens + policy.observation_ids("seen " * 20 * key, [])
        of_round = recorded["recorded"]
        engine.reset()
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.mul_(1.1)
    assert recorded["replayed"] > 100
    assert recorded["recorded"] == of_round  # what the first round recorded, the second one uses


def test_what_does_not_fit_beside_the_update_is_dropped(make_policy, recorded):
    policy = make_policy("bytes", 2)
    engine = TransformersEngine(policy, ())
    prompts = {0: policy.encode("the town")}
    for kept, recordings in ((0, 1), (0, 2), (2**40, 2)):
        recorded["kept"] = kept
        engine.reset()
        generate(engine, prompts, 9, 0.0)
        assert recorded["recorded"] == recordings


def test_graphs_read_rounded_weights_that_follow_the_policys(make_policy, recorded):
    policy = make_policy("bytes", 2)
    policy.dtype = torch.bfloat16
    engine = TransformersEngine(policy, ())
    prompts = {key: policy.encode(text) for key, text in PROMPTS.items()}
    first = generate(engine, prompts, 12, 0.0)
    engine.reset()
    assert generate(engine, prompts, 12, 0.0) == first
    engine.reset()
    with torch.no_grad():
        for parameter in policy.model.base_model.layers.parameters():
            parameter.mul_(1.5)
    second = generate(engine, prompts, 12, 0.0)
    assert second != first
    assert generate(TransformersEngine(policy, ()), prompts, 12, 0.0) == second


def test_one_token_prompts_after_an_update_see_the_new_weights(make_policy, recorded):
    """Nothing is prefilled, so that a replay would come first."""
    policy = make_policy("bytes", 2)
    policy.dtype = torch.bfloat16
    engine = TransformersEngine(policy, ())
    generate(engine, {0: policy.encode("abcdefgh")}, 9, 0.0)
    engine.reset()
    with torch.no_grad():
        for parameter in policy.model.base_model.layers.parameters():
            parameter.mul_(1.5)
    replayed = recorded["replayed"]
    done = generate(engine, {0: [65]}, 9, 0.0)
    assert recorded["replayed"] > replayed
    assert done == generate(TransformersEngine(policy, ()), {0: [65]}, 9, 0.0)


def test_an_engine_that_is_dropped_is_gone(make_policy, recorded):
    policy = make_policy("bytes", 2)
    gc.collect()
    gc.disable()
    try:
        engine = TransformersEngine(policy, ())
        generate(engine, {0: policy.encode("abc")}, 1, 0.0)  # a stand-in for a recording would hold on to the step
        cache = weakref.ref(engine._histories.cache)
        del engine
        assert cache() is None
    finally:
        gc.enable()


def double(ids, places, width):
    return ids * 2.0


def stood_in(monkeypatch, record):
    monkeypatch.setattr(graphs, "Recorder", lambda device: record)


@pytest.mark.parametrize("replay", [lambda: None, lambda: torch.ones(1)])
def test_a_recording_that_is_empty_is_not_used(monkeypatch, replay):
    """The kernels ran while it was recorded, and left the right result."""
    stood_in(monkeypatch, lambda function: (replay, function()))
    step, ids = Graphs(), torch.ones(8, 1)
    step(double, ids, ids, 4, 0)
    with pytest.warns(UserWarning, match="without CUDA graphs"):
        assert step(double, ids, ids, 4, 0).equal(ids * 2)
    assert step(double, ids * 3, ids, 4, 0).equal(ids * 6)
    assert step.count == 0


def test_a_step_that_cannot_be_recorded_goes_on_as_it_is(monkeypatch):
    def record(function):
        raise RuntimeError("operation not permitted when stream is capturing")

    stood_in(monkeypatch, record)
    step, ids = Graphs(), torch.ones(8, 1)
    step(double, ids, ids, 4, 0)
    with pytest.warns(UserWarning, match="not permitted"):
        assert step(double, ids, ids, 4, 0).equal(ids * 2)


def test_full_memory_is_no_reason_to_go_on_without(monkeypatch):
    def record(function):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    stood_in(monkeypatch, record)
    step, ids = Graphs(), torch.ones(8, 1)
    step(double, ids, ids, 4, 0)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        step(double, ids, ids, 4, 0)


def test_other_tensors_are_recorded_again(recorded):
    step, ids = Graphs(), torch.ones(8, 1)
    for version, recordings in ((0, 0), (0, 1), (0, 1), (1, 1), (1, 2), (1, 2)):
        assert step(double, ids, ids, 4, version).equal(ids * 2)
        assert recorded["recorded"] == recordings
