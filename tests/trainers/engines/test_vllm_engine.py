"""The tests marked `vllm` run vLLM itself: `pytest -m vllm tests/trainers/engines/test_vllm_engine.py`."""

import copy
import sys

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from agent_envs.chat_tokens import StopChecker
from trainers import grpo
from trainers.engines.engine import SamplingParams, generate
from trainers.engines.sampling import truncate
from trainers.engines.transformers_engine import TransformersEngine
from trainers.engines.vllm_engine import VLLMEngine, WeightSync, merged_weights
from trainers.factory import make_envs
from trainers.models import lora
from trainers.models.policy import Policy
from trainers.rollouts.rollout import rollout

PROMPTS = {3: "the town", 0: "x", 7: "a much longer prompt about the author of the book", 1: "search"}


def build(tokenizers, tied: bool = True) -> Policy:
    """As `make_policy`, with heads of a size that vLLM has kernels for."""
    torch.manual_seed(0)
    tokenizer = tokenizers["bytes"]
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=1024, initializer_range=0.15, tie_word_embeddings=tied,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    return Policy(Qwen2ForCausalLM(config), tokenizer)


def disturb(model: torch.nn.Module, by: float = 0.03) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += by * torch.randn_like(parameter)


@pytest.mark.parametrize("tied", [True, False])
def test_merged_weights_are_those_of_the_checkpoint(tokenizers, tied, tmp_path):
    from safetensors.torch import load_file

    model = build(tokenizers, tied).model
    model.save_pretrained(tmp_path)
    saved, found = load_file(tmp_path / "model.safetensors"), dict(merged_weights(model))
    assert found.keys() == saved.keys() | {"lm_head.weight"}
    assert all(torch.equal(saved[name], found[name]) for name in saved)
    assert torch.equal(found["lm_head.weight"], model.lm_head.weight)


def test_merged_weights_are_those_of_the_adapted_model(tokenizers):
    pytest.importorskip("peft")
    model = build(tokenizers).model
    plain = copy.deepcopy(model)
    lora.add_lora(model, 4, 32)
    disturb(model)
    plain.load_state_dict(dict(merged_weights(model)))
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("more", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}])
def test_an_adapter_that_is_more_than_lora_is_not_merged(tokenizers, more):
    peft = pytest.importorskip("peft")
    model = build(tokenizers, tied=False).model
    model.add_adapter(peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", **more))
    with pytest.raises(ValueError, match=r"an adapter with (lora_magnitude_vector|modules_to_save) has others too"):
        next(merged_weights(model))


def test_weights_are_loaded_when_they_have_changed(tokenizers):
    model, loads = build(tokenizers).model, []
    sync_weights = WeightSync(model, lambda weights: loads.append(dict(weights)))
    for times in (1, 2):
        sync_weights()
        assert len(loads) == times
        sync_weights()
        assert len(loads) == times
        weight = model.model.layers[1].mlp.up_proj.weight
        weight.data[3, 5] = torch.nextafter(weight[3, 5], torch.tensor(9.0))  # the smallest change there is
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    model(torch.tensor([[5, 6]])).logits.logsumexp(-1).sum().backward()
    optimizer.step()
    sync_weights()
    assert len(loads) == 3


def test_what_cannot_work_is_refused(tokenizers, monkeypatch):
    policy = build(tokenizers)
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="kv_gib must be above 0"):
            VLLMEngine(policy, (), kv_gib=wrong)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match=r"agent-r1-envs\[vllm\]"):
        VLLMEngine(policy, ())
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ValueError, match="use a vLLM server"):
        VLLMEngine(policy, ())


@pytest.fixture(scope="module")
def shared(tokenizers):
    pytest.importorskip("vllm")
    pytest.importorskip("numba")  # loaded, as after a search: vLLM must start all the same
    policy = build(tokenizers)
    return policy, VLLMEngine(policy, (), kv_gib=0.25)


@pytest.fixture
def engine(shared):
    """With the policy of the start, whatever the test before has made of it."""
    policy, engine = shared
    start = copy.deepcopy(policy.model.state_dict())
    engine.reset()
    yield engine
    policy.model.load_state_dict(start)
    stopping(engine, policy, ())


def stopping(engine: VLLMEngine, policy: Policy, stop: tuple[str, ...]) -> VLLMEngine:
    engine._is_complete = StopChecker(policy, stop)
    return engine


def encoded(policy: Policy) -> dict[int, list[int]]:
    return {key: policy.encode(text) for key, text in PROMPTS.items()}


