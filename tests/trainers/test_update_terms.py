"""What is added to the surrogate and what it is weighted with, against what it should be by hand."""

import copy

import numpy as np
import pytest
import torch

from trainers import grpo, ppo, reinforce
from trainers.algorithms.losses import kl_k3
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models.kl_reference import KLPenalty
from trainers.rollouts.batching import prepare_batch
from trainers.rollouts.rollout import rollout
from trainers.trajectory import PackedEpisodes, collate, pack, unpack


@pytest.fixture
def played(make_policy, recite):
    """Four episodes in two groups, of one to three turns."""
    policy = make_policy("bytes")
    envs = recite([["a", "b"], ["a"], ["c", "d", "e"], ["c"]], [[1.0, 0.0], [0.0], [0.5, 0.75, 0.0], [1.0]])
    engine = TransformersEngine(policy, ("</search>",))
    return policy, rollout(envs, policy, engine, seeds=[0, 1], group_size=2, max_new_tokens=6)


def stepped(policy, episodes, args, penalty=None, advantages=grpo.compute_advantages):
    """What an update by plain gradient descent adds to the weights, and its metrics."""
    moved = copy.deepcopy(policy)
    args.max_grad_norm = 1e9
    optimizer = torch.optim.SGD(moved.model.parameters(), lr=0.1)
    rng = np.random.default_rng(0)
    metrics = grpo.update(args, moved, optimizer, penalty, advantages, episodes, rng)
    return weights(moved) - weights(policy), metrics


def weights(policy):
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()])


def ascent(policy, value):
    gradients = torch.autograd.grad(value, list(policy.model.parameters()))
    return 0.1 * torch.cat([g.flatten() for g in gradients])


def disagreeing(episodes, by=(0.4, -1.0, 2.0)):
    """The same episodes from a sampler that gave the tokens other probabilities: weights on all sides of all bounds."""
    episodes = copy.deepcopy(episodes)
    for e, episode in enumerate(episodes):
        for step in episode.steps:
            off = by if e % 2 else (0.1, -0.1)  # in every other episode next to nothing
            step.logprobs = [value - off[t % len(off)] for t, value in enumerate(step.logprobs)]
    return episodes


def test_an_entropy_bonus_raises_the_entropy_of_every_valid_token(played):
    policy, episodes = played
    for step in (step for episode in episodes for step in episode.steps):
        step.reward = 0.0  # no advantage anywhere: all that is left is the bonus
    still, _ = stepped(policy, episodes, grpo.Args())
    assert not still.any()
    moved, _ = stepped(policy, episodes, grpo.Args(entropy_coef=0.5))
    batch = collate(episodes, policy.pad_id)
    values = []
    for row, length in enumerate(batch.lengths.tolist()):
        log_p = policy.model(batch.ids[row : row + 1, :length]).logits[0].log_softmax(-1)
        values += [-(log_p[t - 1].exp() * log_p[t - 1]).sum() for t in batch.mask[row].nonzero()[:, 0].tolist()]
    torch.testing.assert_close(moved, ascent(policy, 0.5 * torch.stack(values).mean()), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("module", [grpo, reinforce])
def test_k1_in_the_reward_is_a_reward(played, make_policy, module):
    """The same update as one whose rewards were lowered by hand, token by token; and no term in the loss."""
    policy, episodes = played
    reference = make_policy("bytes", 1)
    args = module.Args(kl_coef=0.1, kl="k1")
    got, metrics = stepped(policy, episodes, args, KLPenalty(reference, args), module.compute_advantages)
    batch = collate(episodes, policy.pad_id)
    with torch.no_grad():
        of_reference, _ = reference.logprobs(batch)
    rewards = batch.rewards - torch.where(batch.mask, 0.1 * (batch.logprobs - of_reference), 0.0)
    lowered = pack(rewards, batch)
    data = PackedEpisodes(
        returns=lowered.sum(1), rewards=lowered, mask=pack(batch.mask, batch), turns=pack(batch.turns, batch, fill=-1),
        groups=torch.tensor([0, 0, 1, 1]), valid=torch.ones(4, dtype=torch.bool), anchors=[],
    )  # fmt: skip
    advantages = unpack(module.compute_advantages(args, data), batch)
    expected = ascent(policy, (advantages * policy.logprobs(batch)[0]).sum() / batch.mask.sum())
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-6)
    assert metrics["policy/kl"] == pytest.approx(
        kl_k3(batch.logprobs, of_reference)[batch.mask].mean().item(), rel=1e-5
    )
    plain, _ = stepped(policy, episodes, module.Args(), None, module.compute_advantages)
    assert not torch.allclose(got, plain, atol=1e-5)


