"""What is around CUDA graphs, without a GPU: a graph is stood in for by what repeats a function on the same tensors."""

import threading
import warnings
import weakref
from dataclasses import fields

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainers.engines.test_llama import flash_attention
from trainers.engines import cuda_graphs, llama, model_runner
from trainers.engines.cuda_graphs import CUDAGraphCache, bucket_size
from trainers.engines.engine import SamplingParams, generate
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models import llama_parts

PARTS = [getattr(llama_parts.Parts(), part.name) for part in fields(llama_parts.Parts)]
PROMPTS = {3: "the town", 0: "x", 7: "a much longer prompt about the author of the book", 1: "search"}


@pytest.fixture
def captured(monkeypatch):
    """Makes engines capture, and counts captures and replays."""
    counts = {"captured": 0, "replayed": 0}

    class Capturer:
        """A pool whose graphs have been dropped takes no others."""

        def __init__(self, device):
            self.alive = weakref.WeakSet()
            self.used = False
            self.caching = torch.is_autocast_cache_enabled()

        def __call__(self, function):
            assert self.alive or not self.used
            counts["captured"] += 1
            compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            torch.set_autocast_cache_enabled(False)  # as `GraphCapturer` does
            result = torch.full_like(function(), torch.nan)  # a capture computes nothing
            torch.set_autocast_cache_enabled(self.caching)
            assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled  # nor can it compile

            def replay():
                counts["replayed"] += 1
                result.copy_(function())

            self.used = True
            self.alive.add(replay)
            return replay, result

    monkeypatch.setattr(cuda_graphs, "GraphCapturer", Capturer)
    monkeypatch.setattr(model_runner, "supports_cuda_graphs", lambda device: True)
    monkeypatch.setattr(llama_parts, "compiled_parts", llama_parts.Parts)  # see test_llama.py
    return counts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_parts_are_captured(make_policy, captured, monkeypatch, dtype):
    compiled = llama_parts.Parts(*(torch.compile(part, backend="eager", dynamic=True) for part in PARTS))
    monkeypatch.setattr(llama_parts, "compiled_parts", lambda: compiled)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash_attention)
    policy = make_policy("bytes", family="llama")
    policy.dtype = dtype
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = TransformersEngine(policy, ())
        for keys in (PROMPTS, [0], [7, 1]):
            generate(engine, {key: policy.encode(PROMPTS[key]) for key in keys}, 9, 0.0)
    assert captured["captured"] > 0 and engine.runner._reads_places == (dtype == torch.bfloat16)
    in_thread = []  # where another update may be compiled at the same time
    monkeypatch.setattr(llama, "forward", lambda *args: in_thread.append(args[6]) or torch.zeros(1, 1, 32))
    thread = threading.Thread(target=engine.runner.prefill, args=([[65]], [0], [0]))
    thread.start()
    thread.join()
    assert in_thread == [llama_parts.Parts()]


def test_sizes_that_are_captured():
    sizes = {1: 8, 8: 8, 9: 12, 12: 12, 13: 16, 17: 24, 25: 32, 49: 64, 65: 96, 193: 256}
    assert {n: bucket_size(n, 8) for n in sizes} == sizes
    assert all(n <= bucket_size(n, 8) < max(9, 1.51 * n) for n in range(1, 500))


@pytest.mark.parametrize("reads_places", [False, True])
def test_turns_are_the_same_with_graphs(make_policy, captured, monkeypatch, reads_places):
    """Over turns, with rows that leave and come back, a cache that grows and is kept over a reset, and weights that change."""
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash_attention)
    policy = make_policy("bytes", 2)
    engine = TransformersEngine(policy, ())
    engine.runner._reads_places = reads_places
    for _ in range(2):
        with monkeypatch.context() as plain:
            plain.setattr(model_runner, "supports_cuda_graphs", lambda device: False)
            other = TransformersEngine(policy, ())
        contexts = {key: policy.encode(text) for key, text in PROMPTS.items()}
        for keys in ([3, 0, 7, 1], [0], [7, 1], [3, 0, 7, 1]):
            prompts = {key: contexts[key] for key in keys}
            done, expected = generate(engine, prompts, 15, 0.0), generate(other, prompts, 15, 0.0)
            for key in keys:
                assert done[key].tokens == expected[key].tokens
                assert done[key].logprobs == pytest.approx(expected[key].logprobs, abs=1e-4)
                contexts[key] = contexts[key] + done[key].tokens + policy.observation_ids("seen " * 20 * key, [])
        of_round = captured["captured"]
        engine.reset()
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.mul_(1.1)
    assert captured["replayed"] > 50
    assert captured["captured"] == of_round  # what the first round captured, the second one uses


