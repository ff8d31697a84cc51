import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.engines import transformers_engine
from trainers.engines.engine import generate
from trainers.engines.library_sampler import LibrarySampler
from trainers.engines.model_runner import ModelRunner
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models.policy import Policy

STOP = ("</search>", "</answer>")
PROMPTS = {3: "the town", 0: "x", 7: "a much longer prompt about the author of the book", 1: "search"}


def by_transformers(policy, ids, max_new_tokens):
    out = policy.model.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False,
        max_new_tokens=max_new_tokens, pad_token_id=policy.pad_id, eos_token_id=policy.eos_id,
    )  # fmt: skip
    return out[0, len(ids) :].tolist()


@pytest.mark.parametrize(("kind", "family", "seed"), [("bytes", "llama", 0), ("words", "qwen2", 1)])
def test_greedy_is_transformers_generate_token_for_token(make_policy, kind, family, seed):
    policy = make_policy(kind, seed, family=family)
    engine = TransformersEngine(policy, ())
    prompts = {key: policy.encode(text) for key, text in PROMPTS.items()}
    expected = {key: by_transformers(policy, ids, 20) for key, ids in prompts.items()}
    together = generate(engine, prompts, 20, 0.0)
    assert list(together) == list(prompts)
    for key, ids in prompts.items():
        engine.reset()
        alone = generate(engine, {key: ids}, 20, 0.0)[key]
        assert alone.tokens == together[key].tokens == expected[key]


def logprobs_of(policy, prompt, tokens, temperature=1.0):
    with torch.no_grad():
        logp = (policy.model(torch.tensor([prompt + tokens])).logits[0] / temperature).log_softmax(-1)
    return logp[len(prompt) - 1 : -1].gather(1, torch.tensor(tokens)[:, None]).squeeze(1).tolist()


@given(data=st.data())
@settings(max_examples=6, deadline=None)
def test_a_kept_cache_equals_a_fresh_prefill(make_policy, data):
    """Turns of any length, observations of any length, rows that leave, come back, change places or start over."""
    policy = make_policy("bytes", 5)
    kept, fresh = TransformersEngine(policy, ()), TransformersEngine(policy, ())
    ids = st.lists(st.integers(0, 255), min_size=1, max_size=12)
    contexts: dict[int, list[int]] = {}
    for _ in range(4):
        keys = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5, unique=True))
        for key in keys:
            rewrite = key not in contexts or data.draw(st.integers(0, 4)) == 0
            contexts[key] = data.draw(ids) if rewrite else contexts[key] + data.draw(ids)
        prompts = {key: contexts[key] for key in keys}
        new_tokens = data.draw(st.integers(1, 6))
        done = generate(kept, prompts, new_tokens, data.draw(st.sampled_from([0.0, 1.0])))
        fresh.reset()
        greedy = generate(fresh, prompts, new_tokens, 0.0)
        for key in keys:
            expected = logprobs_of(policy, prompts[key], done[key].tokens)
            assert done[key].logprobs == pytest.approx(expected, abs=1e-4)
            expected = logprobs_of(policy, prompts[key], greedy[key].tokens)
            assert greedy[key].logprobs == pytest.approx(expected, abs=1e-4)
            contexts[key] = prompts[key] + done[key].tokens


def test_long_prompts_run_in_parts(make_policy, monkeypatch):
    policy, params = make_policy("bytes"), (5, 0.0)
    prompts = {key: policy.encode("An instruction for all. " + text * 3) for key, text in PROMPTS.items()}
    whole = TransformersEngine(policy, ())
    expected = generate(whole, prompts, *params)
    monkeypatch.setattr(transformers_engine, "MAX_ROW", 7)
    parts = TransformersEngine(policy, ())
    found = generate(parts, prompts, *params)
    for key in prompts:
        assert found[key].tokens == expected[key].tokens
        assert found[key].logprobs == pytest.approx(expected[key].logprobs, abs=1e-5)
    assert parts.processed["decode"] == whole.processed["decode"]


