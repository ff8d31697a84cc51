"""Checks that any trainer can run on its advantage estimators; see docs/invariants.md. Needs torch and hypothesis only.

An estimator under test is called as ``estimate(rewards, values, mask, turns, groups)`` and returns advantages [N, T]:

    rewards  float32 [N, T], each turn's reward at its last sampled token
    values   float32 [N, T], a critic's estimates; what stands outside the mask is junk
    mask     bool [N, T], the tokens that the policy sampled
    turns    int64 [N, T], the number of each sampled token's turn, -1 elsewhere
    groups   int64 [N], attempts at the same question share a number

A check raises an AssertionError that names what was broken.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

Estimate = Callable[..., torch.Tensor]
JUNK = 777.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn: a critic's value at each of its sampled tokens, and what it was paid."""

    values: tuple[float, ...]
    reward: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """``gaps[i][k]``: how many observation tokens stand before turn k of episode i; the last one is behind the end."""

    turns: tuple[tuple[Turn, ...], ...]
    groups: tuple[int, ...]
    gaps: tuple[tuple[int, ...], ...]


@st.composite
def episodes(draw, min_turns: int = 0, max_turns: int = 4) -> Episodes:
    """Any episodes, by default some without any turn, with observations anywhere. All numbers are quarters, exact in fp32."""
    quarters = st.integers(-8, 8).map(lambda n: n / 4)
    turn = st.builds(Turn, values=st.lists(quarters, min_size=1, max_size=3).map(tuple), reward=quarters)
    turns = draw(st.lists(st.lists(turn, min_size=min_turns, max_size=max_turns).map(tuple), min_size=1, max_size=5))
    groups = draw(st.lists(st.integers(0, 2), min_size=len(turns), max_size=len(turns)))
    gaps = tuple(tuple(draw(st.integers(0, 3)) for _ in range(len(own) + 1)) for own in turns)
    return Episodes(turns=tuple(turns), groups=tuple(groups), gaps=gaps)


def lay_out(case: Episodes, *, gaps: bool = True, left: int = 0, right: int = 0) -> dict[str, torch.Tensor]:
    """The arguments of an estimator, with observations or without, padded on either side."""
    rows = []
    for own, spaces in zip(case.turns, case.gaps, strict=True):
        tokens: list[tuple[float, float, bool, int]] = []
        for k, turn in enumerate(own):
            tokens += [(0.0, JUNK, False, -1)] * (spaces[k] * gaps)
            paid = [0.0] * (len(turn.values) - 1) + [turn.reward]
            tokens += [(reward, value, True, k) for reward, value in zip(paid, turn.values, strict=True)]
        rows.append(tokens + [(0.0, JUNK, False, -1)] * (spaces[-1] * gaps))
    width = max(len(row) for row in rows)
    filled = [
        [(0.0, JUNK, False, -1)] * left + row + [(0.0, JUNK, False, -1)] * (width - len(row) + right) for row in rows
    ]
    dtypes = {"rewards": torch.float32, "values": torch.float32, "mask": torch.bool, "turns": torch.int64}
    columns = {
        name: torch.tensor([[token[i] for token in row] for row in filled], dtype=dtype).view(len(rows), -1)
        for i, (name, dtype) in enumerate(dtypes.items())
    }
    return columns | {"groups": torch.tensor(case.groups)}


def own(estimate: Estimate, arguments: dict[str, torch.Tensor]) -> torch.Tensor:
    """The advantages of the policy's own tokens, in order; all others must be exactly zero."""
    advantages = estimate(**arguments)
    assert advantages.isfinite().all(), "an advantage is not finite"
    assert not advantages[~arguments["mask"]].any(), "a token that the policy did not sample has an advantage"
    return advantages[arguments["mask"]]


def check_observations_change_nothing(estimate: Estimate, case: Episodes, atol: float = 1e-5) -> None:
    """Invariant 1: an estimator runs over the policy's own tokens only."""
    with_observations, without = own(estimate, lay_out(case)), own(estimate, lay_out(case, gaps=False))
    message = "inserting observation tokens moved an advantage"
    torch.testing.assert_close(with_observations, without, rtol=0, atol=atol, msg=message)


def check_padding_changes_nothing(estimate: Estimate, case: Episodes, atol: float = 1e-5) -> None:
    """Invariant 3, for estimators: padding left or right moves nothing."""
    plain = own(estimate, lay_out(case))
    for sides in ({"left": 3}, {"right": 3}, {"left": 1, "right": 2}):
        padded = own(estimate, lay_out(case, **sides))
        torch.testing.assert_close(padded, plain, rtol=0, atol=atol, msg=f"padding {sides} moved an advantage")


def check_order_changes_nothing(estimate: Estimate, case: Episodes, atol: float = 1e-5) -> None:
    """The order of the episodes in the batch is nobody's merit."""
    arguments = lay_out(case)
    order = torch.arange(len(case.turns) - 1, -1, -1)
    turned = estimate(**{name: values[order] for name, values in arguments.items()})
    torch.testing.assert_close(turned[order], estimate(**arguments), rtol=0, atol=atol, msg="order moved an advantage")


