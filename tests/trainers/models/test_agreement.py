"""What is sampled, what is learned from, and what a plain model computes agree, for every kind of model and way to run it."""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    SeedOssConfig,
)

from trainers.engines.engine import generate
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models import row_attention
from trainers.models.critic import Critic
from trainers.models.hidden_states import choose_tree_attention, round_frozen, token_cost_of
from trainers.models.lora import add_lora, trainable_parameters
from trainers.models.micro_batches import split_rows
from trainers.models.policy import Policy
from trainers.trajectory import BatchRow, Step, Trajectory, collate, collate_rows, to_rows

LLAMA3 = dict(
    rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=8,
)  # fmt: skip
CONFIGS = {
    "llama": (LlamaConfig, dict(attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3)),
    "tied seed-oss": (SeedOssConfig, dict(tie_word_embeddings=True, attention_dropout=0.0, residual_dropout=0.0)),
    "mistral": (MistralConfig, dict(sliding_window=None)),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {}),
    "gemma": (GemmaConfig, {}),  # whose layers the library runs
}
SAMPLED = [("llama", True), ("tied seed-oss", False), ("qwen2", False), ("qwen3", True), ("gemma", True)]
LEARNED = {  # by how its trees are run: models without an adapter, and with one
    "masked": (("llama", "gemma"), ("tied seed-oss", "qwen3")),
    "rows": (("tied seed-oss", "mistral", "qwen3"), ("llama", "qwen2", "gemma")),
    "": (("qwen2",), ("mistral",)),
}


