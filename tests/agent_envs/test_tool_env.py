"""The contract of ToolEnv, on a task of a dozen lines."""

import gymnasium
import pytest
from broken_envs import Echo

from agent_envs.rewards import Invalid, Metric, Repeat, Reward
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import FunctionTool
from agent_envs.types import ToolCall, Turn, TurnOutcome
from agent_envs.utils.scripts import roll_out, roll_out_many
from agent_envs.vector import ToolVectorEnv


class Counted(Echo):
    """Counts its batches."""

    batches, interchangeable = 0, True

    def execute_batch(self, arguments):
        self.batches += 1
        return super().execute_batch(arguments)


class GuessNumber(ToolEnv):
    REWARD = Reward(right=(1.0, Metric("right")))

    def begin(self, options):
        if options:
            raise ValueError("no options here")
        self.number = str(self.np_random.integers(10))
        return "Which digit?", {}

    def evaluate_turn(self, turn, results, done):
        return TurnOutcome({"right": float(turn.answer == self.number)}, {"echoed": [r.text for r in results]})


class NumberedGuess(GuessNumber):
    def begin(self, options):
        return super().begin({})


@pytest.fixture
def game():
    return GuessNumber((Counted(),), max_turns=3, render_mode="ansi")


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


@pytest.mark.parametrize("seed", ["x", 1.5, [3], -5])
def test_a_seed_is_a_number(game, seed):
    """A negative one of validation would be one of training."""
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got "):
        game.reset(seed=seed)


class Breaks(Echo):
    def execute_batch(self, arguments):
        raise ConnectionError("away")


def test_a_script_is_not_told_of_a_tool_failure_that_ends_its_episode():
    def trusting(env, rng):
        yield Turn(answer=(yield Turn(calls=(ToolCall("echo", {"text": "a"}),))).split("no such words")[1])

    for episode in (
        roll_out(GuessNumber((Breaks(),)), trusting, seed=0),
        *roll_out_many(ToolVectorEnv(lambda: NumberedGuess((Breaks(),)), 2), [0, 1], trusting),
    ):
        (turn,) = episode
        assert turn["tool_faults"] == 1 and not turn["terminated"]


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
    def ends_with_a_refusal():
        with pytest.raises(gymnasium.error.ResetNeeded):
            game.step("<answer>1</answer>")

    ends_with_a_refusal()
    game.reset(seed=0)
    game.step("<answer>1</answer>")
    ends_with_a_refusal()
    game.reset(seed=0)
    with pytest.raises(ValueError, match="no options here"):
        game.reset(options={"x": 1})
    ends_with_a_refusal()  # refused options leave no half-begun episode


def test_what_is_no_text_and_too_many_calls_in_a_turn_are_not_made(game):
    game.reset(seed=0)
    for action in (3, None, b"<answer>1</answer>", ["<answer>1</answer>"]):
        with pytest.raises(ValueError, match="text of an assistant turn"):
            game.step(action)
    observation, _, _, _, info = game.step("<echo>a</echo>" * 6)
    assert "5 calls at most" in observation and info["valid"] is False and info["calls"] == 0
    assert game.tools["echo"].batches == 0


def test_a_call_that_a_tool_failure_lost_was_not_made_and_is_no_invalid_turn():
    working = [False, True, True, True, True]

    def look(text: str) -> str:
        """looks."""
        if not working.pop(0):
            raise OSError("out of order")
        return text

    rewards = {"repeat": (-0.25, Repeat()), "invalid": (-0.5, Invalid())}
    env = GuessNumber((FunctionTool(look),), rewards=rewards)
    env.reset(seed=0)
    steps = [env.step(f"<look>{text}</look>")[4] for text in "aaaA"]  # case counts
    assert [info["reward_terms"]["repeat"] for info in steps] == [0.0, 0.0, -0.25, 0.0]
    assert [info["reward_terms"]["invalid"] for info in steps] == [0.0, 0.0, 0.0, 0.0]
    assert [info["tool_faults"] for info in steps] == [1, 0, 0, 0]
    env.reset(seed=0)
    assert env.step("<look>a</look>")[4]["reward_terms"]["repeat"] == 0.0  # in this episode it is new