def logprobs_of(
    policy: Policy,
    prompt: list[int],
    tokens: list[int],
    temperature: float = 1.0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> list[float]:
    with torch.no_grad():
        logp = (policy.model(torch.tensor([prompt + tokens])).logits[0] / temperature).log_softmax(-1)
    logp = truncate(logp, top_p, min_p)
    return logp[len(prompt) - 1 : -1].gather(1, torch.tensor(tokens)[:, None]).squeeze(1).tolist()


@pytest.mark.vllm
def test_greedy_is_that_of_transformers_turn_by_turn(shared, engine):
    policy, _ = shared
    other, contexts = TransformersEngine(policy, ()), encoded(policy)
    for turn in range(4):
        expected = generate(other, contexts, 24, 0.0)
        done = generate(engine, contexts, 24, 0.0)
        assert list(done) == list(contexts)
        for key in contexts:
            assert done[key].tokens == expected[key].tokens
            assert done[key].logprobs == pytest.approx(expected[key].logprobs, abs=1e-4)
            observation = policy.observation_ids("seen " * (key + turn), done[key].tokens)
            contexts[key] = contexts[key] + done[key].tokens + observation


@pytest.mark.vllm
@pytest.mark.parametrize(("temperature", "used"), [(0.6, 0.6), (1.0, 1.0), (2.0, 2.0), (0.0, 1.0)])
def test_logprobs_are_those_of_the_distribution_sampled_from(shared, engine, temperature, used):
    policy, _ = shared
    prompts = encoded(policy)
    for key, done in generate(engine, prompts, 30, temperature).items():
        expected = logprobs_of(policy, prompts[key], done.tokens, used)
        assert done.logprobs == pytest.approx(expected, abs=1e-4)
        assert done.finish_reason == "length" or done.tokens[-1] in policy.end_ids


@pytest.mark.vllm
@pytest.mark.parametrize("how", [(0.7, 0.0), (1.0, 0.1), (0.8, 0.1)])
def test_tokens_are_cut_off_as_in_transformers(shared, engine, how):
    policy, _ = shared
    prompts = encoded(policy)
    for key, done in generate(engine, prompts, 30, 1.5, *how).items():
        assert done.logprobs == pytest.approx(logprobs_of(policy, prompts[key], done.tokens, 1.5, *how), abs=1e-4)


@pytest.mark.vllm
def test_samples_follow_the_distribution_and_the_seed(shared, engine):
    policy, _ = shared
    prompt = policy.encode("the town")
    asked = dict.fromkeys(range(4000), prompt)

    def sampled(seed: int) -> list[int]:
        torch.manual_seed(seed)
        return [done.tokens[0] for done in generate(engine, asked, 1, 0.7).values()]

    tokens = sampled(1)
    assert tokens == sampled(1) != sampled(2)
    with torch.no_grad():
        p = (policy.model(torch.tensor([prompt])).logits[0, -1] / 0.7).softmax(-1)
    share = torch.tensor(tokens).bincount(minlength=len(p)) / len(tokens)
    torch.testing.assert_close(share, p, rtol=0, atol=0.03)
    assert p.max() < 0.9


@pytest.mark.vllm
def test_turns_end_where_those_of_transformers_do(shared, engine, monkeypatch):
    policy, _ = shared
    prompts = encoded(policy)
    free = generate(TransformersEngine(policy, ()), prompts, 40, 0.0)
    said = {key: policy.tokenizer.decode(done.tokens) for key, done in free.items()}
    stop = said[3][7:11], said[7][20:23]  # of several tokens each
    expected = generate(TransformersEngine(policy, stop), prompts, 40, 0.0)
    done = generate(stopping(engine, policy, stop), prompts, 40, 0.0)
    assert {k: (c.tokens, c.finish_reason) for k, c in done.items()} == {
        k: (c.tokens, c.finish_reason) for k, c in expected.items()
    }
    assert done[3].finish_reason == done[7].finish_reason == "stop"
    assert len(done[3].tokens) < 40
    assert all(len(c.tokens) == len(c.logprobs) for c in done.values())

    monkeypatch.setattr(policy, "end_ids", {free[0].tokens[4]})
    monkeypatch.setattr(engine, "_end_ids", sorted(policy.end_ids))
    expected = generate(TransformersEngine(policy, ()), prompts, 40, 0.0)
    done = generate(stopping(engine, policy, ()), prompts, 40, 0.0)
    assert {k: (c.tokens, c.finish_reason) for k, c in done.items()} == {
        k: (c.tokens, c.finish_reason) for k, c in expected.items()
    }
    assert done[0].finish_reason == "stop" and len(done[0].tokens) <= 5


@pytest.mark.vllm
def test_a_conversation_that_goes_on_costs_only_what_is_new(shared, engine, monkeypatch):
    policy, _ = shared
    cached, step = [], engine._engine.step

    def watched():
        outputs = step()
        cached.extend(output.num_cached_tokens for output in outputs)
        return outputs

    monkeypatch.setattr(engine._engine, "step", watched)
    prompt = policy.encode("the town " * 20)
    said = generate(engine, {0: prompt}, 4, 1.0)[0].tokens
    assert max(cached) == 0
    generate(engine, {0: prompt + said + policy.encode(" and so on")}, 1, 1.0)
    assert max(cached) >= len(prompt) - 32
    cached.clear()
    engine.reset()
    generate(engine, {0: prompt}, 1, 1.0)
    assert max(cached) == 0


@pytest.mark.vllm
def test_turns_begin_while_others_are_open(shared, engine):
    policy, _ = shared
    prompts = encoded(policy)
    expected = generate(TransformersEngine(policy, ()), prompts, 12, 0.0)
    engine.submit({3: prompts[3], 0: prompts[0]}, SamplingParams(max_new_tokens=12, temperature=0.0))
    with pytest.raises(ValueError, match=r"conversations \[3\] have an open turn"):
        engine.submit({3: prompts[3]}, SamplingParams(max_new_tokens=12, temperature=0.0))
    engine.submit({7: prompts[7]}, SamplingParams(max_new_tokens=3, temperature=0.0))
    first = engine.wait()
    assert first[7].tokens == expected[7].tokens[:3]
    engine.submit({}, SamplingParams(max_new_tokens=12, temperature=0.0))
    engine.submit({1: prompts[1]}, SamplingParams(max_new_tokens=12, temperature=0.0))
    rest = {}
    while some := engine.wait():
        rest |= some
    assert {key: rest[key].tokens for key in (3, 0, 1)} == {key: expected[key].tokens for key in (3, 0, 1)}
    engine.submit(prompts, SamplingParams(max_new_tokens=12, temperature=0.0))
    engine.reset()
    assert engine.wait() == {}
    assert generate(engine, prompts, 12, 0.0)[7].tokens == expected[7].tokens


@pytest.mark.vllm
def test_new_weights_are_played_with_after_a_reset(shared, engine, monkeypatch):
    policy, _ = shared
    prompts = encoded(policy)
    before = generate(engine, prompts, 24, 0.0)
    disturb(policy.model)
    engine.reset()
    after = generate(engine, prompts, 24, 0.0)
    expected = generate(TransformersEngine(policy, ()), prompts, 24, 0.0)
    assert {k: c.tokens for k, c in after.items()} == {k: c.tokens for k, c in expected.items()}
    assert {k: c.tokens for k, c in after.items()} != {k: c.tokens for k, c in before.items()}
    for key, done in generate(engine, prompts, 24, 1.0).items():
        assert done.logprobs == pytest.approx(logprobs_of(policy, prompts[key], done.tokens), abs=1e-4)


@pytest.mark.vllm
def test_adapters_are_played_with_too(shared, engine, monkeypatch):
    pytest.importorskip("peft")
    policy, _ = shared
    adapted = copy.deepcopy(policy)
    lora.add_lora(adapted.model, 4, 32)
    disturb(adapted.model)
    monkeypatch.setattr(engine._sync_weights, "_model", adapted.model)
    engine.reset()
    prompts = encoded(policy)
    expected = generate(TransformersEngine(adapted, ()), prompts, 24, 0.0)
    assert {k: c.tokens for k, c in generate(engine, prompts, 24, 0.0).items()} == {
        k: c.tokens for k, c in expected.items()
    }


@pytest.mark.vllm
def test_grpo_learns(shared, engine, letters):
    """Lower-case letters are paid for: a policy that says few of them learns to."""
    policy, _ = shared
    args = grpo.Args(lr=3e-3, importance="tis", temperature=1.0, max_new_tokens=8)
    envs = make_envs(letters, '{"entities": 60, "questions": 20, "max_turns": 2}', "train", 32)
    optimizer = grpo.make_optimizer(policy, [{"params": list(policy.model.parameters()), "lr": args.lr}])
    stopping(engine, policy, envs.envs[0].stop)
    torch.manual_seed(0)
    rng, returns, weights = np.random.default_rng(0), [], []
    for _ in range(15):
        seeds = rng.integers(2**31, size=4).tolist()
        played = rollout(envs, policy, engine, seeds=seeds, group_size=8, max_new_tokens=8)
        returns.append(np.mean([t.episode_return for t in played]))
        weights.append(
            grpo.update(args, policy, optimizer, None, grpo.compute_advantages, played, rng)["policy/importance"]
        )
    assert np.mean(returns[-3:]) > np.mean(returns[:3]) + 0.3
    assert weights == pytest.approx([1.0] * len(weights), abs=1e-4)  # always the policy of the moment
