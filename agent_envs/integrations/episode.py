"""One conversation with an environment, in the terms of chat models: messages, text, tools as JSON schemas.

- The model sees only `Episode.start` and `Reply.text`: no rewards, metrics or gold answers.
- With the same seed and turns, an `Episode` behaves as the environment of ``gymnasium.make``. ``start(seed)`` asks the same
  question in any process; ``attempt`` varies the randomness after the start, as on slippery ice.
- No turn raises: a malformed turn gets a reply with the reason.
- `Episode.step` takes text in the format of the environment. With ``native=True``, `Episode.call` takes calls of the functions
  in `Episode.tools`, and `Reply.results` go back as tool messages. The final answer is a call of the function ``answer``.
"""

import asyncio
import json
import math
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from agent_envs.formats.blocks import find_end
from agent_envs.formats.json_text import function_schema
from agent_envs.integrations import hosting
from agent_envs.judge import judge_together
from agent_envs.tool_env import StepResult, ToolEnv
from agent_envs.tools import run_calls

Message = dict[str, Any]
T = TypeVar("T")
OUTAGE_MINUTES = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The environment's reply to a turn.

    Attributes:
        text: the next observation; empty after a final answer.
        reward: reward of this turn.
        terminated, truncated: the episode is over.
        metrics: numbers for logs: the task's, ``reward/<term>``, ``turns``, ``calls``, ``tool_faults``, and ``score``, the task's
            own measure, at the end of the episode.
        results: the observation without the tags of a format: one text for each call of the turn, in order, or a single text with
            the turn's error; empty after a final answer.
        context: messages that replace everything after the system prompt; None if the conversation only grows.
    """

    text: str
    reward: float
    terminated: bool
    truncated: bool
    metrics: dict[str, float] = field(default_factory=dict)
    results: tuple[str, ...] = ()
    context: list[Message] | None = None

    @property
    def done(self) -> bool:
        """The episode is over."""
        return self.terminated or self.truncated


class Episode:
    """One conversation at a time with an environment.

    ``id`` and ``env_kwargs`` are passed to `agent_envs.integrations.hosting.make`. With ``native`` the agent acts by function
    calls.

    Attributes:
        env: the environment, for what is not in a `Reply`, such as ``env.question``.
        rewards: rewards of the turns so far.
        metrics: the latest value of each of `Reply.metrics`; for ``reward/<term>`` and ``tool_faults``, the sum over the episode.
        done: no episode is running.
        info: info of the reset; not for the agent.

    Raises:
        ValueError: for ``instructions_in_observation``; with ``native`` for a format or a mixture, whose tools differ by episode.
    """

    def __init__(self, id: str, *, native: bool = False, **env_kwargs: Any):
        if env_kwargs.get("instructions_in_observation"):
            raise ValueError("an Episode has a system message: leave out instructions_in_observation")
        native = native or env_kwargs.get("format") == "native"
        if native and env_kwargs.setdefault("format", "native") != "native":
            raise ValueError("native=True leaves the format to the chat template or the API: leave out format")
        self.env: ToolEnv = hosting.make(id, **env_kwargs)
        self.native, self.done = native, True
        self.info: dict[str, Any] = {}
        self.rewards: list[float] = []
        self.metrics: dict[str, float] = {}
        if native and self.env not in self.env.members.values():  # a mixture
            raise ValueError(f"{id} has other tools in each episode, which native calls cannot follow; take one task")

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Schemas of the tools for chat APIs; with ``native``, also of ``answer``."""
        return self.env.format.schemas() or [function_schema(tool) for tool in self.env.tools.values()]

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings at which a sampler must end a turn; they stay in the turn."""
        return self.env.stop

    @property
    def max_turns(self) -> int:
        """Turns after which the episode is truncated."""
        return self.env.max_turns

    def start(
        self, seed: int | None = None, *, attempt: int | None = None, options: Mapping[str, Any] | None = None
    ) -> list[Message]:
        """Begin an episode; return the system message and the user message.

        ``seed`` selects the question. ``attempt`` seeds the randomness after the start, in tasks that have any. ``options`` are
        those of ``reset``, such as ``{"question": 7}``.
        """
        if attempt is not None and not isinstance(attempt, int | np.integer):
            raise ValueError(f"attempt must be an integer, got {attempt!r}")
        given = dict(options or {})
        if attempt is not None and self.env.TAKES_NOISE_SEED:
            given["noise_seed"] = attempt
        observation, info = self.env.reset(seed=seed, options=given)
        self.rewards, self.metrics, self.done, self.info = [], {}, False, info
        return [{"role": "system", "content": info["instructions"]}, {"role": "user", "content": observation}]

    def step(self, text: str, *, cut: bool = False) -> Reply:
        """Take a turn that the agent wrote; ``cut`` is that of `ToolEnv.step`. Raises gymnasium.error.ResetNeeded if no episode
        is running."""
        return self._reply(self.env.step(text, cut=True) if cut else self.env.step(text))

    def call(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> Reply:
        """Take a turn of function calls, (name, arguments) each, which run together. A turn without calls is malformed."""
        if not self.native:
            raise ValueError("call() is for an Episode made with native=True; step() takes text")
        functions = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls]
        return self.step(_write_calls([{"function": function} for function in functions]))

    def end_turn(self, text: str, *, cut: bool = False) -> tuple[str, bool]:
        """End a text turn from a chat API as a sampler with `stop` would; return it, and whether it is cut.

        The turn ends with the first string of `stop` outside of thoughts, even if the API continued. A stop string that the API
        left out is appended. ``cut``: the API reached its length limit.
        """
        if (end := find_end(text, self.stop)) is not None:
            return text[:end], False
        if cut or not self.env.parse(text).error:
            return text, cut
        return next((text + stop for stop in self.stop if not self.env.parse(text + stop).error), text), False

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _reply(self, stepped: StepResult) -> Reply:
        observation, reward, terminated, truncated, info = stepped
        self.rewards.append(reward)
        self.done = terminated or truncated
        metrics = {name: float(value) for name, value in info.items() if isinstance(value, int | float | np.number)}
        metrics |= {f"reward/{name}": value for name, value in info["reward_terms"].items()}
        metrics.pop("score", None)  # some tasks report a measure of this name in every turn
        if self.done:
            metrics["score"] = float(info.get(self.env.PRIMARY_METRIC, 0.0))
        summed = [name for name in metrics if name == "tool_faults" or name.startswith("reward/")]
        sums = {name: self.metrics.get(name, 0.0) + metrics[name] for name in summed}
        self.metrics = {**self.metrics, **metrics, **sums}
        return Reply(
            text=observation, reward=reward, terminated=terminated, truncated=truncated, metrics=metrics,
            results=tuple(self.env.feedback), context=info.get("context"),
        )  # fmt: skip


def make_in_split(id: str, split: str, /, **env_kwargs: Any) -> Episode:
    """Make the `Episode` for a question of a dataset, in the question's own split ("" if none was named)."""
    return Episode(id, **env_kwargs | ({"split": split} if split else {}))