def test_ppos_critic_learns_returns_with_the_k1_penalty_in_them(played, make_policy):
    policy, episodes = played
    reference = make_policy("bytes", 1)
    args = ppo.Args(kl_coef=0.1, kl="k1")
    batch, data, _ = prepare_batch(episodes, policy, args, KLPenalty(reference, args))
    batch = ppo.add_advantages(args, policy, ppo.Critic(policy), batch, data.valid)
    with torch.no_grad():
        of_reference, _ = reference.logprobs(batch)
    paid = collate(episodes, policy.pad_id).rewards - 0.1 * (batch.logprobs - of_reference)
    row = 0
    tokens = batch.mask[row].nonzero()[:, 0]
    expected = paid[row, tokens].flip(0).cumsum(0).flip(0)  # λ = γ = 1: what is still to come
    torch.testing.assert_close(batch.value_targets[row, tokens], expected, rtol=1e-4, atol=1e-5)


def test_the_kl_coefficient_is_steered_to_its_target_and_kept(played, make_policy):
    policy, episodes = played
    args = grpo.Args(kl_coef=0.1, kl="k2", kl_target=1e-6)
    penalty = KLPenalty(make_policy("bytes", 1), args)
    seen = [stepped(policy, episodes, args, penalty)[1]["policy/kl_coef"] for _ in range(3)]
    assert seen == pytest.approx([0.1, 0.1 * 1.02, 0.1 * 1.02**2])  # far above the target: 2 % an update
    other = KLPenalty(make_policy("bytes", 1), args)
    other.load_state_dict(penalty.state_dict())
    assert other.coef.item() == penalty.coef.item() == pytest.approx(0.1 * 1.02**3)
    at_home = KLPenalty(policy, args)
    stepped(policy, episodes, args, at_home)
    assert at_home.coef.item() == pytest.approx(0.098)  # no KL at all
    for episode in episodes:
        episode.failed = True
    stepped(policy, episodes, args, penalty)
    assert penalty.coef.item() == other.coef.item()  # nothing was measured
    fixed = grpo.Args(kl_coef=0.1)
    assert stepped(policy, episodes, fixed, KLPenalty(make_policy("bytes", 1), fixed))[1]["policy/kl_coef"] == 0.1


def test_the_kl_is_measured_on_valid_episodes_at_the_temperature_of_the_rollouts(played, make_policy):
    policy, episodes = played
    reference = make_policy("bytes", 1)
    episodes[1].failed = episodes[2].failed = True
    args = grpo.Args(kl_coef=0.1, temperature=0.7)
    _, metrics = stepped(policy, episodes, args, KLPenalty(reference, args))
    batch = collate([episodes[0], episodes[3]], policy.pad_id)
    of_reference, _ = reference.logprobs(batch, 0.7)
    expected = kl_k3(batch.logprobs, of_reference.detach())[batch.mask].mean().item()
    assert metrics["policy/kl"] == pytest.approx(expected, rel=1e-4)


def test_a_correction_is_taken_at_the_temperature_of_the_rollouts(played):
    """Sampled at 1 but trained at .7, the episodes are off-policy by just that."""
    policy, episodes = played
    _, metrics = stepped(policy, episodes, grpo.Args(importance="tis", temperature=0.7))
    batch = collate(episodes, policy.pad_id)
    weights = torch.exp(policy.logprobs(batch, 0.7)[0].detach() - batch.logprobs).clamp(max=2.0)
    assert metrics["policy/importance"] == pytest.approx(weights[batch.mask].mean().item(), rel=1e-4)


