"""Sokoban: rules, levels and the task."""

import itertools
import pickle
import random
from collections import deque

import gymnasium
import numpy as np
import pytest

from agent_envs.games import sokoban
from agent_envs.games.boards import canonical_form
from agent_envs.games.sokoban_levels import generate
from agent_envs.games.split import split_of
from agent_envs.tasks.sokoban import SokobanEnv, make_vector
from agent_envs.utils.checker import check_agent_env
from agent_envs.utils.scripts import roll_out

CORRIDOR = "# # # # #\n# P X O #\n# _ _ _ #\n# _ _ _ #\n# # # # #"


def make(board=None, **arguments):
    env = SokobanEnv(**arguments)
    env.reset(seed=0)
    if board:
        env.level = sokoban.read(board)
    return env


def say(*actions):
    return f"<think>x</think><answer>{' || '.join(actions)}</answer>"


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


# -- the game ----------------------------------------------------------------------------------------------------------


def test_a_push_moves_box_and_player():
    level = sokoban.move(sokoban.read(CORRIDOR), "Right")
    assert sokoban.render(level).splitlines()[1] == "# _ P √ #"
    assert level.solved and level.placed == 1


def test_walls_and_second_boxes_stop_a_push():
    level = sokoban.move(sokoban.read(CORRIDOR), "Right")
    assert sokoban.move(level, "Right") == level
    row = "# # # # # #\n# P X X O #\n# O _ _ _ #\n# _ _ _ _ #\n# _ _ _ _ #\n# # # # # #"
    assert sokoban.move(sokoban.read(row), "Right") == sokoban.read(row)
    assert sokoban.move(sokoban.read(row), "Up") == sokoban.read(row)


def test_boxes_are_not_pulled():
    level = sokoban.read("# # # # #\n# _ P X #\n# _ _ _ #\n# _ _ O #\n# # # # #")
    assert sokoban.move(level, "Left").boxes == level.boxes


def test_player_on_a_target_and_box_on_a_target_are_drawn():
    text = "# # # # #\n# S √ X #\n# _ _ _ #\n# _ _ O #\n# # # # #"
    level = sokoban.read(text)
    assert level.targets == {(1, 1), (1, 2), (3, 3)} and level.player == (1, 1) and level.placed == 1
    assert sokoban.render(level) == text


def test_a_board_is_found_in_what_a_format_puts_around_it():
    level = sokoban.read(CORRIDOR)
    assert sokoban.read(f"<information>{CORRIDOR}</information>") == level
    assert sokoban.read('[{"content": "' + CORRIDOR.replace("\n", "\\n") + '\\nActions left: 3"}]') == level
    with pytest.raises(ValueError, match="not a square board"):
        sokoban.read("# # #\n# _ #\n# # #")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_levels_are_solvable_in_the_moves_that_they_say(split):
    for seed in range(100):
        level, length = generate(random.Random(seed), 6, 1, (2, 10), split)
        solution = sokoban.solve(level)
        assert 2 <= length <= 10 and len(solution) == length == fewest(level)
        for action in solution:
            assert not level.solved
            level = sokoban.move(level, action)
        assert level.solved


def test_levels_with_several_boxes_are_solvable_too():
    for seed in range(10):
        level, length = generate(random.Random(seed), 7, 2, (4, 14), "train")
        assert len(level.boxes) == len(level.targets) == 2
        assert len(sokoban.solve(level)) == length == fewest(level)


def test_what_cannot_be_solved_has_no_solution():
    cornered = "# # # # #\n# X _ _ #\n# _ P _ #\n# _ _ O #\n# # # # #"
    assert sokoban.solve(sokoban.read(cornered)) is None


def test_lengths_cover_the_range():
    lengths = {generate(random.Random(seed), 6, 1, (2, 10), "train")[1] for seed in range(150)}
    assert lengths == set(range(2, 11))