def test_asking_again_gives_the_same_answer(make_policy):
    """A prompt that is all in the cache already has no new ids to run; it must not be answered from thin air."""
    policy = make_policy("bytes")
    engine = TransformersEngine(policy, ())
    prompts = {key: policy.encode(text) for key, text in PROMPTS.items()}
    first = generate(engine, prompts, 5, 0.0)
    assert generate(engine, prompts, 5, 0.0) == first
    shorter = {key: ids + first[key].tokens[:-1] for key, ids in prompts.items()}
    assert [c.tokens[0] for c in generate(engine, shorter, 1, 0.0).values()] == [c.tokens[-1] for c in first.values()]


def test_a_stop_string_in_the_prompt_or_astride_it_does_not_end_a_turn(make_policy):
    policy = make_policy("bytes")
    prompts = {0: policy.encode("the town")}
    free = generate(TransformersEngine(policy, ()), prompts, 7, 0.0)
    stop = ("he to", "wn" + policy.tokenizer.decode(free[0].tokens)[:2])
    assert generate(TransformersEngine(policy, stop), prompts, 7, 0.0) == free


def test_rows_stop_at_their_own_time(make_policy):
    policy = make_policy("bytes", 1)
    said = by_transformers(policy, policy.encode("the town"), 8)
    eos = said[4]  # a token that some rows say early, some never
    policy = copy.copy(policy)
    policy.eos_id, policy.end_ids = eos, {eos}
    prompts = {key: policy.encode(text) for key, text in PROMPTS.items()}
    done = generate(TransformersEngine(policy, ()), prompts, 20, 0.0)
    assert len({len(c.tokens) for c in done.values()}) > 1
    for most, reason in (
        (said.index(eos) + 1, "stop"),
        (said.index(eos), "length"),
    ):  # an end at the last moment is one
        assert generate(TransformersEngine(policy, ()), {3: prompts[3]}, most, 0.0)[3].finish_reason == reason
    for key, prompt in prompts.items():
        assert done[key].tokens == by_transformers(policy, prompt, 20)
        assert done[key].finish_reason == ("stop" if done[key].tokens[-1] == eos else "length")


def test_every_tensor_is_made_where_the_policy_is(make_policy):
    """Without a second device at hand: what is made with no device named lands on "meta", and fails to mix."""
    policy = make_policy("bytes")
    engine = TransformersEngine(policy, STOP)
    prompts = {key: policy.encode(text) for key, text in PROMPTS.items()}
    expected = generate(engine, prompts, 8, 0.0)
    engine.reset()
    with torch.device("meta"):
        assert generate(engine, prompts, 8, 0.0) == expected
        longer = {key: ids + expected[key].tokens + [5] * (key + 1) for key, ids in list(prompts.items())[1:]}
        generate(engine, longer, 3, 1.0)


@pytest.mark.parametrize("pads", [True, False], ids=["padded", "of one length"])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9, "min_p": 0.05}])
def test_the_librarys_cache_gives_the_turns_of_ours(make_policy, monkeypatch, pads, params):
    """With stop strings, ends and lengths; one conversation draws the same numbers."""
    policy = make_policy("bytes", 1)
    prompts = {key: policy.encode(text) for key, text in PROMPTS.items()}
    stop = (policy.tokenizer.decode(by_transformers(policy, prompts[3], 6)[4:6]),)
    if params["temperature"]:
        prompts = {3: prompts[3]}
    ours = TransformersEngine(policy, stop)
    monkeypatch.setattr(ModelRunner, "_find_difference", lambda *_: "of a test")
    with pytest.warns(UserWarning, match="Qwen2ForCausalLM is sampled from with the library's own cache.*: of a test"):
        library = TransformersEngine(policy, stop)
    library._library._pads = pads
    found = []
    for engine in (ours, library):
        torch.manual_seed(0)
        first = generate(engine, prompts, 9, **params)
        longer = {key: prompts[key] + done.tokens + [9] * (key + 1) for key, done in first.items()}
        found += [first, generate(engine, longer, 5, **params)]
    for a, b in zip(found[:2], found[2:], strict=True):
        assert list(a) == list(b)
        for key, one in a.items():
            assert (one.tokens, one.finish_reason) == (b[key].tokens, b[key].finish_reason)
            assert one.logprobs == pytest.approx(b[key].logprobs, abs=1e-4)
    if len(prompts) > 1:
        assert {done.finish_reason for done in found[0].values()} == {"stop", "length"}
    assert library.processed["prefill"] >= sum(map(len, prompts.values()))
    assert "forward" not in vars(policy.model.get_output_embeddings())


