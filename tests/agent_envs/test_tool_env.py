"""The contract of ToolEnv, on a task of a dozen lines."""

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from agent_envs.rewards import Metric, Reward
from agent_envs.tool_env import ToolEnv
from agent_envs.types import ToolResult, TurnOutcome


class Echo:
    name = "echo"
    description = "says it again"
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}  # noqa: RUF012
    batches = 0

    def execute(self, arguments):
        return self.execute_batch([arguments])[0]

    def execute_batch(self, arguments):
        self.batches += 1
        return [ToolResult(a["text"]) for a in arguments]


class GuessNumber(ToolEnv):
    REWARD = Reward(right=(1.0, Metric("right")))

    def begin(self, options):
        if options:
            raise ValueError("no options here")
        self.number = str(self.np_random.integers(10))
        return "Which digit?", {}

    def evaluate_turn(self, turn, results, done):
        return TurnOutcome({"right": float(turn.answer == self.number)}, {"echoed": [r.text for r in results]})


@pytest.fixture
def game():
    return GuessNumber((Echo(),), max_turns=3, render_mode="ansi")


def test_gymnasium_finds_nothing_wrong(game, recwarn):
    game.spec = None
    check_env(game, skip_render_check=True)
    assert not [w for w in recwarn if "spec" not in str(w.message)]


def test_an_episode(game):
    observation, info = game.reset(seed=0)
    assert observation == "Which digit?" and info == {"instructions": game.system_prompt}
    observation, reward, terminated, truncated, info = game.step("<echo>a</echo><echo>b</echo>")
    assert observation == "<information>a\nb</information>" and info["echoed"] == ["a", "b"]
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["turns"] == 1 and info["calls"] == 2 and info["valid"] is True
    assert game.tools["echo"].batches == 1
    observation, reward, terminated, truncated, info = game.step(f"<answer>{game.number}</answer>")
    assert (observation, reward, terminated, truncated) == ("", 1.0, True, False)
    assert info["reward_terms"] == {"right": 1.0}
    assert game.render().startswith("Which digit?\n<echo>a</echo>")


def test_the_turn_budget_truncates_and_an_answer_in_the_last_turn_terminates(game):
    game.reset(seed=0)
    outcomes = [game.step("nothing")[2:4] for _ in range(3)]
    assert outcomes == [(False, False), (False, False), (False, True)]
    assert all(type(flag) is bool for outcome in outcomes for flag in outcome)
    game.reset(seed=0)
    game.step("nothing"), game.step("nothing")
    assert game.step("<answer>x</answer>")[2:4] == (True, False)


def test_what_a_caller_cannot_take_on_ends_the_episode_and_no_other(game):
    game.reset(seed=0)
    seen = []
    game.fits = lambda observation, context: bool(seen.append(observation)) or len(observation) < 40
    assert game.step("<echo>short</echo>")[2:4] == (False, False)
    assert game.step("<echo>rather long for a caller who has little room</echo>")[2:4] == (False, True)
    assert seen[0] == "<information>short</information>"
    game.reset(seed=0)
    assert game.step("<echo>rather long for a caller who has little room</echo>")[2:4] == (False, False)
    game.fits = lambda observation, context: False
    assert game.step(f"<answer>{game.number}</answer>")[1:4] == (1.0, True, False)


def test_stepping_outside_of_an_episode_is_refused(game):
    with pytest.raises(gymnasium.error.ResetNeeded):
        game.step("<answer>1</answer>")
    game.reset(seed=0)
    game.step("<answer>1</answer>")
    with pytest.raises(gymnasium.error.ResetNeeded):
        game.step("<answer>1</answer>")


def test_refused_options_leave_no_half_begun_episode(game):
    game.reset(seed=0)
    with pytest.raises(ValueError, match="no options here"):
        game.reset(options={"x": 1})
    with pytest.raises(gymnasium.error.ResetNeeded):
        game.step("<answer>1</answer>")


def test_an_action_must_be_text(game):
    game.reset(seed=0)
    for action in (3, None, b"<answer>1</answer>", ["<answer>1</answer>"]):
        with pytest.raises(ValueError, match="text of an assistant turn"):
            game.step(action)


def test_too_many_calls_in_a_turn_are_not_made(game):
    game.reset(seed=0)
    observation, _, _, _, info = game.step("<echo>a</echo>" * 6)
    assert "5 calls at most" in observation and info["valid"] is False and info["calls"] == 0
    assert game.tools["echo"].batches == 0


def test_bad_arguments_are_refused():
    for arguments in ({"max_turns": 0}, {"max_turns": 1, "max_calls": 0}, {"max_turns": 1, "render_mode": "human"}):
        with pytest.raises(ValueError, match="must be"):
            GuessNumber((Echo(),), **arguments)