class ShortThoughts:
    """A `ThoughtBudget` of six tokens, for thoughts that begin with the turn."""

    tokens, closing, begins_inside = 6, [65, 66], True

    def is_inside(self, tokens, was_inside):
        return was_inside


@pytest.mark.parametrize(("temperature", "budget"), [(0.0, None), (1.0, None), (1.0, ShortThoughts())])
def test_turns_are_the_same_if_tokens_are_looked_at_late(make_policy, captured, monkeypatch, temperature, budget):
    """Turns of several lengths end within the steps that are taken at once, by a stop string or after tokens that are
    given, and attempts part."""
    policy = make_policy("bytes", 3)
    ends = tuple("aeiou0123456789")
    prompts = {key: policy.encode(PROMPTS[[3, 0, 7][key % 3]]) for key in range(9)}
    seeds = {key: key % 3 if key < 6 else key for key in prompts}  # some attempts stay together
    params = SamplingParams(max_new_tokens=23, temperature=temperature)
    found, steps = [], [[], []]
    decode = model_runner.ModelRunner.decode
    monkeypatch.setattr(
        model_runner.ModelRunner, "decode", lambda *args: steps[len(found)].append(args[-1]) or decode(*args)
    )
    for on_gpu in (True, False):
        with monkeypatch.context() as here:
            here.setattr(model_runner, "supports_cuda_graphs", lambda device, on_gpu=on_gpu: on_gpu)
            engine = TransformersEngine(policy, ends)
        engine._budget = budget
        contexts, turns = dict(prompts), []
        for _ in range(3):
            engine.submit(contexts, params, seeds)
            done = {}
            while some := engine.wait():
                done |= some
            turns.append(done)
            contexts = {key: ids + done[key].tokens + policy.encode("seen" * key, " ") for key, ids in contexts.items()}
        found.append(turns)
    for late, at_once in zip(*found, strict=True):
        assert {key: late[key].tokens for key in prompts} == {key: at_once[key].tokens for key in prompts}
        for key in prompts:
            assert late[key].logprobs == pytest.approx(at_once[key].logprobs, abs=1e-4, nan_ok=True)
    lengths = {len(done.tokens) for turns in found[0] for done in turns.values()}
    assert 4 in steps[0] and {*steps[1]} == {1} and len(lengths) > 3
    given = [done.logprobs.count(None) for turns in found[0] for done in turns.values()]
    assert max(given) == (2 if budget else 0)


