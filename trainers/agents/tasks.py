"""Tasks as programs get them, and the episodes in which programs solve them."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, Generic, TypeVar

from agent_envs.formats.json_text import function_schema
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import Tool, run_calls
from agent_envs.types import CUT, ToolCall, Turn
from agent_envs.utils.scripts import EpisodeRecorder
from trainers.agents.calls import Call, CallLog
from trainers.agents.task_file import TaskEnv
from trainers.trajectory import Trajectory

Log = TypeVar("Log", bound=CallLog)


class Task(Mapping[str, Any]):
    """A task as a program gets it: ``task["question"]``, ``task.get("hint")`` and its other fields.

    Attributes:
        tools: the environment's tools as functions, each with its ``schema`` for the API.
        base_url, api_key: address and key of the endpoint, for clients other than the one passed to a function.
    """

    def __init__(self, episode: "Episode", base_url: str, api_key: str):
        self.tools = [ToolFunction(tool, episode) for tool in episode.env.tools.values()]
        self._fields = {"tools": self.tools, **_describe(episode.env)}
        self._episode, self.base_url, self.api_key = episode, base_url, api_key

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def reward(self, value: float) -> None:
        """Add a reward to the latest call."""
        self._episode.reward(value)

    def described(self) -> dict[str, Any]:
        """The task as JSON, with the schemas of the environment's tools, if it has any."""
        return self._fields | ({"tools": [tool.schema for tool in self.tools]} if self.tools else {})


def _describe(env: ToolEnv) -> dict[str, Any]:
    """The fields that a program gets: all of a task from a user's file, but no gold answers of an environment."""
    if isinstance(env, TaskEnv):
        return dict(env.task)
    return {"question": env.first_observation, "instructions": env.instructions}


class ToolFunction:
    """A tool of the environment as a function of its arguments that returns text."""

    def __init__(self, tool: Tool, episode: "Episode"):
        self.name = self.__name__ = tool.name
        self.__doc__ = tool.description
        self.schema = function_schema(tool)
        self._episode, self._names = episode, list(tool.parameters.get("properties", {}))

    def __call__(self, /, *values: Any, **arguments: Any) -> str:
        if len(values) > len(self._names):
            raise TypeError(f"{self.name} takes {len(self._names)} arguments, got {len(values)}")
        return self._episode.call_tool(self.name, dict(zip(self._names, values, strict=False)) | arguments)


_ONE_AT_A_TIME = Lock()  # for tools that compute, since those of several environments share an index


class Episode(Generic[Log]):
    """An episode of a program in an environment.

    Attributes:
        running, waiting, since: whether the program runs, how many of its calls wait, and when it began or its latest call, of
            the policy or a tool, ended.
        ended: the trajectory is complete.
        submit: function that has a call answered.
        cancel: function that ends the program, as far as possible.
    """

    def __init__(self, number: int, env: ToolEnv, recorder: EpisodeRecorder, session: Log):
        self.number, self.env, self.session = number, env, session
        self.running, self.waiting, self.since, self.ended = False, 0, 0.0, False
        self._recorder, self._done, self._lock = recorder, False, Lock()
        self.submit: Callable[[Call], None]
        self.cancel: Callable[[], None] = lambda: None
        session.before_turn = env.anchor

    @property
    def trajectory(self) -> Trajectory:
        """Trajectory of the episode."""
        return self.session.trajectory

    def reward(self, value: float) -> None:
        """Add a reward to the latest call. Raises ValueError if it is not a finite number."""
        if not math.isfinite(value):
            raise ValueError(f"a reward must be a finite number, got {value!r}")
        if not self.ended:
            self.session.reward(float(value), {"program": float(value)})

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool as a turn of the environment; return its text. If the episode needs the last turn for an answer, the text
        states that instead. Raises LookupError if there is no such tool."""
        env = self.env
        if name not in env.tools:
            raise LookupError(f"there is no tool {name!r}; there are: {', '.join(env.tools)}")
        with self._lock, self._active():
            if self.ended or self._done:
                return "The episode has ended."
            most = math.inf if env.max_total_calls is None else env.max_total_calls
            if (env.answers and len(env.history.turns) >= env.active_env.max_turns - 1) or len(
                env.history.calls
            ) >= most:
                return "No call is left: give the answer."
            self._step(Turn(calls=(ToolCall(name, dict(arguments)),)))
            return "The episode has ended." if self.ended else "\n".join(env.feedback)

    @contextmanager
    def _active(self) -> Iterator[None]:
        """The program is at work before and after a call of a tool."""
        self.since = time.monotonic()
        try:
            yield
        finally:
            self.since = time.monotonic()

    def finish(self, result: Any, score: Callable[..., Any] | None) -> None:
        """End with what the program returned. Raises ValueError or TypeError if that is no valid result."""
        with self._lock:
            if self.ended:
                return
            if isinstance(self.env, TaskEnv):
                self.env.take_result(_some(result), score)
                self._step(Turn(answer="scored"))
            elif self.env.answers and not isinstance(_some(result), str | int | float):
                raise TypeError(f"the environment scores an answer that is text, got {result!r:.100}")
            elif self.env.answers and not self._done and str(result).strip():
                self._step(Turn(answer=str(result).strip()))
            self._end()

    def fail(self, problem: str) -> None:
        """End without a result. The episode has failed or, if a call went beyond a limit of calls or tokens and no tool hangs,
        is cut."""
        has_lock = self._lock.acquire(timeout=1)  # False if a tool hangs
        try:
            if not self.ended:
                self.trajectory.failed |= not (self.session.refused and has_lock)
                self.trajectory.messages.append({"role": "error", "content": problem})
                self._end(has_lock)
        finally:
            if has_lock:
                self._lock.release()
            self.cancel()

    def _end(self, may_step: bool = True) -> None:
        if not self._done and may_step:
            self.env.fits = lambda *_: False
            self._step(CUT)  # costs nothing, and is scored
        trajectory, session, metric = self.trajectory, self.session, self.env.PRIMARY_METRIC
        trajectory.truncated |= not self._done
        trajectory.failed |= bool(trajectory.tool_faults)
        trajectory.info = {metric: 0.0, **trajectory.info, "rows": session.rows, "edits": session.edits}
        trajectory.score = float(trajectory.info[metric])
        self.env.fits = None
        self.ended = True

    def _step(self, turn: Turn) -> None:
        env, trajectory = self.env, self.trajectory
        tools = [(env.tools, call) for call in turn.calls]
        if not turn.calls or any(getattr(env.tools[call.name], "io_bound", False) for call in turn.calls):
            results = run_calls(tools)
        else:
            with _ONE_AT_A_TIME:
                results = run_calls(tools)
        if self.ended:  # the tool took too long, and its environment may be in another episode by now
            return
        _, reward, terminated, truncated, info = env.resolve("", turn, results)
        self._done, trajectory.truncated = terminated or truncated, truncated
        trajectory.tool_faults += int(info["tool_faults"])
        trajectory.info = {name: value for name, value in info.items() if not isinstance(value, dict)}
        terms = {name: float(value) for name, value in info["reward_terms"].items()}
        text = {"text": "\n".join(env.feedback) if turn.calls else ""}
        self.session.reward(float(reward), terms, self._recorder.record_turn() | text)


def _some(result: Any) -> Any:
    if result is None:
        raise ValueError("the program gave no answer: it returned None, or printed nothing")
    return result
