"""A sequence is an episode, however many rows it has: what is taken over sequences does not depend on how it was cut."""

import copy

import numpy as np
import pytest
import torch

from trainers import grpo, ppo
from trainers.algorithms.losses import is_clipped, sequence_log_ratio
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models.critic import Critic
from trainers.rollouts import batching
from trainers.rollouts.batching import count_normalizer, shuffle_minibatches
from trainers.rollouts.rollout import rollout
from trainers.trajectory import Sequence, collate, collate_sequences, to_sequences


@pytest.fixture(scope="module")
def played(make_policy, recite):
    """Four episodes in two groups, of one to three turns, by a sampler that is a little beside the policy."""
    policy = make_policy("bytes")
    envs = recite([["a", "b", "c"], ["a"], ["d", "e"], ["d", "e", "f"]], [[1.0, 0, 0.5], [0.0], [0, 1.0], [0.5, 0, 0]])
    engine = TransformersEngine(policy, ("</search>",))
    torch.manual_seed(0)
    episodes = rollout(envs, policy, engine, seeds=[0, 1], group_size=2, max_new_tokens=5)
    for step in (step for episode in episodes for step in episode.steps):
        step.logprobs = (
            np.array(step.logprobs) + np.random.default_rng(1).normal(0.05, 0.3, len(step.logprobs))
        ).tolist()
    return policy, episodes


def by_turns(trajectories, pad_id):
    """`collate` with a row for each turn, whose context is all that came before it: nothing but the rows is another."""
    rows, owners = [], []
    for owner, (whole,) in ((i, to_sequences(t.steps)) for i, t in enumerate(trajectories)):
        for turn in range(max(whole.turns) + 1):
            own = [number == turn for number in whole.turns]
            end = len(own) - own[::-1].index(True)
            kept = lambda values, own=own: [v if o else type(v)(0) for v, o in zip(values, own, strict=True)]  # noqa: E731
            rows.append(
                Sequence(
                    ids=whole.ids[:end],
                    mask=own[:end],
                    logprobs=kept(whole.logprobs)[:end],
                    rewards=kept(whole.rewards)[:end],
                    turns=[turn if o else -1 for o in own[:end]],
                )
            )
            owners.append(owner)
    return collate_sequences(rows, owners, pad_id)


SURROGATES = {
    "gspo": dict(loss="gspo", clip_low=0.1, clip_high=0.1),
    "gspo by turns": dict(loss="gspo", clip_low=0.1, clip_high=0.1, turn_credit=True),
    "gspo behind a sampler": dict(loss="gspo", importance="sequence"),
    "grpo's paper": dict(normalize="sequences"),
    "masked sequences": dict(importance="sequence"),
}


def updated(policy, episodes, seed=0, **options):
    """Weights after an update of two minibatches by plain gradient descent, twice over, and its metrics."""
    policy, args = copy.deepcopy(policy), grpo.Args(max_grad_norm=1e9, epochs=2, **options)
    optimizer, rng = torch.optim.SGD(policy.model.parameters(), lr=0.1), np.random.default_rng(seed)
    metrics = grpo.update(args, policy, optimizer, None, grpo.compute_advantages, episodes, rng)
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()]), metrics


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("tokens", [1, 10_000])
def test_an_update_does_not_depend_on_the_rows_of_an_episode(played, monkeypatch, name, tokens):
    """Where the contexts of the turns are the same, loss and gradients are; in any micro-batches."""
    policy, episodes = played
    # A mean over tokens shuffles rows, which are not as many: all in one step there.
    minibatches = 1 if name == "masked sequences" else 2
    options = SURROGATES[name] | dict(minibatches=minibatches)
    expected, metrics = updated(policy, episodes, **options)
    monkeypatch.setattr(batching, "collate", by_turns)
    assert len(by_turns(episodes, 0).ids) == 9 > len(episodes)
    got, by_rows = updated(policy, episodes, max_tokens_per_micro_batch=tokens, **options)
    before = torch.cat([p.detach().flatten() for p in policy.model.parameters()])
    assert (expected - before).abs().max() > 1e-3
    torch.testing.assert_close(got - before, expected - before, rtol=1e-3, atol=1e-6)
    # A turn without an advantage needs no pass where it is a row of its own, and is then not among the tokens of a metric.
    for key in ("policy/loss", "policy/grad_norm", *["policy/clip_fraction"] * ("turn_credit" not in options)):
        assert by_rows[key] == pytest.approx(metrics[key], rel=1e-3, abs=1e-6)


def test_an_update_of_ppo_does_not_depend_on_them_either(played, monkeypatch):
    policy, episodes = played
    after = []
    for cut in (collate, by_turns):
        monkeypatch.setattr(batching, "collate", cut)
        moved, args = (
            copy.deepcopy(policy),
            ppo.Args(loss="gspo", clip_low=0.1, clip_high=0.1, max_grad_norm=1e9, epochs=2),
        )
        critic = Critic(moved)
        parameters = [*moved.model.parameters(), *critic.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        ppo.update(args, moved, critic, optimizer, None, episodes, np.random.default_rng(0))
        after.append(torch.cat([p.detach().flatten() for p in parameters]))
    torch.testing.assert_close(*after, rtol=1e-3, atol=1e-5)


def test_the_ratio_of_a_sequence_by_hand():
    # Log ratios .3 and -.1 in one row and .4 in another of the same episode: .6 / 3 = .2 for both; .5 alone in a third.
    logprobs = torch.tensor([[0.3, -0.1, 9.0], [9.0, 0.4, 0.0], [0.5, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [False, True, False], [True, False, False]])
    sequence = torch.tensor([3, 3, 1]), torch.tensor([0.4, 0.2, 0.0])
    got = sequence_log_ratio(logprobs, torch.zeros(3, 3), mask, *sequence)
    torch.testing.assert_close(got, torch.tensor([[0.2], [0.2], [0.5]]))
    # e^.2 = 1.2214 and e^.5 = 1.6487: above 1.3 is the third alone.
    clipped = is_clipped("gspo", logprobs, torch.zeros(3, 3), mask, 0.3, 0.3, *sequence)
    assert clipped[:, 0].tolist() == [False, False, True]


def test_the_rows_of_an_episode_are_in_one_gradient_step(played):
    _, episodes = played
    batch, args = by_turns(episodes, 0), grpo.Args(loss="gspo", minibatches=3, epochs=4)
    parts = list(shuffle_minibatches(batch, args, np.random.default_rng(0)))
    assert len(parts) == 12
    for epoch in range(4):
        own = parts[3 * epoch : 3 * epoch + 3]
        assert sorted(torch.cat(own).tolist()) == list(range(9))
        owners = [set(batch.trajectory[rows].tolist()) for rows in own]
        assert sum(map(len, owners)) == 4 == len(set.union(*owners))
        assert [count_normalizer(batch, rows, torch.ones(4, dtype=bool), args) for rows in own] == [
            len(some) for some in owners
        ]


@pytest.mark.parametrize("options", [dict(), dict(loss="gspo")])
def test_episodes_of_one_row_are_shuffled_as_rows(played, options):
    _, episodes = played
    batch, args = collate(episodes, 0), grpo.Args(minibatches=2, epochs=2, **options)
    got = torch.cat(list(shuffle_minibatches(batch, args, np.random.default_rng(7)))).tolist()
    rng = np.random.default_rng(7)
    assert got == [*rng.permutation(4).tolist(), *rng.permutation(4).tolist()]
