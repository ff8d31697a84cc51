"""ToolEnv: a Gymnasium environment whose actions are the turns of a language model.

A `Tool` says what happened; the environment says what it means: it parses the turn, has the tools run, moves the
state, gives the rewards and ends the episode (Agent-R1, arXiv 2511.14460, section 3).
"""

from typing import Any

import gymnasium

from agent_envs.formats import SearchTags
from agent_envs.spaces import AnyText
from agent_envs.tools import Tool, run_calls
from agent_envs.types import History, ToolCall, ToolResult, Turn

Step = tuple[str, float, bool, bool, dict[str, Any]]


class ToolEnv(gymnasium.Env[str, str]):
    """One conversation: ``step(text)`` takes an assistant turn and returns what comes back.

    A subclass is a task. It says how an episode starts (`begin`) and what each turn is worth (`judge`).

    ``step`` is made of two halves, `parse` and `resolve`, so that a vector of environments can run the calls of all of
    them in one batch in between.

    Args:
        tools: what the agent may call.
        max_turns: after this many turns without an answer the episode is truncated.
        max_calls: a turn with more calls is invalid; without a bound, one turn could search for everything.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(self, tools: tuple[Tool, ...], max_turns: int, max_calls: int = 5, render_mode: str | None = None):
        if max_turns < 1 or max_calls < 1:
            raise ValueError(f"max_turns and max_calls must be at least 1, got {max_turns} and {max_calls}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode must be None or 'ansi', got {render_mode!r}")
        self.tools = {tool.name: tool for tool in tools}
        self.format = SearchTags(tools)
        self.max_turns, self.max_calls, self.render_mode = max_turns, max_calls, render_mode
        phrases = tuple(f"<{name}>the first town</{name}>" for name in (*self.tools, "answer"))
        self.action_space = AnyText(phrases=phrases)
        self.observation_space = AnyText()
        self._running = False

    # -- what a task defines ---------------------------------------------------------------------------------------

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Start an episode: the first observation and its info. Randomness comes from ``self.np_random`` alone."""
        raise NotImplementedError

    def judge(self, turn: Turn, results: list[ToolResult], done: bool) -> tuple[dict[str, float], dict[str, Any]]:
        """The reward terms of a turn and what to add to its info. ``done``: the episode ends with this turn."""
        raise NotImplementedError

    # -- Gymnasium -------------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._running = False  # stays so where begin() refuses the options
        self.history = History()
        observation, info = self.begin(options or {})
        self._transcript = [observation]
        self._running = True
        return observation, info

    def step(self, action: str) -> Step:
        turn = self.parse(action)
        return self.resolve(action, turn, run_calls(self.tools, list(turn.calls)))

    def parse(self, action: str) -> Turn:
        """First half of a step: what the agent wants. Changes nothing."""
        if not self._running:
            raise gymnasium.error.ResetNeeded("the episode has ended, or has not begun: call reset() first")
        if not isinstance(action, str):
            raise ValueError(f"an action is the text of an assistant turn, got {type(action).__name__}")
        turn = self.format.parse(action)
        if len(turn.calls) > self.max_calls:
            return Turn(error=f"A turn may hold {self.max_calls} calls at most, this one has {len(turn.calls)}.")
        return turn

    def resolve(self, action: str, turn: Turn, results: list[ToolResult]) -> Step:
        """Second half of a step: what that means for state and reward, given the results of ``turn.calls``."""
        terminated = turn.answer is not None
        truncated = not terminated and len(self.history.turns) + 1 >= self.max_turns
        terms, extra = self.judge(turn, results, terminated or truncated)
        self.history.turns.append(turn)
        self.history.calls.extend(turn.calls)
        self._running = not (terminated or truncated)
        observation = "" if terminated else self._observe(turn, results)
        self._transcript += [action, observation]
        info = {"reward_terms": terms, "valid": turn.error is None, "turns": len(self.history.turns), **extra}
        info["calls"] = len(self.history.calls)
        return observation, float(sum(terms.values())), terminated, truncated, info

    def render(self) -> str | None:
        """The conversation so far, one paragraph a turn."""
        return "\n".join(self._transcript) if self.render_mode == "ansi" else None

    # -- inside ----------------------------------------------------------------------------------------------------

    def _observe(self, turn: Turn, results: list[ToolResult]) -> str:
        return self.format.render_error(turn.error) if turn.error else self.format.render(results)

    def _is_repeat(self, calls: tuple[ToolCall, ...]) -> bool:
        """Whether all of ``calls`` were made before in this episode, up to case and white space: nothing new can come
        of them."""
        past = {_plain(call) for call in self.history.calls}
        return bool(calls) and all(_plain(call) in past for call in calls)


def _plain(call: ToolCall) -> str:
    return " ".join(f"{call.name} {call.arguments}".casefold().split())