def check_last_reward_survives(estimate: Estimate) -> None:
    """Invariant 2: the reward of a last turn that an observation follows (an episode that ran out of turns) counts."""
    plain = Turn(values=(0.0, 0.0))
    case = Episodes(
        turns=((plain, Turn(values=(0.0, 0.0), reward=1.0)), (plain, plain)), groups=(0, 0), gaps=((1, 2, 4),) * 2
    )
    arguments = lay_out(case)
    advantages, mask = estimate(**arguments), arguments["mask"]
    better, worse = advantages[0][mask[0]], advantages[1][mask[1]]
    assert better[-1] > worse[-1] + 0.1, "the reward before a trailing observation was lost"


def check_zero_reward_turn_stays_a_turn(estimate: Estimate) -> None:
    """Invariant 2: a reward of exactly zero is worth what a reward of next to nothing is worth."""
    found = []
    for paid in (0.0, 1e-5):
        turns = tuple(Turn(values=(0.5, -0.25, 1.0), reward=reward) for reward in (0.5, paid, 1.0))
        other = tuple(Turn(values=(0.25, 0.5), reward=reward) for reward in (0.0, 1.0, 0.0))
        case = Episodes(turns=(turns, other), groups=(0, 0), gaps=((1, 2, 1, 0),) * 2)
        found.append(own(estimate, lay_out(case)))
    torch.testing.assert_close(*found, rtol=0, atol=1e-3, msg="a turn without reward is not treated as a turn")


def check_equal_rewards_give_zero(estimate: Estimate, reward: float = 0.1) -> None:
    """Invariant 4, for estimators with a baseline of returns: exactly zero where all attempts earn the same, also for
    a group of one; rounding, divided by itself, is not."""
    turns = tuple((Turn(values=(0.0,) * n), Turn(values=(0.0,) * n, reward=reward)) for n in (1, 2, 3, 2, 1, 4, 3, 2))
    for groups in ((0,) * 8, (0, 0, 0, 1, 1, 1, 1, 2), tuple(range(8))):
        case = Episodes(turns=turns, groups=groups, gaps=((1, 1, 1),) * 8)
        assert not own(estimate, lay_out(case)).any(), f"equal rewards in groups {groups} gave an advantage"


def check_nothing_sampled(estimate: Estimate) -> None:
    """Invariant 5: empty completions, beside others and alone."""
    full, empty = (Turn(values=(0.5,), reward=1.0),), ()
    for turns in ((full, empty, full), (empty, empty)):
        case = Episodes(turns=turns, groups=(0,) * len(turns), gaps=tuple((1,) * (len(own) + 1) for own in turns))
        own(estimate, lay_out(case))


def check_errors_are_left_out(estimate: Estimate, case: Episodes, atol: float = 1e-5) -> None:
    """Invariant 5: an episode that ended in error is in nobody's baseline, whatever its rewards. ``estimate`` also takes
    ``valid``, bool [N]; every second episode is in error."""
    arguments = lay_out(case)
    valid = torch.arange(len(case.turns)) % 2 == 0
    arguments["rewards"][~valid[:, None] & arguments["mask"]] = torch.nan
    got = estimate(**arguments, valid=valid)
    assert not got[~valid].any(), "an episode in error has an advantage"
    alone = estimate(**{name: values[valid] for name, values in arguments.items()})
    torch.testing.assert_close(got[valid], alone, rtol=0, atol=atol, msg="an episode in error moved an advantage")


def check_leave_one_out(leave_one_out: Estimate, group_mean: Estimate, case: Episodes, atol: float = 1e-5) -> None:
    """RLOO is G/(G − 1) times the group-mean baseline; both are zero in a group of one."""
    arguments = lay_out(case)
    size = torch.bincount(arguments["groups"]).float()[arguments["groups"]]
    expected = group_mean(**arguments) * (size / (size - 1).clamp(min=1))[:, None]
    torch.testing.assert_close(leave_one_out(**arguments), expected, rtol=0, atol=atol)


def check_monte_carlo(gae_at_lambda_one: Estimate, gamma: float, case: Episodes, atol: float = 1e-4) -> None:
    """With λ = 1, GAE is the discounted return minus the value: token by token, in plain arithmetic."""
    expected = []
    for turns in case.turns:
        tokens = [
            (turn.reward if i == len(turn.values) - 1 else 0.0, value)
            for turn in turns
            for i, value in enumerate(turn.values)
        ]
        for t, (_, value) in enumerate(tokens):
            expected.append(sum(gamma**k * reward for k, (reward, _) in enumerate(tokens[t:])) - value)
    got = own(gae_at_lambda_one, lay_out(case))
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=0, atol=atol)


def check_one_turn(turn_level: Estimate, trajectory_level: Estimate, case: Episodes, atol: float = 1e-4) -> None:
    """With one turn an episode (``episodes(min_turns=1, max_turns=1)``), turn level is trajectory level."""
    arguments = lay_out(case)
    torch.testing.assert_close(own(turn_level, arguments), own(trajectory_level, arguments), rtol=0, atol=atol)
