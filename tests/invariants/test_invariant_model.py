"""The way from episodes to a gradient, through a real model and the policy that the trainers use."""

import loss_checks as checks
import pytest
import torch
from ranks import make_episodes
from torch.nn.functional import pad

from trainers.algorithms.advantages import group_advantage
from trainers.algorithms.losses import aggregate, clipped_policy_loss, gspo_loss, sequence_mean
from trainers.models.micro_batches import split_rows
from trainers.models.policy import Policy
from trainers.tiny import model as tiny
from trainers.trajectory import Batch, collate


@pytest.fixture(scope="module")
def policy():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = tiny.make_tokenizer(["the town by the river"])
    return Policy(tiny.make_model(len(tokenizer), hidden_size=16, layers=2, heads=2), tokenizer)


def widened(batch: Batch, extra: int, pad_id: int) -> Batch:
    fill = {"ids": pad_id, "mask": False, "logprobs": 0.0, "rewards": 0.0, "turns": -1}
    wide = {name: pad(getattr(batch, name), (0, extra), value=value) for name, value in fill.items()}
    return Batch(lengths=batch.lengths, trajectory=batch.trajectory, **wide)


def token_mean(logprobs, part, advantages, tokens, sequences):
    return aggregate(clipped_policy_loss(logprobs, part.logprobs, advantages, 0.2, 0.28), part.mask, tokens)


def gspo(logprobs, part, advantages, tokens, sequences):
    per_token = gspo_loss(logprobs, logprobs.detach() - 0.01, advantages, part.mask, 0.1, 0.1)
    return sequence_mean(per_token, part.mask, sequences)


def gradient_of(policy, episodes, loss, pad_id, extra=0, limit=10_000):
    batch = collate(episodes, pad_id)
    returns = torch.tensor([episode.episode_return for episode in episodes])
    advantages = group_advantage(returns, torch.tensor([episode.group for episode in episodes]))
    tokens, sequences = int(batch.mask.sum()), len(batch.ids)
    policy.model.zero_grad()
    total = torch.zeros(())
    for part in (batch[rows] for rows in split_rows(batch, limit)):
        part = widened(part, extra, pad_id)
        logprobs, _ = policy.logprobs(part)
        share = loss(logprobs, part, advantages[part.trajectory][:, None].expand_as(logprobs), tokens, sequences)
        share.backward()
        total += share.detach()
    return total, torch.cat([p.grad.flatten() for p in policy.model.parameters()])


@pytest.mark.parametrize("loss", [token_mean, gspo])
def test_padding_and_micro_batches_change_nothing(policy, loss):
    """Pad id equal to eos id included; a limit of one token makes every row a micro-batch."""
    episodes = make_episodes()
    pad_ids = (policy.eos_id, policy.pad_id, 3)
    checks.check_model_pass_changes_nothing(
        lambda **how: gradient_of(policy, episodes, loss, **how), pad_ids, (10_000, 1, 12, 40)
    )


def test_it_makes_no_difference_that_all_episodes_were_truncated(policy):
    ended, truncated = make_episodes(), make_episodes()
    for episode in truncated:
        episode.truncated = True
    expected, got = (gradient_of(policy, episodes, token_mean, policy.pad_id) for episodes in (ended, truncated))
    assert torch.equal(got[1], expected[1])
    assert got[1].any()
