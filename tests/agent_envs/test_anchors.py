"""The labels of states that GiGPO groups turns by: the same for one point of an episode, whenever and however it is reached."""

import gymnasium
import pytest

from agent_envs.games import frozenlake, sokoban
from agent_envs.games.boards import move_turn
from agent_envs.types import ToolCall, Turn

TASKS = "Bandit", "Countdown", "Calculator", "SQL", "API", "Mixed", "Python", "MiniWiki", "FrozenLake", "Sokoban"


def make(name, **kwargs):
    return gymnasium.make(f"AgentR1/{name}-v0", **kwargs).unwrapped


def take(env, *calls):
    """A turn that makes these calls, given by name and arguments."""
    return env.step(env.format.write(Turn(calls=tuple(ToolCall(name, arguments) for name, arguments in calls))))


@pytest.mark.parametrize("name", TASKS)
def test_all_attempts_share_the_first_state_and_an_unreadable_turn_leaves_it(name):
    small = {"entities": 100, "questions": 20} if name == "MiniWiki" else {}
    first, second = make(name, max_turns=3, **small), make(name, max_turns=3, **small)
    for env in first, second:
        env.reset(seed=4)
    assert first.anchor() is not None
    assert first.anchor() == second.anchor()
    second.step("<nonsense")
    assert second.anchor() == first.anchor()


@pytest.mark.parametrize(
    ("name", "act", "kwargs"),
    [("FrozenLake", frozenlake.ACTIONS, {"slippery": False}), ("Sokoban", sokoban.DIRECTIONS, {})],
)
def test_a_board_has_one_label_whatever_is_left_of_the_budget(name, act, kwargs):
    env = make(name, **kwargs)
    moved = stood = 0
    for seed in range(12):
        for action in act:
            env.reset(seed=seed)
            before, board = env.anchor(), env.state_text().rsplit("\n", 1)[0]
            env.step(env.format.write(move_turn([action])))
            same = env.state_text().rsplit("\n", 1)[0] == board
            assert (env.anchor() == before) == same
            moved, stood = moved + (not same), stood + same
    assert moved > 10 and stood > 10


def test_what_was_learned_counts_and_not_in_which_order_or_how_often():
    one, other = make("Calculator", max_turns=6), make("Calculator", max_turns=6)
    for env in one, other:
        env.reset(seed=0)
    a, b = ("calculate", {"expression": "1 + 1"}), ("calculate", {"expression": "2 * 5"})
    take(one, a)
    take(other, b)
    assert one.anchor() != other.anchor()
    take(one, b)
    take(other, a)
    take(other, a)
    take(other, ("calculate", {"expression": "1 / 0"}))  # an error tells nothing about the task
    assert one.anchor() == other.anchor()


def test_two_changes_of_one_value_leave_two_states():
    def change(*addresses):
        env = make("API")
        env.reset(seed=0)
        customer = next(iter(env.shop.state["customers"]))
        for address in addresses:
            *_, info = take(env, ("change_account_address", {"customer_id": customer, "address": address}))
            assert info["valid"]
        return env

    one, other = "1 High Street, Bath", "2 Low Road, York"
    ended = [change(one, other), change(other, one)]
    assert ended[0].shop.state != ended[1].shop.state
    assert ended[0].anchor() != ended[1].anchor()
    assert ended[0].anchor() == change(one, one, other).anchor()