def test_splits_are_disjoint_up_to_symmetry():
    def keys(split):
        levels = (generate(random.Random(seed), 6, 1, (2, 10), split)[0] for seed in range(100))
        return {canonical_form(sokoban.rows(level)) for level in levels}

    train, validation = keys("train"), keys("validation")
    assert not train & validation
    assert {split_of(key) for key in train} == {"train"} and {split_of(key) for key in validation} == {"validation"}


def test_symmetric_boards_share_a_key():
    rows = ["abc", "def", "ghi"]
    turned = ["gda", "heb", "ifc"]
    assert canonical_form(rows) == canonical_form(turned) == canonical_form([row[::-1] for row in rows])
    assert canonical_form(rows) != canonical_form(["bac", "def", "ghi"])


def test_hopeless_wishes_end_with_an_error():
    with pytest.raises(ValueError, match="found no 5x5 level"):
        generate(random.Random(0), 5, 1, (60, 70), "train")


# -- the task ----------------------------------------------------------------------------------------------------------


def test_gymnasium_and_our_own_checker_have_nothing_to_say():
    check_agent_env(SokobanEnv(), steps=120)


def test_solving_pays_box_and_solution_less_the_moves():
    env = make(CORRIDOR)
    observation, reward, terminated, truncated, info = env.step(say("Right"))
    assert reward == pytest.approx(1 + 10 - 0.1) and terminated is True and truncated is False
    assert info["reward_terms"] == {"box": 1.0, "solved": 10.0, "move": pytest.approx(-0.1), "invalid": 0.0}
    assert info["success"] == 1.0 and "Solved." in observation


def test_an_episode_played_by_hand():
    two = "# # # # # #\n# P X O _ #\n# _ _ _ _ #\n# _ X O _ #\n# _ _ _ _ #\n# # # # # #"
    env = make(two, boxes=2, moves=(1, 10))
    _, reward, terminated, _, info = env.step(say("Right"))  # on the target
    assert reward == pytest.approx(1 - 0.1) and info["box"] == 1.0 and not terminated
    _, reward, terminated, _, info = env.step(say("Right"))  # and off it again
    assert reward == pytest.approx(-1 - 0.1) and info["reward_terms"]["box"] == -1.0 and not terminated
    _, reward, _, _, info = env.step(say("Up", "Up"))  # against the wall: it costs all the same
    assert reward == pytest.approx(-0.2) and info["moves"] == 2.0
    _, reward, _, truncated, _ = env.step("no action at all")
    assert reward == pytest.approx(-0.1) and not truncated
    _, reward, terminated, truncated, _ = env.step(say("Down", "Left"))
    assert reward == pytest.approx(-0.2) and not terminated and truncated is True  # the fifth turn


def test_actions_after_the_solution_are_not_made():
    env = make(CORRIDOR)
    _, reward, terminated, _, info = env.step(say("Right", "Left", "Left"))
    assert reward == pytest.approx(10.9) and terminated and info["moves"] == 1.0 and env.level.solved


def test_too_many_actions_are_an_error_and_nothing_is_done():
    env = make(CORRIDOR)
    before = env.level
    observation, reward, _, truncated, _ = env.step(say(*["Down"] * 6))
    assert reward == pytest.approx(-0.1) and env.level == before and env.budget.left == 10 and not truncated
    assert "5 actions at most, not 6" in observation
    env.step(say(*["Up"] * 5))
    env.step(say(*["Up"] * 3))
    observation, reward, _, truncated, _ = env.step(say(*["Up"] * 3))
    assert (
        "3 actions are more than the 2 that are left" in observation and reward == pytest.approx(-0.1) and not truncated
    )
    _, reward, _, truncated, _ = env.step(say("Up", "Up"))
    assert reward == pytest.approx(-0.2) and truncated is True


@pytest.mark.parametrize("text", ["", say("Jump"), say("up", "Right"), say(""), "<answer>", say("Up") + say("Up")])
def test_what_cannot_be_read_costs_a_tenth_and_changes_nothing(text):
    env = make()
    before = env.level
    _, reward, terminated, truncated, _ = env.step(text)
    assert reward == pytest.approx(-0.1) and not terminated and not truncated and env.level == before


