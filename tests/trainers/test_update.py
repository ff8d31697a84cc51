"""The update that the policy-gradient methods share, against what it should be by hand."""

import copy

import numpy as np
import pytest
import torch

from trainers import gigpo, grpo, ppo, reinforce, rloo
from trainers.algorithms.losses import is_clipped, kl_k2, kl_k3
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models.kl_reference import KLPenalty
from trainers.rollouts.batching import add_overlong_penalty, prepare_batch, select_episodes
from trainers.rollouts.rollout import rollout
from trainers.trajectory import collate

ALGORITHMS = {
    "grpo": (grpo.Args(), grpo.compute_advantages),
    "grpo by turns": (grpo.Args(turn_credit=True), grpo.compute_advantages),
    "grpo with process rewards": (grpo.Args(process_weight=0.5), grpo.compute_advantages),
    "rloo": (rloo.Args(), rloo.compute_advantages),
    "rloo by turns": (rloo.Args(turn_credit=True), rloo.compute_advantages),
    "reinforce++": (reinforce.Args(), reinforce.compute_advantages),
    "reinforce++-baseline": (reinforce.Args(baseline="group"), reinforce.compute_advantages),
    "reinforce++-baseline by turns": (reinforce.Args(baseline="group", turn_credit=True), reinforce.compute_advantages),
    "gigpo": (gigpo.Args(), gigpo.compute_advantages),
}


@pytest.fixture
def played(make_policy, recite):
    """Six episodes in two groups of three, of one to three turns."""
    policy = make_policy("bytes")
    envs = recite([["a", "b"], ["a"], ["c", "d"], ["c"], ["e"], ["e", "f", "g"]],
                  [[1.0, 0.0], [0.0], [0.5, 0.75], [1.0], [0.0], [0.0, 1.0, 2.0]])  # fmt: skip
    engine = TransformersEngine(policy, ("</search>",))
    return policy, rollout(envs, policy, engine, seeds=[0, 1], group_size=3, max_new_tokens=6)


def flat(policy):
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()])


def updated(policy, episodes, args, advantages, reference=None):
    """The weights after an update by plain gradient descent, and its metrics."""
    policy = copy.deepcopy(policy)
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.1)
    args.max_grad_norm = 1e9
    rng = np.random.default_rng(0)
    penalty = reference and KLPenalty(reference, args)
    metrics = grpo.update(args, policy, optimizer, penalty, advantages, episodes, rng)
    return flat(policy), metrics


def by_grpo(policy, episodes, reference=None, **arguments):
    return updated(policy, episodes, grpo.Args(**arguments), grpo.compute_advantages, reference)


def step_of(policy, objective):
    """What plain gradient ascent on ``objective`` adds to the weights."""
    gradients = torch.autograd.grad(objective, list(policy.model.parameters()))
    return 0.1 * torch.cat([g.flatten() for g in gradients])


def test_gradients_leave_their_memory_to_rollouts(played):
    policy, episodes = played
    args, rng = grpo.Args(), np.random.default_rng(0)
    optimizer = grpo.make_optimizer(policy, [{"params": list(policy.model.parameters()), "lr": args.lr}])
    grpo.update(args, policy, optimizer, None, grpo.compute_advantages, episodes, rng)
    critic = ppo.Critic(policy)
    optimizer = grpo.make_optimizer(
        policy, [{"params": [*policy.model.parameters(), *critic.parameters()], "lr": args.lr}]
    )
    ppo.update(ppo.Args(), policy, critic, optimizer, None, episodes, rng)
    assert all(p.grad is None for model in (policy.model, critic) for p in model.parameters())


def test_rloo_by_turns_compares_with_the_others(played):
    """The first turns of a group earn 1, 0 and 1.25 from there on, the second ones 0 and .75; see `played`."""
    policy, episodes = played
    _, data, _ = prepare_batch(episodes[:3], policy, rloo.Args())
    got = rloo.compute_advantages(rloo.Args(turn_credit=True), data)
    by_turn = [[row[turns == k] for row, turns in zip(got, data.turns, strict=True)] for k in (0, 1)]
    firsts, seconds = [[own[0].item() if len(own) else None for own in rows] for rows in by_turn]
    assert firsts == pytest.approx([1 - 1.25 / 2, 0 - 2.25 / 2, 1.25 - 1 / 2])
    assert (seconds[0], seconds[1], seconds[2]) == (-0.75, None, 0.75)


def test_process_rewards_add_what_a_turn_brought_by_itself(played):
    """Returns 1, 0 and 1.25; first turns bring 1, 0 and .5, second ones 0 and .75, so that they are .5, -.5, 0 and -.375,
    .375 from their means; the episodes are .25, -.75 and .5 from theirs."""
    policy, episodes = played
    _, data, _ = prepare_batch(episodes[:3], policy, grpo.Args())
    got = grpo.compute_advantages(grpo.Args(process_weight=0.5), data)
    by_turn = [[row[turns == k] for row, turns in zip(got, data.turns, strict=True)] for k in (0, 1)]
    firsts, seconds = [[own[0].item() if len(own) else None for own in rows] for rows in by_turn]
    assert firsts == pytest.approx([0.25 + 0.25, -0.75 - 0.25, 0.5])
    assert (seconds[0], seconds[1], seconds[2]) == pytest.approx((0.25 - 0.1875, None, 0.5 + 0.1875))
    with pytest.raises(ValueError, match="leave out process_weight"):
        grpo.Args(process_weight=0.5, turn_credit=True)


