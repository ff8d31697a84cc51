"""Top-p and min-p: what is sampled, with which probabilities, and the loss that fits them."""

import copy

import numpy as np
import pytest
import torch
from drive_update import play_batch

from trainers import grpo
from trainers.engines.sampling import truncate
from trainers.engines.transformers_engine import TransformersEngine
from trainers.rollouts.rollout import rollout
from trainers.trajectory import collate

HOW = dict(top_p=0.6, min_p=0.05)


@pytest.fixture(scope="module")
def played(make_policy, recite):
    """Four episodes in two groups, of one or two turns, sampled at temperature 1.5 from what `HOW` leaves."""
    policy = make_policy("bytes")
    envs = recite([["a", "b"], ["a"], ["c", "d"], ["c"]], [[1.0, 0.0], [0.0], [0.5, 0.75], [1.0]])
    engine = TransformersEngine(policy, ("</search>",))
    torch.manual_seed(0)
    return policy, rollout(envs, policy, engine, seeds=[0, 1], group_size=2, max_new_tokens=8, temperature=1.5, **HOW)


def kept_logprobs(policy, batch):
    """Of each action token by what `HOW` leaves of the policy's own distribution, and what share of that this is."""
    found = torch.zeros(2, *batch.mask.shape)
    for row, at in batch.mask.nonzero().tolist():
        with torch.no_grad():
            logp = (policy.model(batch.ids[row : row + 1, :at]).logits[0, -1] / 1.5).log_softmax(-1)
        left = truncate(logp, **HOW)
        found[:, row, at] = torch.stack([left[batch.ids[row, at]], logp[left > -torch.inf].exp().sum()])
    return found


def test_sampled_tokens_are_in_the_set_with_its_probabilities(played):
    policy, episodes = played
    batch = collate(episodes, policy.pad_id)
    left, mass = kept_logprobs(policy, batch)
    assert left.isfinite().all()
    torch.testing.assert_close(batch.logprobs, left, rtol=0, atol=1e-3)
    assert (mass[batch.mask] >= 0.55).all()
    assert (mass[batch.mask] < 0.95).any()


def test_each_token_weighs_what_was_left_of_the_distribution(played):
    """With --importance the ratio is to the policy's own probability, so nothing is clipped, and the weight makes up for the
    sampler's: π / q is the share that was left."""
    policy, episodes = played
    batch = collate(episodes, policy.pad_id)
    _, mass = kept_logprobs(policy, batch)
    moved, args = copy.deepcopy(policy), grpo.Args(importance="tis", temperature=1.5, max_grad_norm=1e9, **HOW)
    optimizer = torch.optim.SGD(moved.model.parameters(), lr=0.1)
    metrics = grpo.update(args, moved, optimizer, None, grpo.compute_advantages, episodes, np.random.default_rng(0))
    assert metrics["policy/importance"] == pytest.approx(mass[batch.mask].mean().item(), rel=1e-3)
    assert metrics["policy/clip_fraction"] == 0
    returns = torch.tensor([e.episode_return for e in episodes]).view(2, 2)
    advantages = (returns - returns.mean(1, keepdim=True)).flatten()[:, None]
    objective = (mass * advantages * policy.logprobs(batch, 1.5)[0]).sum() / batch.mask.sum()
    gradients = torch.autograd.grad(objective, list(policy.model.parameters()))
    for before, after, gradient in zip(policy.model.parameters(), moved.model.parameters(), gradients, strict=True):
        torch.testing.assert_close(after - before, 0.1 * gradient, rtol=1e-2, atol=1e-5)


def test_the_expected_step_is_that_of_what_is_played_times_what_is_left():
    """Over all tokens of a vocabulary, for advantages that are centred under the sampler."""
    torch.manual_seed(0)
    for _ in range(20):
        logits, advantages = torch.randn(2, 9, dtype=torch.float64).unbind(0)
        logits.requires_grad_()
        logp = logits.log_softmax(0)
        left = truncate(logp.detach(), top_p=0.7)
        kept = left > -torch.inf
        q = left.exp()
        advantages = advantages - (q * advantages).sum()
        share = logp.detach()[kept].exp().sum()
        weights = torch.where(kept, logp.detach().exp() / q, 0.0)
        torch.testing.assert_close(weights[kept], share.expand(int(kept.sum())))
        ours = torch.autograd.grad((q * weights * advantages * logp).sum(), logits, retain_graph=True)[0]
        played = (q * advantages * logits.masked_fill(~kept, -torch.inf).log_softmax(0).nan_to_num(neginf=0.0)).sum()
        expected = torch.autograd.grad(played, logits)[0]
        torch.testing.assert_close(ours, share * expected)


def test_a_run_plays_its_batches_so(make_policy, recite):
    """At a nucleus of one token every probability is 1."""
    policy, envs = make_policy("bytes"), recite([["a"]] * 4)
    options = dict(questions_per_update=2, group_size=2, max_new_tokens=5, importance="tis")
    for how, is_sure in ((dict(top_p=1e-6), True), (dict(min_p=1.0), True), (dict(), False)):
        played = play_batch(options | how, envs, policy, 0)
        logprobs = [x for episode in played for turn in episode.turns for x in turn.logprobs]
        assert (max(map(abs, logprobs)) < 1e-6) == is_sure


@pytest.mark.parametrize(
    ("options", "message"),
    [(dict(top_p=0.9), "give importance"), (dict(min_p=0.1), "give importance"), (dict(top_p=0.0), "top_p must be above 0"),
     (dict(top_p=1.1), "top_p must be in"), (dict(min_p=-0.1), "min_p must be in")],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        grpo.Args(**options)
    grpo.Args(top_p=0.9, min_p=0.1, importance="icepop")
    with pytest.raises(ValueError, match=r"the weight of a whole sequence.* goes to 0: give importance 'tis'"):
        grpo.Args(top_p=0.9, importance="sequence")