def test_the_board_is_shown_again_after_a_turn_that_could_not_be_read():
    env = make()
    assert env.state_text() in env.step("?")[0]


def test_the_budget_of_actions_truncates():
    env = make(max_turns=9)
    for _ in range(9):
        env.level = sokoban.read(CORRIDOR)
        _, _, _, truncated, _ = env.step(say("Down", "Up"))
        if truncated:
            break
    assert env.budget.left == 0 and len(env.history.turns) == 5


def test_oracle_solves_every_level_and_earns_what_the_rules_say():
    for split, seed in itertools.product(("train", "validation"), range(20)):
        env = SokobanEnv(split=split)
        episode = roll_out(env, SokobanEnv.SCRIPTS["oracle"], seed)
        shortest = env.reset(seed=seed)[1]["shortest"]
        assert episode[-1]["success"] == 1.0
        assert sum(step["reward"] for step in episode) == pytest.approx(11 - 0.1 * shortest)


def test_scripts_rank_as_they_should():
    means = {}
    for name, script in SokobanEnv.SCRIPTS.items():
        means[name] = np.mean([roll_out(SokobanEnv(), script, seed)[-1]["success"] for seed in range(40)])
    assert means["random"] < means["scripted"] < means["oracle"] == 1.0


def test_heuristic_reads_the_text_alone():
    env, other = SokobanEnv(), SokobanEnv()
    script = SokobanEnv.SCRIPTS["scripted"]
    env.reset(seed=3)
    other.reset(seed=4)
    other.first_observation = env.first_observation
    turn = next(script(other, random.Random(0)))
    assert turn == next(script(env, random.Random(0)))


@pytest.mark.parametrize("format", ["tags", "hermes", "react", "openai", "harmony"])
def test_any_format_will_do(format):
    for name in ("scripted", "oracle"):
        episode = roll_out(SokobanEnv(format=format), SokobanEnv.SCRIPTS[name], 5)
        assert all(step["valid"] for step in episode)
    assert episode[-1]["success"] == 1.0


def test_same_seed_same_episode():
    first, second = (make().reset(seed=7) for _ in range(2))
    assert first == second
    assert make().reset(seed=8)[0] != first[0]


def test_pickled_in_the_middle_it_goes_on():
    env = make()
    env.step(say("Up"))
    copy = pickle.loads(pickle.dumps(env))
    for actions in (("Left", "Down"), ("Right",)):
        assert env.step(say(*actions)) == copy.step(say(*actions))


def test_vector_is_as_one_by_one():
    vector, alone = make_vector(num_envs=3), [SokobanEnv() for _ in range(3)]
    observations, _ = vector.reset(seed=11)
    assert list(observations) == [env.reset(seed=11 + i)[0] for i, env in enumerate(alone)]
    for actions in (("Up",), ("Right", "Right"), ("Down", "Left", "Left")):
        said = vector.step([say(*actions)] * 3)
        for i, env in enumerate(alone):
            observation, reward, terminated, truncated, _ = env.step(say(*actions))
            assert (said[0][i], said[1][i], said[2][i], said[3][i]) == (observation, reward, terminated, truncated)


def test_weights_can_be_changed_by_name():
    env = make(CORRIDOR, rewards={"move": 0.0, "solved": 1.0})
    assert env.step(say("Right"))[1] == pytest.approx(2.0)


@pytest.mark.parametrize(
    "arguments",
    [{"split": "test"}, {"size": 4}, {"boxes": 0}, {"moves": (5, 2)}, {"moves": (2, 11)}, {"max_actions": 0}],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ValueError):
        SokobanEnv(**arguments)


def test_unknown_options_and_steps_after_the_end_are_refused():
    env = make(CORRIDOR)
    with pytest.raises(ValueError, match="unknown reset options"):
        env.reset(options={"level": 3})
    env.reset(seed=0)
    env.level = sokoban.read(CORRIDOR)
    env.step(say("Right"))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(say("Right"))