def build(tokenizers, name: str, lora: bool = False, dtype: torch.dtype = torch.float32, width: int = 32) -> Policy:
    """A policy with weights that all matter, norms and biases too."""
    torch.manual_seed(0)
    make_config, options = CONFIGS[name]
    config = make_config(
        vocab_size=len(tokenizers["bytes"]), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=width // 4, max_position_embeddings=4096,
        eos_token_id=tokenizers["bytes"].eos_token_id, bos_token_id=None, **options,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    if lora:
        pytest.importorskip("peft")
        add_lora(model, 2, 4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * (0.15 if width == 32 else 0.03)
    if dtype == torch.bfloat16:
        round_frozen(model)
    return Policy(model, tokenizers["bytes"], dtype)


@pytest.fixture(scope="module")
def make(tokenizers):
    """``make(name, …)``: `build`."""
    return partial(build, tokenizers)


def play(policy: Policy, draw, temperature: float) -> list[Trajectory]:
    """Three conversations of four turns, whose contexts grow, are cut, or are rewritten on the way."""
    engine, ids = TransformersEngine(policy, ()), st.lists(st.integers(0, 250), min_size=1, max_size=9)
    episodes, contexts = [Trajectory() for _ in range(3)], {i: draw(ids) for i in range(3)}
    for _ in range(4):
        for i, done in generate(engine, contexts, draw(st.integers(1, 5)), temperature).items():
            episodes[i].steps.append(Step(prompt=contexts[i], tokens=done.tokens, logprobs=done.logprobs))
            grown = contexts[i] + done.tokens + draw(ids)
            kept = draw(st.sampled_from(["all", "all", "end", "nothing"]))
            contexts[i] = {"all": grown, "end": grown[-6:], "nothing": draw(ids)}[kept]
    assert engine.runner._runs_as_llama == (policy.model.config.model_type != "gemma")
    return episodes


@pytest.mark.parametrize(("name", "lora"), SAMPLED)
@given(data=st.data())
@settings(max_examples=4, deadline=None)
def test_what_was_sampled_is_what_the_mask_says_with_the_probabilities_of_an_update(make, name, lora, data):
    policy, temperature = make(name, lora), data.draw(st.sampled_from([0.6, 1.0, 1.7]))
    episodes = play(policy, data.draw, temperature)
    batch = collate(episodes, policy.pad_id)
    for i, episode in enumerate(episodes):
        rows = batch.trajectory == i
        assert int(rows.sum()) == len(to_rows(episode.steps))
        assert batch.ids[rows][batch.mask[rows]].tolist() == [token for step in episode.steps for token in step.tokens]
    with torch.no_grad():
        logprobs, _ = policy.logprobs(batch, temperature)
    torch.testing.assert_close(logprobs, batch.old_logprobs, rtol=0, atol=1e-4)


tokens = st.lists(st.integers(3, 5), max_size=6)
# Few tokens, so that rows branch, end inside each other, and repeat each other.
families = st.lists(
    st.tuples(st.sampled_from([[7, 8, 9] * 4, [7, 8], [6] * 9]), tokens).map(lambda x: x[0] + x[1]),
    min_size=1,
    max_size=7,
)


def batch_of(rows: list[list[int]], pad_id: int = 0):
    """The second token and every third one after it are the policy's."""
    return collate_rows(
        [
            BatchRow(ids=r, mask=[i % 3 == 1 for i in range(len(r))], logprobs=[0.0] * len(r), rewards=[0.0] * len(r))
            for r in rows
        ],
        list(range(len(rows))),
        pad_id,
    )


def run(policy, critic, parts, weights):
    """The loss and its gradients, of parts: the rows of a batch with the weight of each token."""
    parameters = [*trainable_parameters(policy.model), *trainable_parameters(critic)]
    gradients, total = [torch.zeros_like(p) for p in parameters], 0.0
    for part, own in zip(parts, weights, strict=True):
        logprobs, entropy = policy.logprobs(part, 0.7, entropy_gradient=True)
        assert not logprobs[~part.mask].any() and not entropy[~part.mask].any()
        loss = ((logprobs + 0.3 * entropy + 0.1 * critic(part)) * own[:, : part.ids.shape[1]] * part.mask).sum()
        total += loss.item()
        for gradient, new in zip(gradients, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            gradient += 0 if new is None else new
    return [torch.tensor(total), *gradients]


def run_plainly(policy, critic, batch, weights):
    """The same by the model as the library has it, row by row, with all of its logits."""
    total = torch.zeros(())
    for ids, length, mask, own in zip(batch.ids, batch.lengths, batch.mask, weights, strict=True):
        ids, mask = ids[None, :length], mask[:length]
        logp = (policy.model(ids).logits[0] / 0.7).log_softmax(-1)
        entropy, values = -(logp.exp() * logp).sum(-1), critic.head(critic.backbone(ids)[0][0])[:, 0]
        for t in mask.nonzero()[:, 0].tolist():
            total = total + own[t] * (logp[t - 1, ids[0, t]] + 0.3 * entropy[t - 1] + 0.1 * values[t - 1])
    parameters = [*trainable_parameters(policy.model), *trainable_parameters(critic)]
    return [total.detach(), *(torch.zeros_like(p) if g is None else g for p, g in zip(
        parameters, torch.autograd.grad(total, parameters, allow_unused=True), strict=True))]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "lora", "tree_attention"),
    [(name, lora, how) for how, both in LEARNED.items() for lora in (False, True) for name in both[lora]],
)
@given(rows=families, data=st.data())
@settings(max_examples=3, deadline=None)
def test_gradients_are_those_of_plain_rows_by_any_micro_batches(make, name, lora, tree_attention, rows, data):
    """With any padding, whose id may be that of a token."""
    policy = make(name, lora)
    policy.tree_attention = tree_attention
    critic = Critic(policy)
    torch.nn.init.normal_(critic.head.weight)
    plain = copy.deepcopy(policy), copy.deepcopy(critic)
    batch = batch_of(rows, data.draw(st.sampled_from([0, 5, policy.eos_id])))
    if not batch.mask.any():
        return
    weights = torch.randn(batch.ids.shape, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 9))))
    cost = token_cost_of(tree_attention)
    chosen = split_rows(batch, data.draw(st.sampled_from([1, 20, 40, 1000])), cost)
    found = run(policy, critic, [batch[own] for own in chosen], [weights[own] for own in chosen])
    for a, b in zip(found, run_plainly(*plain, batch, weights), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * max(1.0, b.abs().max().item()))


