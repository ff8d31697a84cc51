"""Our advantage estimators, run through the invariant suite."""

import estimator_checks as checks
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.algorithms import advantages as advantage
from trainers.algorithms import gae
from trainers.algorithms import turn_advantages as credit

GAMMAS = st.sampled_from([0.0, 0.5, 0.95, 1.0])


def of_returns(estimator):
    """An estimator of episode returns, at the episodes' tokens."""

    def estimate(rewards, values, mask, turns, groups, gamma, lam, valid=None):
        returns = advantage.episode_returns(rewards, mask, valid)
        return advantage.to_tokens(estimator(returns, groups, valid=valid), mask)

    return estimate


def anchors_of(turns, first):
    """The number of the turn, but the turns up to ``first`` are one state that the episode comes back to."""
    return [[max(k, first) for k in range(int(own.max(initial=-1)) + 1)] for own in turns.numpy()]


def returns_to_go(rewards, values, mask, turns, groups, gamma, lam, valid=None):
    return gae.returns_to_go(rewards, mask, gamma, valid)


def token_gae(rewards, values, mask, turns, groups, gamma, lam, valid=None):
    return gae.gae(rewards, values, mask, gamma, lam, valid)[0]


def whitened_gae(rewards, values, mask, turns, groups, gamma, lam, valid=None):
    own = mask if valid is None else mask & valid[:, None]
    return advantage.whiten(token_gae(rewards, values, mask, turns, groups, gamma, lam, valid), own)


def bi_level_gae(rewards, values, mask, turns, groups, gamma, lam, valid=None):
    return gae.bi_level_gae(rewards, values, turns, mask, gamma, lam, 0.9, lam, valid)[0]


def turn_level_gae(rewards, values, mask, turns, groups, gamma, lam, valid=None):
    return gae.turn_level_gae(rewards, values, turns, mask, gamma, lam, valid)[0]


def reinforce_plus_plus(rewards, values, mask, turns, groups, gamma, lam, valid=None):
    return advantage.reinforce_plus_plus(rewards, mask, valid=valid)


def reinforce_plus_plus_baseline(rewards, values, mask, turns, groups, gamma, lam, valid=None):
    return advantage.reinforce_plus_plus_baseline(rewards, mask, groups, valid)


def turn_advantage(rewards, values, mask, turns, groups, gamma, lam, valid=None):
    return credit.turn_advantage(rewards, turns, mask, groups, gamma, valid=valid)


def gigpo(rewards, values, mask, turns, groups, gamma, lam, valid=None):
    return credit.gigpo(rewards, turns, mask, groups, anchors_of(turns, 0), gamma, valid=valid)


def gigpo_in_circles(rewards, values, mask, turns, groups, gamma, lam, valid=None):
    return credit.gigpo(rewards, turns, mask, groups, anchors_of(turns, 2), gamma, 0.5, True, valid)


def apart(rewards, values, mask, turns, groups, gamma, lam):
    """GiGPO where no two episodes are ever in the same state."""
    return credit.gigpo(rewards, turns, mask, groups, [[(i, k) for k in range(9)] for i in range(len(mask))], gamma)


BASELINES = {
    "GRPO": of_returns(lambda *a, **k: advantage.group_advantage(*a, scale_by_std=True, **k)),
    "Dr. GRPO": of_returns(advantage.group_advantage),
    "RLOO": of_returns(advantage.leave_one_out),
    "REINFORCE++ baseline": reinforce_plus_plus_baseline,
    "GTPO": turn_advantage,
    "GiGPO": gigpo,
}
ESTIMATORS = BASELINES | {
    "returns to go": returns_to_go,
    "GAE": token_gae,
    "whitened GAE": whitened_gae,
    "bi-level GAE": bi_level_gae,
    "turn-level GAE": turn_level_gae,
    "REINFORCE++": reinforce_plus_plus,
    "GiGPO in circles": gigpo_in_circles,
}
every_estimator = pytest.mark.parametrize("name", ESTIMATORS)


def fixed(name, gamma=0.5, lam=0.5):
    return lambda **arguments: ESTIMATORS[name](**arguments, gamma=gamma, lam=lam)


@every_estimator
@given(case=checks.episodes(), gamma=GAMMAS, lam=GAMMAS)
@settings(max_examples=10, deadline=None)
def test_observations_padding_order_and_episodes_in_error_change_nothing(name, case, gamma, lam):
    estimate = fixed(name, gamma, lam)
    checks.check_observations_change_nothing(estimate, case)
    checks.check_padding_changes_nothing(estimate, case)
    checks.check_order_changes_nothing(estimate, case)
    checks.check_errors_are_left_out(estimate, case)


@every_estimator
def test_rewards_survive_and_empty_episodes_do_no_harm(name):
    checks.check_last_reward_survives(fixed(name))
    checks.check_zero_reward_turn_stays_a_turn(fixed(name))
    checks.check_nothing_sampled(fixed(name))


@pytest.mark.parametrize("reward", [0.0, 0.1, -1 / 3, 1e6])
@pytest.mark.parametrize("name", [*BASELINES, "REINFORCE++"])  # whose rewards come at the end only
def test_equal_rewards_give_zero(name, reward):
    checks.check_equal_rewards_give_zero(fixed(name), reward)


@given(case=checks.episodes())
@settings(max_examples=15, deadline=None)
def test_leave_one_out_is_the_scaled_group_baseline(case):
    checks.check_leave_one_out(fixed("RLOO"), fixed("Dr. GRPO"), case)


@given(case=checks.episodes(), gamma=GAMMAS)
@settings(max_examples=15, deadline=None)
def test_lambda_one_is_monte_carlo(case, gamma):
    checks.check_monte_carlo(fixed("GAE", gamma, 1.0), gamma, case)


@pytest.mark.parametrize(
    ("turns", "trajectory"), [("bi-level GAE", "GAE"), ("GTPO", "GRPO"), ("GiGPO apart", "Dr. GRPO")]
)
@given(case=checks.episodes(min_turns=1, max_turns=1), gamma=GAMMAS, lam=GAMMAS)
@settings(max_examples=15, deadline=None)
def test_one_turn_is_the_trajectory(turns, trajectory, case, gamma, lam):
    estimate = ESTIMATORS.get(turns, apart)
    checks.check_one_turn(lambda **a: estimate(**a, gamma=gamma, lam=lam), fixed(trajectory, gamma, lam), case)