def test_no_row_goes_beyond_what_the_model_reads(make_policy, captured, monkeypatch):
    """A model may change the positions of all rows if one is longer; turns end at that length, within the steps at once."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    policy = make_policy("bytes", 3, family="llama", max_position_embeddings=64, rope_parameters=rope)
    policy.end_ids = set()
    prompts = {0: policy.encode("x" * 51), 1: policy.encode("the town b"), 2: policy.encode("another")}
    found = []
    for on_gpu in (True, False):
        with monkeypatch.context() as here:
            here.setattr(model_runner, "supports_cuda_graphs", lambda device, on_gpu=on_gpu: on_gpu)
            engine = TransformersEngine(policy, ())
        found.append(generate(engine, prompts, 40, 0.0))
    assert {key: done.tokens for key, done in found[0].items()} == {key: done.tokens for key, done in found[1].items()}
    assert len(found[0][0].tokens) == 13


@torch.no_grad()
def test_steps_that_are_taken_at_once_do_not_wait_for_the_device(make_policy, captured):
    """Between their first and their last token nothing is sent to the device; test_gpu.py sees what is read from it."""
    policy = make_policy("bytes", 3)
    engine = TransformersEngine(policy, ())
    engine.submit({0: policy.encode("the town")}, SamplingParams(max_new_tokens=40, top_p=0.9, min_p=0.01), {0: 7})
    while engine.runner.graphs.count == 0:  # captures are compared with the step
        engine._decode()
    graphs, events = engine.runner.graphs, []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            events.append(function.overloadpacket.__name__)
            return function(*args, **kwargs or {})

    engine.runner.graphs = lambda *args: events.append("step") or graphs(*args)
    with Record():
        engine._decode()
    first, last = events.index("step"), len(events) - events[::-1].index("step")
    assert events.count("step") == 4
    assert not {"lift_fresh", "_local_scalar_dense"} & {*events[first:last]}
    assert "lift_fresh" in events[:first]


def test_a_rollout_draws_from_the_random_state_in_which_it_began(make_policy, captured):
    """So do resumed runs, evaluations and processes. What sets that state back meanwhile, as compiling in another thread does,
    changes nothing."""
    policy, turns = make_policy("bytes", 2), []
    prompts, params = {0: policy.encode("the town")}, SamplingParams(max_new_tokens=12)
    engine, states = TransformersEngine(policy, ()), []
    for begins_anew, is_set_back in ((True, False), (False, False), (True, True)):
        if begins_anew:
            torch.manual_seed(0)
        engine.reset()
        states.append(torch.get_rng_state())
        engine.submit(prompts, params)
        while engine._open:
            turns += [done.tokens for done in engine._decode().values()]
            if is_set_back:
                torch.manual_seed(7)
    first, second, again = turns
    assert first == again != second and len(first) > engine._steps_at_once
    assert torch.equal(states[0], states[2]) and not torch.equal(states[0], states[1])


def test_greedy_turns_take_no_random_numbers(make_policy, captured):
    policy, state = make_policy("bytes", 2), torch.get_rng_state()
    generate(TransformersEngine(policy, ()), {0: policy.encode("the town")}, 12, 0.0)
    assert torch.equal(torch.get_rng_state(), state)


def test_keys_and_values_take_what_a_step_reads(make_policy, captured):
    """And little more: on a GPU they are what limits the number of episodes."""
    policy = make_policy("bytes", 2)
    engine = TransformersEngine(policy, ())
    contexts = {key: policy.encode("the town " * 9) for key in range(9)}
    for _ in range(4):
        done = generate(engine, contexts, 20, 1.0)
        contexts = {key: ids + done[key].tokens + policy.encode("seen " * 9, " ") for key, ids in contexts.items()}
    longest = max(len(ids) for ids in contexts.values())
    rows, _, width, _ = engine._cache.kv_cache._buffers[0][0].shape
    assert rows == 12 and width <= 1.25 * longest


def test_what_does_not_fit_beside_the_update_is_dropped(make_policy, captured, monkeypatch):
    policy = make_policy("bytes", 2)
    engine = TransformersEngine(policy, ())
    prompts = {0: policy.encode("the town")}
    for kept, captures in ((0, 1), (0, 2), (0.1, 2)):
        monkeypatch.setattr(model_runner, "KEPT_FRACTION", kept)
        engine.reset()
        generate(engine, prompts, 9, 0.0)
        assert captured["captured"] == captures


def test_one_token_prompts_after_an_update_see_the_new_weights(make_policy, captured):
    """Nothing is prefilled, so that a replay would come first."""
    policy = make_policy("bytes", 2)
    policy.dtype = torch.bfloat16
    engine = TransformersEngine(policy, ())
    generate(engine, {0: policy.encode("abcdefgh")}, 9, 0.0)
    engine.reset()
    with torch.no_grad():
        for parameter in policy.model.base_model.layers.parameters():
            parameter.mul_(1.5)
    replayed = captured["replayed"]
    done = generate(engine, {0: [65]}, 9, 0.0)
    assert captured["replayed"] > replayed
    assert done == generate(TransformersEngine(policy, ()), {0: [65]}, 9, 0.0)


def double(ids, columns, width):
    return ids * 2.0


def stood_in(monkeypatch, capture):
    monkeypatch.setattr(cuda_graphs, "GraphCapturer", lambda device: capture)


@pytest.mark.parametrize("replay", [lambda: None, lambda: torch.ones(1)])
def test_a_capture_that_is_empty_is_not_used(monkeypatch, replay):
    """The kernels ran while it was captured, and left the right result."""
    stood_in(monkeypatch, lambda function: (replay, function()))
    step, ids = CUDAGraphCache(), torch.ones(8, 1)
    step(double, ids, ids, 4, 0)
    with pytest.warns(UserWarning, match="without CUDA graphs"):
        assert step(double, ids, ids, 4, 0).equal(ids * 2)
    assert step(double, ids * 3, ids, 4, 0).equal(ids * 6)
    assert step.count == 0


def test_full_memory_is_no_reason_to_go_on_without(monkeypatch):
    def capture(function):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    stood_in(monkeypatch, capture)
    step, ids = CUDAGraphCache(), torch.ones(8, 1)
    step(double, ids, ids, 4, 0)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        step(double, ids, ids, 4, 0)


def test_other_tensors_are_captured_again(captured):
    step, ids = CUDAGraphCache(), torch.ones(8, 1)
    for version, captures in ((0, 0), (0, 1), (0, 1), (1, 1), (1, 2), (1, 2)):
        assert step(double, ids, ids, 4, version).equal(ids * 2)
        assert captured["captured"] == captures