@pytest.mark.parametrize(("name", "lora"), [("tied seed-oss", True), ("qwen2", False), ("qwen3", True)])
def test_in_bfloat16_they_stay_close(make, name, lora):
    """The layers of a model of some width, run over nodes, and its sampler; weights stay float32."""
    policy, exact = (make(name, lora, dtype, width=256) for dtype in (torch.bfloat16, torch.float32))
    assert policy.tree_attention == "rows"
    prompts = {key: [5, 6, 7, *[key // 2 + 8] * 20] for key in range(6)}
    done = generate(TransformersEngine(policy, ()), prompts, 25, 1.0)
    steps = [Step(prompt=prompts[k], tokens=c.tokens, logprobs=c.logprobs) for k, c in done.items()]
    batch = collate([Trajectory(steps=[step]) for step in steps], policy.pad_id)
    gradients = []
    for one in (policy, exact):
        logprobs, _ = one.logprobs(batch)
        gradients.append(torch.autograd.grad(logprobs[:, ::2].sum(), trainable_parameters(one.model)))
        gap = (logprobs - batch.old_logprobs)[batch.mask].detach()
        if one is policy:
            assert (gap.exp() - 1 - gap).mean() < (
                2e-4 if lora else 1e-4
            )  # the engine rounds an adapter's merged weights
            assert gap.abs().max() < 0.1
    assert gap.abs().max() > 1e-3  # the batch was sampled in bfloat16
    assert {p.dtype for p in trainable_parameters(policy.model)} == {torch.float32}
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(*gradients, strict=True)]
    assert sum(errors) / len(errors) < 0.05


IDS = [3, 1, 4, 1, 5, 9, 2, 6]


def test_trees_are_run_as_the_model_allows(make, monkeypatch):
    """Narrow models with a mask, wide ones over nodes; one whose gradients are wrong there with a mask, one with a window
    not at all. A new adapter, half of whose gradients are zero, is no reason against."""
    assert choose_tree_attention(make("llama").model.base_model, IDS, torch.float32) == "masked"
    monkeypatch.setattr(row_attention, "MIN_WIDTH", 32)
    for name in CONFIGS:
        assert choose_tree_attention(make(name).model.base_model, IDS, torch.float32) == "rows"
    new = make("llama")
    add_lora(new.model, 2, 4)
    assert choose_tree_attention(new.model.base_model, IDS, torch.float32) == "rows"
    windowed = make("mistral").model.base_model
    windowed.config.sliding_window = 16
    assert choose_tree_attention(windowed, IDS, torch.float32) == ""
    right = row_attention.attend_rows
    monkeypatch.setattr(row_attention, "attend_rows", lambda q, k, *rest: right(q, 2 * k - k.detach(), *rest))
    with pytest.warns(UserWarning, match=r"in padded rows \(rows: hidden states and gradients differ by"):
        assert choose_tree_attention(make("llama").model.base_model, IDS, torch.float32) == "masked"


def test_a_model_that_does_not_heed_the_mask_runs_no_trees(make):
    backbone = make("qwen2").model.base_model

    class Deaf(torch.nn.Module):
        config = backbone.config

        def __init__(self):
            super().__init__()
            self.inner = backbone

        def forward(self, input_ids, attention_mask=None, position_ids=None, use_cache=False):
            return self.inner(input_ids, use_cache=False)

    assert choose_tree_attention(Deaf(), IDS, torch.float32) == ""


def test_whoever_calls_the_model_with_padding_gets_its_mask(make):
    """Also once its attention is that of rows."""
    policy = make("llama")
    backbone = policy.model.base_model
    ids, mask = torch.tensor([[7, 7, 3, 4], [1, 2, 3, 4]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    with torch.no_grad():
        expected = backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        policy.tree_attention = "rows"
        policy.logprobs(batch_of([[5, 6, 7, 8], [5, 6, 9]]))
        got = backbone(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(got[mask.bool()], expected[mask.bool()])