def ruined(episode):
    """The same episode, had its tools failed, and had it gone otherwise."""
    episode = copy.deepcopy(episode)
    episode.failed = True
    for step in episode.steps:
        step.reward = 50.0
        step.tokens = [(token + 1) % 200 for token in step.tokens] * 3
        step.logprobs = step.logprobs * 3
        step.prompt = step.prompt[:1] * len(step.prompt)
    return episode


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_what_a_failed_episode_did_and_earned_changes_nothing(played, make_policy, name, kl_coef):
    policy, episodes = played
    args, advantages = ALGORITHMS[name]
    args = copy.deepcopy(args)
    args.kl_coef = kl_coef
    reference = make_policy("bytes", 1) if kl_coef else None
    episodes[2].failed = True
    expected, metrics = updated(policy, episodes, args, advantages, reference)
    assert metrics["policy/grad_norm"] > 0
    episodes[2] = ruined(episodes[2])
    got, _ = updated(policy, episodes, args, advantages, reference)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    episodes[2].failed = False
    assert not torch.allclose(updated(policy, episodes, args, advantages, reference)[0], expected, atol=1e-4)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_batch_that_failed_altogether(played, name):
    policy, episodes = played
    for episode in episodes:
        episode.failed = True
    after, metrics = updated(policy, episodes, *ALGORITHMS[name])
    assert torch.equal(after, flat(policy))
    assert metrics["policy/grad_norm"] == 0


def test_the_surrogates_agree_while_the_policy_is_the_one_that_sampled(played):
    """All ratios are 1: each gradient is that of REINFORCE; GSPO weighs a sequence's tokens by its own length."""
    policy, episodes = played
    clip, _ = by_grpo(policy, episodes)
    torch.testing.assert_close(by_grpo(policy, episodes, loss="cispo")[0], clip, rtol=0, atol=1e-5)
    by_sequence, _ = by_grpo(policy, episodes, normalize="sequences")
    gspo, _ = by_grpo(policy, episodes, normalize="sequences", loss="gspo")
    torch.testing.assert_close(gspo, by_sequence, rtol=0, atol=1e-5)
    assert not torch.allclose(clip, by_sequence, atol=1e-4)


def test_the_surrogates_differ_where_the_policy_has_moved(played):
    policy, episodes = played
    for episode in episodes:
        for step in episode.steps:
            step.logprobs = [value + 0.5 * (-1) ** t for t, value in enumerate(step.logprobs)]
    after = {loss: by_grpo(policy, episodes, loss=loss) for loss in ("clip", "cispo", "gspo")}
    for a, b in (("clip", "cispo"), ("clip", "gspo"), ("cispo", "gspo")):
        assert not torch.allclose(after[a][0], after[b][0], atol=1e-5)
    assert after["clip"][1]["policy/clip_fraction"] == 1.0  # e**-.5 and e**.5 lie outside .8 and 1.28
    # In a sequence these cancel, up to the odd token of its last turn.
    logprobs = torch.tensor([[0.5, -0.5, 0.0], [0.5, -0.5, 0.5]])
    batch = collate(episodes[:2], policy.pad_id)[torch.tensor([0, 1])]
    batch.mask, batch.logprobs = torch.tensor([[True, True, False], [True] * 3]), torch.zeros(2, 3)
    clipped = is_clipped("gspo", logprobs, batch.logprobs, batch.mask, 3e-4, 4e-4)
    assert clipped[:, 0].tolist() == [False, True]


def test_a_gradient_that_is_not_finite_is_reported_and_not_followed(played):
    policy, episodes = played
    episodes[1].steps[0].reward = -1e30  # finite, and the square of its gradient is not
    after, metrics = by_grpo(policy, episodes)
    assert torch.equal(after, flat(policy))
    assert not np.isfinite(metrics["policy/grad_norm"])


@pytest.mark.parametrize("filter", ["none", "mixed"])
def test_a_reward_that_is_not_finite_is_an_error(played, filter):
    policy, episodes = played
    episodes[0].steps[0].reward = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        by_grpo(policy, episodes, filter=filter)
    episodes[0].failed = True
    by_grpo(policy, episodes, filter=filter)


def test_sequences_as_in_grpos_paper(played):
    """Mean over each sequence's tokens, then over sequences."""
    policy, episodes = played
    after, _ = by_grpo(policy, episodes, normalize="sequences")
    batch = collate(episodes, policy.pad_id)
    returns = torch.tensor([e.episode_return for e in episodes]).view(2, 3)
    advantages = (returns - returns.mean(1, keepdim=True)).flatten()
    logprobs, _ = policy.logprobs(batch)
    objective = ((advantages[:, None] * logprobs).sum(1) / batch.mask.sum(1)).mean()
    torch.testing.assert_close(after - flat(policy), step_of(policy, objective), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("name", "estimate"), [("k2", kl_k2), ("k3", kl_k3)])