def test_a_model_that_the_library_too_gets_wrong_is_refused(make_policy, monkeypatch):
    monkeypatch.setattr(ModelRunner, "_find_difference", lambda *_: "of a test")
    monkeypatch.setattr(LibrarySampler, "_error", lambda *_: 0.5)
    with pytest.raises(ValueError, match=r"cannot be sampled from by the library .*differ by 0.5.*--engine vllm"):
        TransformersEngine(make_policy("bytes"), ())


def test_a_pad_token_that_the_model_does_not_know(make_policy):
    """Added to the tokenizer without a place in the embedding, as [PAD] often is."""
    policy = make_policy("bytes")
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.add_special_tokens({"pad_token": "[NEW PAD]"})
    padded = Policy(policy.model, tokenizer)
    prompts = {key: policy.encode(text) for key, text in PROMPTS.items()}
    found, expected = (generate(TransformersEngine(one, ()), prompts, 9, 0.0) for one in (padded, policy))
    assert {key: one.tokens for key, one in found.items()} == {key: one.tokens for key, one in expected.items()}


def test_padding_does_not_count_in_the_window(make_policy):
    """Rows of different lengths get new ids of different lengths, and one that is closed fills the window."""
    policy = make_policy("bytes", 3)
    engine = TransformersEngine(policy, ())
    engine.max_length = 64
    seen = {0: [5] * 3 + [7] * 40, 1: [6] * 10}
    done = generate(engine, seen, 4, 0.0)
    longer = {0: seen[0] + done[0].tokens + [9] * 2, 1: seen[1] + done[1].tokens + [8] * 30}
    alone = {key: generate(TransformersEngine(policy, ()), {key: ids}, 4, 0.0)[key] for key, ids in longer.items()}
    together = generate(engine, longer, 4, 0.0)
    assert [c.tokens for c in together.values()] == [c.tokens for c in alone.values()]
    assert len(generate(engine, {0: longer[0] + [3] * 11}, 5, 0.0)[0].tokens) == 4  # behind 60 ids
    more = longer[1] + alone[1].tokens + [4] * 3
    assert generate(engine, {1: more}, 4, 0.0)[1].tokens == by_transformers(policy, more, 4)
    with pytest.raises(ValueError, match="up to 66 tokens, and the model reads 64"):
        generate(engine, {2: [5] * 66}, 4, 0.0)


def test_tokens_that_go_through_the_model_are_counted(make_policy):
    """A prompt that two conversations share, and then one token of each row and step; padding included."""
    policy = make_policy("bytes")
    engine = TransformersEngine(policy, ())
    assert not engine.processed
    generate(engine, {0: [5, 6, 7, 8], 1: [5, 6, 7, 8], 2: [9, 9]}, 1, 0.0)
    assert engine.processed == {"prefill": 2 * 3, "decode": 2, "decode_steps": 1}
    engine.reset()
    assert engine.processed["decode_steps"] == 1  # it is the caller who clears it
    engine.processed.clear()
    generate(engine, {0: [5]}, 3, 0.0)
    assert engine.processed == {"decode": 3, "decode_steps": 3}


@pytest.mark.parametrize(("keeps_cache", "decode"), [(True, 2), (False, 4 + 5)])
def test_tokens_that_the_library_runs_again_are_counted(make_policy, monkeypatch, keeps_cache, decode):
    monkeypatch.setattr(ModelRunner, "_find_difference", lambda *_: "of a test")
    with pytest.warns(UserWarning, match="of a test"):
        engine = TransformersEngine(make_policy("bytes"), ())
    engine._library.keeps_cache = keeps_cache
    generate(engine, {0: [5, 6, 7]}, 3, 0.0)
    assert engine.processed == {"prefill": 3, "decode": decode, "decode_steps": 2}
