"""What is around CUDA graphs, without a GPU: a graph is stood in for by what repeats a function on the same tensors."""

import pytest
import torch

from trainers import forward, graphs
from trainers.engine import TransformersEngine, generate
from trainers.graphs import Graphs, bucket

PROMPTS = {3: "the town", 0: "x", 7: "a much longer prompt about the author of the book", 1: "search"}


@pytest.fixture
def recorded(monkeypatch):
    """Makes engines record, and counts recordings and replays."""
    counts = {"recorded": 0, "replayed": 0, "kept": 2**40}

    def record(function):
        result = torch.full_like(function(), torch.nan)  # recording computes nothing
        counts["recorded"] += 1

        def replay():
            counts["replayed"] += 1
            result.copy_(function())

        return replay, result

    monkeypatch.setattr(graphs, "record", record)
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


def test_a_recording_that_differs_is_not_used(monkeypatch):
    monkeypatch.setattr(graphs, "record", lambda function: (lambda: None, function() + 1))
    step = Graphs(lambda ids, places, width: ids * 2.0)
    ids = torch.ones(8, 1)
    step(ids, ids, 4, 0)
    with pytest.warns(UserWarning, match="without CUDA graphs"):
        assert step(ids, ids, 4, 0).equal(ids * 2)
    assert step(ids * 3, ids, 4, 0).equal(ids * 6)


def test_a_step_that_cannot_be_recorded_goes_on_as_it_is(monkeypatch):
    def record(function):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "record", record)
    step = Graphs(lambda ids, places, width: ids * 2.0)
    ids = torch.ones(8, 1)
    step(ids, ids, 4, 0)
    with pytest.warns(UserWarning, match="not permitted"):
        assert step(ids, ids, 4, 0).equal(ids * 2)


def test_other_tensors_are_recorded_again(recorded):
    step = Graphs(lambda ids, places, width: ids * 2.0)
    ids = torch.ones(8, 1)
    for version, recordings in ((0, 0), (0, 1), (0, 1), (1, 1), (1, 2), (1, 2)):
        assert step(ids, ids, 4, version).equal(ids * 2)
        assert recorded["recorded"] == recordings
