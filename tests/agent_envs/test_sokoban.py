"""Sokoban: rules, levels and the task."""

import random
from collections import deque

import gymnasium
import pytest

from agent_envs.games import sokoban
from agent_envs.games.boards import canonical_form, move_turn
from agent_envs.generators.instances import split_of
from agent_envs.tasks.sokoban import SokobanEnv
from agent_envs.types import Turn

CORRIDOR = "# # # # #\n# P X O #\n# _ _ _ #\n# _ _ _ #\n# # # # #"


def make(board=None, **arguments):
    env = SokobanEnv(**arguments)
    env.reset(seed=0)
    if board:
        env.level = sokoban.read(board)
    return env


def fewest(level):
    """Moves to a solution by plain search over all positions: slow, and nothing to go wrong."""
    queue, seen = deque([(level, 0)]), {level}
    while queue:
        position, moves = queue.popleft()
        if position.solved:
            return moves
        for action in sokoban.DIRECTIONS:
            following = sokoban.move(position, action)
            if following not in seen:
                seen.add(following)
                queue.append((following, moves + 1))
    return None


def test_a_push_moves_box_and_player():
    level = sokoban.move(sokoban.read(CORRIDOR), "Right")
    assert sokoban.render(level).splitlines()[1] == "# _ P √ #"
    assert level.solved and level.placed == 1


def test_walls_and_second_boxes_stop_a_push_and_boxes_are_not_pulled():
    level = sokoban.move(sokoban.read(CORRIDOR), "Right")
    assert sokoban.move(level, "Right") == level
    row = sokoban.read("# # # # # #\n# P X X O #\n# O _ _ _ #\n# _ _ _ _ #\n# _ _ _ _ #\n# # # # # #")
    assert sokoban.move(row, "Right") == row == sokoban.move(row, "Up")
    level = sokoban.read("# # # # #\n# _ P X #\n# _ _ _ #\n# _ _ O #\n# # # # #")
    assert sokoban.move(level, "Left").boxes == level.boxes


def test_what_is_no_board_is_refused():
    with pytest.raises(ValueError, match="not a square board"):
        sokoban.read("# # #\n# _ #\n# # #")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_levels_are_solvable_in_the_moves_that_they_say(split):
    lengths = set()
    for seed in range(150 if split == "train" else 50):
        level, length = sokoban.generate(random.Random(seed), 6, 1, (2, 10), split)
        solution = sokoban.solve(level)
        assert 2 <= length <= 10 and len(solution) == length == fewest(level)
        assert split_of(canonical_form(sokoban.rows(level))) == split
        for action in solution:
            assert not level.solved
            level = sokoban.move(level, action)
        assert level.solved
        lengths.add(length)
    assert split != "train" or lengths == set(range(2, 11))


def test_what_cannot_be_solved_has_no_solution_and_hopeless_wishes_end_with_an_error():
    cornered = "# # # # #\n# X _ _ #\n# _ P _ #\n# _ _ O #\n# # # # #"
    assert sokoban.solve(sokoban.read(cornered)) is None
    with pytest.raises(ValueError, match="found no 5x5 level"):
        sokoban.generate(random.Random(0), 5, 1, (60, 70), "train")


def walk(env, *actions):
    return env.step(f"<think>x</think><answer>{' || '.join(actions)}</answer>")


@pytest.mark.parametrize("more", [(), ("Left", "Left")])  # actions after the solution are not made
def test_solving_pays_box_and_solution_less_the_moves(more):
    env = make(CORRIDOR)
    observation, reward, terminated, truncated, info = walk(env, "Right", *more)
    assert reward == pytest.approx(1 + 10 - 0.1) and terminated is True and truncated is False
    assert info["reward_terms"] == {"box": 1.0, "solved": 10.0, "move": pytest.approx(-0.1), "invalid": 0.0}
    assert info["success"] == info["moves"] == 1.0 and "Solved." in observation and env.level.solved


def test_an_episode_played_by_hand():
    two = "# # # # # #\n# P X O _ #\n# _ _ _ _ #\n# _ X O _ #\n# _ _ _ _ #\n# # # # # #"
    env = make(two, boxes=2, moves=(1, 10))
    _, reward, terminated, _, info = walk(env, "Right")  # on the target
    assert reward == pytest.approx(1 - 0.1) and info["box"] == 1.0 and not terminated
    _, reward, terminated, _, info = walk(env, "Right")  # and off it again
    assert reward == pytest.approx(-1 - 0.1) and info["reward_terms"]["box"] == -1.0 and not terminated
    _, reward, _, _, info = walk(env, "Up", "Up")  # against the wall: it costs all the same
    assert reward == pytest.approx(-0.2) and info["moves"] == 2.0
    _, reward, _, truncated, _ = env.step("no action at all")
    assert reward == pytest.approx(-0.1) and not truncated
    _, reward, terminated, truncated, _ = walk(env, "Down", "Left")
    assert reward == pytest.approx(-0.2) and not terminated and truncated is True  # the fifth turn


@pytest.mark.parametrize("game", ["Sokoban", "FrozenLake"])
def test_all_calls_of_a_turn_share_its_actions(game):
    env = gymnasium.make(f"AgentR1/{game}-v0", actions_per_turn=3, max_calls=2, format="hermes").unwrapped
    env.reset(seed=0)
    two = env.format.write(Turn(calls=(*move_turn(["Up", "Down"]).calls, *move_turn(["Down", "Up"]).calls)))
    for left in (8, 6):  # the next turn may hold as many
        observation, *_ = env.step(two)
        assert "3 actions at most, not 4; this call did nothing" in observation
        assert env.budget.left == left


def test_too_many_actions_are_an_error_and_nothing_is_done():
    env = make(CORRIDOR)
    before = env.level
    observation, reward, _, truncated, _ = walk(env, *["Down"] * 6)
    assert reward == pytest.approx(-0.1) and env.level == before and env.budget.left == 10 and not truncated
    assert "5 actions at most, not 6" in observation
    walk(env, *["Up"] * 5)
    walk(env, *["Up"] * 3)
    observation, reward, _, truncated, _ = walk(env, *["Up"] * 3)
    assert "3 actions are more than the 2 that are left" in observation
    assert reward == pytest.approx(-0.1) and not truncated
    _, reward, _, truncated, _ = walk(env, "Up", "Up")
    assert reward == pytest.approx(-0.2) and truncated is True
