"""A check that nothing can fail proves nothing: each is shown a mistake that public trainers had."""

import estimator_checks as estimators
import loss_checks as losses
import pytest
import torch

from trainers.algorithms import advantages as advantage
from trainers.algorithms import gae
from trainers.algorithms.losses import aggregate, clipped_policy_loss

CASE = estimators.Episodes(
    turns=(
        (estimators.Turn(values=(0.5, 1.0)), estimators.Turn(values=(1.0,), reward=1.0)),
        (estimators.Turn(values=(0.5,)),),
    ),
    groups=(0, 0),
    gaps=((1, 2, 3), (0, 2)),
)


def test_gae_over_all_tokens():
    def over_everything(rewards, values, mask, turns, groups):
        return gae.gae(rewards, values * mask, torch.ones_like(mask), 0.9, 0.9)[0] * mask

    with pytest.raises(AssertionError, match="observation tokens moved"):
        estimators.check_observations_change_nothing(over_everything, CASE)


def test_a_reward_on_the_last_token_whoever_wrote_it():
    def on_the_last_token(rewards, values, mask, turns, groups):
        moved = torch.zeros_like(rewards)
        moved[:, -1] = rewards.sum(1)
        return gae.returns_to_go(moved * mask, mask)

    with pytest.raises(AssertionError, match="was lost"):
        estimators.check_last_reward_survives(on_the_last_token)


def test_turns_told_by_their_rewards():
    def by_rewards(rewards, values, mask, turns, groups):
        ends = rewards != 0
        numbers = ends.long().flip(1).cumsum(1).flip(1)
        return gae.bi_level_gae(rewards, values, numbers.max() - numbers, mask, 0.5, 0.5, 0.9, 0.5)[0]

    with pytest.raises(AssertionError, match="not treated as a turn"):
        estimators.check_zero_reward_turn_stays_a_turn(by_rewards)


def test_rounding_divided_by_itself():
    def naive(rewards, values, mask, turns, groups):
        returns = rewards.sum(1)
        scaled = (returns - returns.mean()) / (returns.std() + 1e-8)
        return scaled[:, None] * mask

    with pytest.raises(AssertionError, match="equal rewards"):
        estimators.check_equal_rewards_give_zero(naive, 1 / 3)


def test_an_error_in_the_baseline():
    def leave_one_out(rewards, values, mask, turns, groups):
        return advantage.to_tokens(advantage.leave_one_out(rewards.sum(1), groups), mask)

    def ignores_errors(valid=None, **arguments):
        found = leave_one_out(**arguments)
        return found if valid is None else found * valid[:, None]

    case = estimators.Episodes(
        turns=tuple((estimators.Turn(values=(0.0,), reward=r),) for r in (1.0, -9.0, 0.0)), groups=(0,) * 3,
        gaps=((0, 0),) * 3,
    )  # fmt: skip
    with pytest.raises(AssertionError, match="in error moved"):
        estimators.check_errors_are_left_out(ignores_errors, case)


def test_a_mean_over_each_micro_batch():
    def per_part(logprobs, old, advantages, mask, tokens, sequences):
        share = len(mask) / sequences
        return aggregate(clipped_policy_loss(logprobs, old, advantages, 0.2, 0.2), mask, mask.sum()) * share

    with pytest.raises(AssertionError, match="micro-batches of"):
        losses.check_micro_batches_change_nothing(per_part, losses.Data())


def test_a_loss_over_padding():
    def over_padding(logprobs, old, advantages, mask, tokens, sequences):
        return clipped_policy_loss(logprobs, old, advantages, 0.2, 0.2).sum() / tokens

    with pytest.raises(AssertionError, match="layout"):
        losses.check_layout_changes_nothing(over_padding, losses.Data())


def test_a_mean_of_nothing():
    def mean_of_nothing(logprobs, old, advantages, mask, tokens, sequences):
        per_token = clipped_policy_loss(logprobs, old, advantages, 0.2, 0.2) * mask
        return (per_token.sum(1) / mask.sum(1)).sum() / sequences

    with pytest.raises(AssertionError, match="empty rows moved"):
        losses.check_empty_rows_change_nothing(mean_of_nothing)