def test_the_kl_penalty(played, make_policy, name, estimate):
    policy, episodes = played
    reference = make_policy("bytes", 1)
    plain, _ = by_grpo(policy, episodes)
    after, _ = by_grpo(policy, episodes, reference, kl_coef=0.2, kl=name)
    batch = collate(episodes, policy.pad_id)
    with torch.no_grad():
        of_reference, _ = reference.logprobs(batch)
    penalty = estimate(policy.logprobs(batch)[0], of_reference)[batch.mask].mean()
    torch.testing.assert_close(after - plain, step_of(policy, -0.2 * penalty), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["mixed", "uncertain", "signal"])
def test_an_update_without_a_group_is_skipped(played, name):
    policy, episodes = played
    for episode in episodes:
        for step in episode.steps:
            step.reward = 0.0
    after, metrics = by_grpo(policy, episodes, filter=name)
    assert torch.equal(after, flat(policy))
    assert metrics["filter/kept"] == 0
    assert "policy/grad_norm" not in metrics


def test_a_filter_leaves_the_other_groups_out_of_the_normalizer(played):
    policy, episodes = played
    for episode in episodes[:3]:
        for step in episode.steps:
            step.reward = 1.0 / len(episode.steps)
    after, metrics = by_grpo(policy, episodes, filter="mixed")
    assert metrics["filter/kept"] == 0.5
    alone, _ = by_grpo(policy, episodes[3:])
    torch.testing.assert_close(after, alone, rtol=0, atol=1e-6)


def test_long_turns_are_punished_one_by_one(played):
    """Longest 6, buffer 4: a turn of 6 tokens pays 1, one of 4 pays half, one of 2 nothing."""
    _, episodes = played
    args = grpo.Args(max_new_tokens=6, overlong_buffer=4)
    (episode,), _ = select_episodes([copy.deepcopy(episodes[5])], args)
    for step, before in zip(episode.steps, episodes[5].steps, strict=True):
        assert step.reward == pytest.approx(before.reward - max(0, len(step.tokens) - 2) / 4)
    assert [s.reward for s in episodes[5].steps] == [0.0, 1.0, 2.0]
    short = copy.deepcopy(episodes[5].steps[0])
    short.tokens, short.reward = short.tokens[:4], 1.0
    assert add_overlong_penalty(short, args).reward == 0.5


def test_a_filter_goes_by_the_raw_returns(played):
    """Punished for their length alone, the attempts differ; but there is nothing to learn about the task."""
    policy, episodes = played
    for episode in episodes:
        for step in episode.steps:
            step.reward = 0.0
    _, metrics = by_grpo(policy, episodes, filter="mixed", overlong_buffer=4, max_new_tokens=6)
    assert metrics["filter/kept"] == 0


def test_metrics_are_means_over_tokens_however_they_are_cut(played):
    policy, episodes = played
    for episode in episodes[:3]:
        for step in episode.steps:
            step.reward = 0.0  # flat, so some minibatches hold nothing to learn from
    args = {"max_grad_norm": 1e-9}
    policy_args = grpo.Args(**args)
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.0)
    metrics = []
    for minibatches in (1, 6):
        policy_args.minibatches = minibatches
        rng = np.random.default_rng(0)
        metrics.append(grpo.update(policy_args, policy, optimizer, None, grpo.compute_advantages, episodes, rng))
    for name in ("policy/entropy", "policy/sampler_kl"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], abs=1e-5)


def test_rewritten_contexts_train_with_their_episodes_advantage(rewritten):
    policy, episodes = rewritten
    batch = collate(episodes, policy.pad_id)
    assert len(batch.ids) > len(episodes)
    after, _ = by_grpo(policy, episodes)
    returns = torch.tensor([e.episode_return for e in episodes]).view(2, 2)
    advantages = (returns - returns.mean(1, keepdim=True)).flatten()[batch.trajectory]
    objective = (advantages[:, None] * policy.logprobs(batch)[0]).sum() / batch.mask.sum()
    torch.testing.assert_close(after - flat(policy), step_of(policy, objective), rtol=1e-3, atol=1e-6)


def test_without_the_loss_mask_every_token_behind_the_first_turn_trains(played):
    policy, episodes = played
    after, _ = by_grpo(policy, episodes, loss_mask=False)
    batch = collate(episodes, policy.pad_id)
    returns = torch.tensor([e.episode_return for e in episodes]).view(2, 3)
    advantages = (returns - returns.mean(1, keepdim=True)).flatten()
    tokens, objective = 0, 0.0
    for row, length in enumerate(batch.lengths.tolist()):
        first = int(batch.mask[row].nonzero()[0])
        ids = batch.ids[row : row + 1, :length]
        logp = policy.model(ids).logits[0].log_softmax(-1)
        objective = objective + advantages[row] * sum(logp[t - 1, ids[0, t]] for t in range(first, length))
        tokens += length - first
    torch.testing.assert_close(after - flat(policy), step_of(policy, objective / tokens), rtol=1e-3, atol=1e-5)