def draw_questions(id: str, n: int, seed: int, **options: Any) -> Iterator[tuple[int, str, list[Message]]]:
    """Draw ``n`` questions for a dataset, each as its seed, its split ("" if none was named) and its messages."""
    if n < 1:
        raise ValueError(f"a dataset needs at least 1 question, got {n}")
    episode, split = Episode(id, **options), options.get("split", "")
    for chosen in np.random.default_rng(seed).integers(2**31, size=n).tolist():
        yield chosen, split, episode.start(chosen)


def check_question(messages: Sequence[Message], prompt: Sequence[Mapping[str, Any]]) -> None:
    """Raise a ValueError if a row of a dataset has other messages than the environment gives for its seed."""
    if list(messages) != [{"role": message["role"], "content": message["content"]} for message in prompt]:
        raise ValueError("the dataset has other questions than the environment: give both the same arguments")


def raise_on_tool_failure(reply: Reply, library: str) -> None:
    """Raise a RuntimeError after a tool failure, for libraries that cannot leave an episode out."""
    if reply.metrics["tool_faults"]:
        broken = f"a tool broke, so the return says nothing about the policy: {'; '.join(reply.results)[:200]}"
        raise RuntimeError(
            f"{broken}. {library} would learn from it; continue from the last checkpoint when the tool works"
        )