@pytest.mark.parametrize("name", ["tis", "icepop", "sequence"])
def test_a_sampler_that_disagrees_is_corrected_for(played, name):
    """Each token's share of the gradient by its weight, and the ratio, taken to the trainer, is 1: nothing is clipped."""
    policy, episodes = played
    episodes = disagreeing(episodes)
    got, metrics = stepped(policy, episodes, grpo.Args(importance=name))
    batch = collate(episodes, policy.pad_id)
    own = policy.logprobs(batch)[0].detach()
    ratio = torch.exp(own - batch.logprobs)
    whole = torch.where(batch.mask, ratio, 1.0).prod(1, keepdim=True)
    weights = {
        "tis": ratio.clamp(max=2.0),
        "icepop": torch.where((ratio < 0.5) | (ratio > 5.0), 0.0, ratio),
        "sequence": torch.where(whole > 2.0, 0.0, whole).expand_as(ratio),
    }[name]
    assert (ratio[batch.mask] > 5).any() and (ratio[batch.mask] < 0.5).any() and (whole > 2).any() and (whole < 2).any()
    returns = torch.tensor([e.episode_return for e in episodes]).view(2, 2)
    advantages = (returns - returns.mean(1, keepdim=True)).flatten()[:, None]
    value = torch.where(batch.mask, weights * advantages * policy.logprobs(batch)[0], 0.0).sum() / batch.mask.sum()
    torch.testing.assert_close(got, ascent(policy, value), rtol=1e-3, atol=1e-6)
    assert metrics["policy/clip_fraction"] == 0
    assert metrics["policy/sampler_kl"] == pytest.approx(kl_k3(batch.logprobs, own)[batch.mask].mean().item(), rel=1e-4)
    assert metrics["policy/importance"] == pytest.approx(weights[batch.mask].mean().item(), rel=1e-5)
    uncorrected, _ = stepped(policy, episodes, grpo.Args())
    assert not torch.allclose(got, uncorrected, atol=1e-5)


def test_an_exact_sampler_needs_no_correction(played):
    policy, episodes = played
    plain, _ = stepped(policy, episodes, grpo.Args())
    for name in ("tis", "icepop", "sequence"):
        got, metrics = stepped(policy, episodes, grpo.Args(importance=name))
        torch.testing.assert_close(got, plain, rtol=1e-3, atol=1e-6)
        assert metrics["policy/importance"] == pytest.approx(1, abs=1e-4)


def test_ppo_is_corrected_too(played):
    policy, episodes = played
    episodes = disagreeing(episodes)
    metrics = {}
    for name in ("none", "tis"):
        moved, args = copy.deepcopy(policy), ppo.Args(importance=name)
        critic = ppo.Critic(moved)
        optimizer = grpo.make_optimizer(moved, [{"params": list(m.parameters())} for m in (moved.model, critic)])
        metrics[name] = ppo.update(args, moved, critic, optimizer, None, episodes, np.random.default_rng(0))
    assert metrics["tis"]["policy/importance"] > 1
    assert metrics["tis"]["policy/clip_fraction"] == 0 < metrics["none"]["policy/clip_fraction"]
    assert "policy/importance" not in metrics["none"]


def test_the_loss_is_one_for_any_micro_batches(played, make_policy):
    """With everything on at once."""
    policy, episodes = played
    both = []
    for tokens in (10_000, 1):
        args = grpo.Args(
            kl_coef=0.1, entropy_coef=0.1, importance="tis", max_tokens_per_micro_batch=tokens, max_grad_norm=1e9
        )
        both.append(stepped(policy, disagreeing(episodes), args, KLPenalty(make_policy("bytes", 1), args)))
    torch.testing.assert_close(both[0][0], both[1][0], rtol=1e-4, atol=1e-6)
    for name, value in both[0][1].items():
        assert value == pytest.approx(both[1][1][name], rel=1e-4, abs=1e-6), name
