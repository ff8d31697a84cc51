"""What is sampled, what is learned from, and what a plain model computes agree, for every kind of model and way to run it."""

import copy
from functools import partial

import pytest
import torch
from family_models import batch_of, build
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.engines.engine import generate
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models import flex_attention, row_attention
from trainers.models.critic import Critic
from trainers.models.hidden_states import choose_tree_attention, token_cost_of
from trainers.models.lora import add_lora, trainable_parameters
from trainers.models.micro_batches import split_rows
from trainers.trajectory import Step, Trajectory, collate

LEARNED = [  # families, with an adapter or without, by how their trees are run
    ("llama", False, "masked"), ("seed_oss", True, "masked"), ("seed_oss", False, "rows"), ("qwen3", False, "rows"),
    ("llama", True, "rows"), ("gemma", True, "rows"), ("qwen2", False, ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def make(tokenizers):
    """``make(name, …)``: `build`."""
    return partial(build, tokenizers)


tokens = st.lists(st.integers(3, 5), max_size=6)
# Few tokens, so that rows branch, end inside each other, and repeat each other.
branching_rows = st.lists(
    st.tuples(st.sampled_from([[7, 8, 9] * 4, [7, 8], [6] * 9]), tokens).map(lambda x: x[0] + x[1]),
    min_size=1,
    max_size=7,
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


@pytest.mark.parametrize(("name", "lora", "tree_attention"), LEARNED)
@given(rows=branching_rows, data=st.data())
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


@pytest.mark.parametrize(("name", "lora"), [("seed_oss", True), ("qwen2", False), ("qwen3", True)])
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
    monkeypatch.setattr(row_attention, "CHUNK", 3)  # of rows of 8 tokens
    for name in ("llama", "seed_oss", "qwen2", "qwen3", "gemma"):
        assert choose_tree_attention(make(name).model.base_model, IDS, torch.float32) == "rows"
    new = make("llama")
    add_lora(new.model, 2, 4)
    assert choose_tree_attention(new.model.base_model, IDS, torch.float32) == "rows"
    assert choose_tree_attention(make("mistral").model.base_model, IDS, torch.float32) == ""
    right = row_attention.attend_rows
    monkeypatch.setattr(row_attention, "attend_rows", lambda q, k, *rest: right(q, 2 * k - k.detach(), *rest))
    with pytest.warns(UserWarning, match="run without 'rows' attention.*: hidden states and gradients differ by"):
        assert choose_tree_attention(make("llama").model.base_model, IDS, torch.float32) == "masked"

    monkeypatch.setattr(row_attention, "attend_rows", right)
    broken = make("llama").model.base_model
    list(broken.parameters())[5].register_hook(lambda gradient: gradient * torch.nan)
    with pytest.warns(UserWarning, match="run without 'rows' attention.*nan"):
        assert choose_tree_attention(broken, IDS, torch.float32) == "masked"


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
    """Also once its attention is that of rows, or of trees in one row."""
    policy = make("llama")
    backbone = policy.model.base_model
    ids, mask = torch.tensor([[7, 7, 3, 4], [1, 2, 3, 4]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    with torch.no_grad():
        expected = backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        policy.tree_attention = "rows"
        policy.logprobs(batch_of([[5, 6, 7, 8], [5, 6, 9]]))
        found = [backbone(input_ids=ids, attention_mask=mask).last_hidden_state]
        backbone.config._attn_implementation = flex_attention.ATTENTION_NAME
        found.append(backbone(input_ids=ids, attention_mask=mask).last_hidden_state)
    for got in found:
        torch.testing.assert_close(got[mask.bool()], expected[mask.bool()])