async def retry_on_tool_failure(run: Callable[[], Awaitable[T]], episode: Episode) -> T:
    """Run an episode, and again after pauses of 1, 2, 4 … 60 s, until no tool fails in it; return the last result of ``run``.
    Raises RuntimeError if a tool fails in every run for ``OUTAGE_MINUTES``."""
    pause, end = 1.0, math.inf
    while True:
        result = await run()
        if not episode.metrics.get("tool_faults"):
            return result
        end = min(end, time.monotonic() + OUTAGE_MINUTES * 60)
        if time.monotonic() >= end:
            raise RuntimeError(f"a tool broke in every run of an episode for {OUTAGE_MINUTES:g} minutes")
        print(f"Warning: a tool broke in an episode: it is run again in {pause:.3g} s", file=sys.stderr, flush=True)
        await asyncio.sleep(pause)
        pause = min(2 * pause, 60.0)


def take_message(episode: Episode, message: Mapping[str, Any], *, cut: bool = False) -> tuple[Reply, list[Message]]:
    """Take the turn in an assistant message of a chat API: its calls if the episode is native, else its content.

    ``cut``: the message reached its length limit, so it is no action.

    Returns:
        The reply, and the messages that answer the turn: a result for each call, or one message from the user.
    """
    said = message.get("content") or ""
    if cut and not said and (thought := message.get("reasoning_content") or message.get("reasoning")):
        said = f"<think>\n{thought}"  # the cut is inside the thought
    if not episode.native:
        reply = episode.step(said, cut=cut)
        return reply, [{"role": "user", "content": reply.text}]
    requested = message.get("tool_calls") or []
    made = _write_calls([{"function": call.get("function")} for call in requested], said or None if cut else None)
    reply = episode.step(said if cut and not requested else made, cut=cut)
    if not requested:
        return reply, [{"role": "user", "content": text} for text in reply.results]
    # A turn that was refused as a whole has one result, which every call gets.
    results = reply.results if len(reply.results) == len(requested) else reply.results[:1] * len(requested)
    pairs = zip(requested, results, strict=False)  # a final answer has none
    return reply, [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": text}
        for call, text in pairs
    ]


def step_all(episodes: Sequence[Episode], texts: Sequence[str], cut: Collection[int] = ()) -> list[Reply]:
    """Step many episodes at once, and run their tool calls together.

    ``cut``: the indices of the episodes whose turn was cut.
    """
    numbered = enumerate(zip(episodes, texts, strict=True))
    turns = [episode.env.parse(text, number in cut) for number, (episode, text) in numbered]
    pairs = zip(episodes, turns, strict=True)
    results = iter(run_calls([(episode.env.tools, call) for episode, turn in pairs for call in turn.calls]))
    judge_together((episode.env, turn) for episode, turn in zip(episodes, turns, strict=True))
    return [
        episode._reply(episode.env.resolve(text, turn, [next(results) for _ in turn.calls]))
        for episode, text, turn in zip(episodes, texts, turns, strict=True)
    ]


def _write_calls(calls: list[dict[str, Any]], content: str | None = None) -> str:
    """Write calls as an assistant message of the format "native", which checks them."""
    return json.dumps({"role": "assistant", "content": content, "tool_calls": calls}, ensure_ascii=False)
