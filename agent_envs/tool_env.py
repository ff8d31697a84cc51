"""ToolEnv: a Gymnasium environment whose actions are the turns of a language model (arXiv 2511.14460, section 3)."""

import hashlib
import inspect
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import gymnasium

from agent_envs.context import Messages, Rewriting, keep_all, make_context
from agent_envs.formats import Format, make_format
from agent_envs.generators.instances import check_integers, check_seed
from agent_envs.rewards import Reward, make_reward
from agent_envs.spaces import AnyText, example_phrases
from agent_envs.token_counter import TokenCounter
from agent_envs.tools import FunctionTool, Tool, run_calls
from agent_envs.tools.schema import compile_parameters
from agent_envs.types import CUT, History, ToolCall, ToolResult, Turn, TurnContext, TurnOutcome
from retrieval_index.printable import encodable, map_texts, printable

if TYPE_CHECKING:
    from agent_envs.data.question import Question

StepResult = tuple[str, float, bool, bool, dict[str, Any]]  # observation, reward, terminated, truncated, info
OWN_ENTRIES = frozenset("context reward_terms valid cut turns calls tool_faults tokens".split())  # of infos
HELD_OUT = 2**31  # added to the seeds of held-out episodes; training draws its seeds below


class ToolEnv(gymnasium.Env[str, str]):
    """One conversation: ``step(text)`` takes an assistant turn and returns the reply.

    A subclass is a task. It defines how an episode starts (`begin`), the outcome of each turn (`evaluate_turn`) and its reward
    (`REWARD`, weighted terms; `PRESETS`, others by name).

    ``step`` calls `parse`, runs the calls, and calls `resolve`. A vector runs the calls of its environments in one batch.

    Args:
        tools: tools of the agent, also plain functions with type hints and a docstring (see `FunctionTool`).
        instructions: the task in a sentence or two. ``info["instructions"]`` at reset adds the syntax of calls.
        format: syntax of turns: "tags", "ragen", "hermes", "react" or "native"; or your own, a subclass of `Format` or
            ``"module:Class"``.
        answers: whether the agent ends the episode with a final answer.
        max_turns: turns after which the episode is truncated.
        max_calls: calls per turn; a turn with more calls is invalid.
        max_total_calls: calls per episode; a turn that would exceed them is invalid.
        max_tokens: tokens of the first observation, turns and replies, after which the episode is truncated. A turn that exceeds
            the remaining tokens is rejected. The system prompt does not count.
        tokenizer: tokenizer for this count: a folder with ``tokenizer.json``, or a hub id; or set ``env.count_tokens``.
        context: what the agent sees of its past, see `agent_envs.context.make_context`. A rewritten context is in
            ``info["context"]``.
        rewards: see `agent_envs.rewards.make_reward`.
        instructions_in_observation: put the system prompt before the first observation; ``info["instructions"]`` is then "".
        render_mode: None or "ansi".
        split: for a task without splits of its own, see `hold_out`.
    """

    action_space: AnyText
    observation_space: AnyText
    first_observation: str
    # The reply to the last turn without the tags of the format: a text per call, or one with the reason of a rejection.
    feedback: list[str]
    results: list[ToolResult]  # of the last turn's calls
    # Set by the trainer for one episode: whether its model can read the next prompt (the observation, or a rewritten context)
    # and still take a turn. False truncates the episode.
    fits: Callable[[str, Messages | None], bool] | None

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012
    REWARD: ClassVar[Reward] = Reward()
    PRESETS: ClassVar[Mapping[str, Reward]] = {}
    PRIMARY_METRIC: ClassVar[str] = "success"  # in [0, 1]: how well the task was done, as of the last turn
    TAKES_NOISE_SEED: ClassVar[bool] = False  # has the reset option "noise_seed": same instance, other random outcomes
    SCRIPTS: ClassVar[Mapping[str, Callable]] = {}  # baselines, see agent_envs.utils.scripts

    questions: "Sequence[Question] | None" = None
    """The fixed list of questions of the split, or None if instances are made from seeds. The trainer treats an
    environment with such a list as a `QAEnv`: naive RAG searches for the questions, and ``task`` scores the answers."""

    def __init__(
        self,
        tools: Sequence[Tool | Callable] = (),
        *,
        instructions: str = "",
        format: str | type[Format] = "tags",
        answers: bool = True,
        max_turns: int = 5,
        max_calls: int = 5,
        max_total_calls: int | None = None,
        max_tokens: int | None = None,
        tokenizer: str | None = None,
        context: str | Rewriting = "append",
        rewards: str | Mapping[str, Any] | Reward | None = None,
        instructions_in_observation: bool = False,
        render_mode: str | None = None,
        split: str = "train",
    ):
        self._seed_offset = _offset_seeds(split)
        optional = {"max_total_calls": max_total_calls, "max_tokens": max_tokens}
        given = {name: value for name, value in optional.items() if value is not None}
        check_integers(max_turns=max_turns, max_calls=max_calls, **given)
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise TypeError(f"render_mode must be None or 'ansi', got {render_mode!r}")  # SB3 then retries without it
        made = [_as_tool(tool) for tool in tools]
        self.tools: dict[str, Tool] = {tool.name: tool for tool in made}
        self.instructions, self.answers = instructions, answers
        self.format = self._own_format = written = make_format(format, made, answers=answers)
        self.reward = make_reward(rewards, self.REWARD, self.PRESETS)
        self.max_turns, self.max_calls, self.max_total_calls = max_turns, max_calls, max_total_calls
        self.max_tokens, self.render_mode = max_tokens, render_mode
        self.instructions_in_observation = instructions_in_observation
        self.count_tokens: Callable[[str], int] | None = TokenCounter(tokenizer) if tokenizer else None
        self.context = make_context(context)
        self.fits = None
        phrases = example_phrases(written.write, made, answers)
        self.action_space, self.observation_space = AnyText(phrases=phrases), AnyText()
        self._running = False
        self._transcript: list[str] = []

    # -- what a task defines ---------------------------------------------------------------------------------------

    def begin(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Start an episode and return the first observation and info. All randomness must come from ``self.np_random``."""
        raise NotImplementedError

    def evaluate_turn(self, turn: Turn, results: list[ToolResult], done: bool) -> TurnOutcome:
        """Evaluate a turn: its metrics, and whether it ends the task.

        Args:
            turn: the parsed turn; ``turn.error`` is set if it was rejected.
            results: the results of ``turn.calls``, in order.
            done: whether the episode ends with this turn in any case (a final answer, or a budget is used up).
        """
        raise NotImplementedError(f"{type(self).__name__} has no evaluate_turn: define it to return a TurnOutcome")

    def state_text(self) -> str:
        """Return the text that the agent is shown again after a failed turn, such as the board of a game."""
        return ""

    def anchor(self) -> Hashable | None:
        """A label of the state before the next turn, equal for rollouts at the same point (GiGPO's groups); None if unknown.

        By default `state_text`, or if that is empty, all results of successful calls, in any order. Do not include budgets.
        """
        learned = tuple(self._learned)  # a copy: another thread may add to it
        return self.state_text() or frozenset(map(_digest, learned))

    def describe_instance(self) -> dict[str, Any]:
        """Describe the running instance from its data, for records and never for the agent.

        Optional keys: ``id``, ``golds`` (accepted answers), ``kind`` (a dict, such as its ``type`` and ``hops``) and
        ``supporting`` (names of what supports the answer).
        """
        return {}

    def describe_source(self) -> str:
        """Describe the origin of the instances, for reports. May begin an episode."""
        return str(self.reset(seed=0)[1].get("source", "generated"))

    @property
    def active_env(self) -> "ToolEnv":
        """This environment; in a mixture, the environment of the current task."""
        return self

    @property
    def members(self) -> Mapping[str, "ToolEnv"]:
        """The environments that episodes are of, by name: this one, or the tasks of a mixture."""
        return {"": self}

    def found_evidence(self) -> list[bool]:
        """Return, for each name in ``supporting``, whether the agent has been shown it so far; [] if that is not known."""
        return []

    def hold_out(self, split: str) -> None:
        """Choose the split of a task without splits of its own: "validation" has seeds that training never draws.

        Raises:
            ValueError: ``split`` is neither "train" nor "validation"; or the task has splits of its own and uses another.
        """
        own = getattr(self, "split", None)
        if own is None:
            self._seed_offset = _offset_seeds(split)
        elif own != split:
            name = type(self).__name__
            raise ValueError(
                f"{name} has splits of its own: make it with split={split!r}; a function that makes it must take split"
            )

    def use_format(self, name: str | None) -> None:
        """Set the format of turns from the next episode on; None restores the one that the environment was made with.

        Raises:
            ValueError: these tools cannot be called in this format.
        """
        self.format = make_format(name, list(self.tools.values()), answers=self.answers) if name else self._own_format

    # -- Gymnasium -------------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode. Returns the first observation and an info with ``instructions``, the system prompt.

        Raises:
            ValueError: the seed is no integer or below 0, an option is unknown, or ``max_tokens`` lacks a tokenizer.
        """
        check_seed(seed)
        super().reset(seed=None if seed is None else seed + self._seed_offset)
        if self.max_tokens is not None and self.count_tokens is None:
            raise ValueError(
                "max_tokens needs something that counts them: give tokenizer=, or set env.unwrapped.count_tokens"
            )
        self._running, self.fits = False, None  # _running stays False if begin() rejects the options
        self.history = History()
        self._metrics: dict[str, float] = {}
        self._made: set[str] = set()  # the calls of earlier turns
        self._learned: set[tuple[str, str]] = set()  # (tool, result) of successful calls
        observation, info = self.begin(options or {})
        self.first_observation, self.tokens = observation, self._count(observation)
        instructions = self.system_prompt
        if self.instructions_in_observation:
            observation, instructions = f"{instructions}\n\n{observation}", ""
        self._messages = [{"role": "user", "content": observation}]
        self._shown, self._transcript = list(self._messages), [observation]
        self._running = True
        return observation, {**info, "instructions": instructions}

    def step(self, action: str, *, cut: bool = False) -> StepResult:
        """Take one assistant turn: observation, reward, terminated, truncated, info.

        Args:
            action: the text of the turn.
            cut: whether sampling reached its limit before the turn ended, so that the turn is no action, whatever it holds.
                The term `Invalid` is 0 if it was cut after an action had begun, in a thought, or at the model's last position.

        Raises:
            gymnasium.error.ResetNeeded: no episode is running.
            ValueError: ``action`` is not a string.
        """
        turn = self.parse(action, cut)
        return self.resolve(action, turn, run_calls([(self.tools, call) for call in turn.calls]))

    def parse(self, action: str, cut: bool = False) -> Turn:
        """Parse a turn and check its limits: the first half of a step. Changes no state."""
        if not self._running:
            raise gymnasium.error.ResetNeeded("the episode has ended, or has not begun: call reset() first")
        if not isinstance(action, str):
            raise ValueError(f"an action is the text of an assistant turn, got {type(action).__name__}")
        turn = self.format.parse(action)
        if cut:
            return CUT if turn.error is None or turn.unfinished else replace(turn, cut=True)
        if self.max_tokens is not None and self.tokens + self._count(action) > self.max_tokens:
            return Turn(error=f"The turn goes beyond the {self.max_tokens} tokens of the episode.")
        count = len(turn.calls)
        if count > self.max_calls:
            return Turn(error=f"A turn may hold {self.max_calls} calls at most, this one has {count}.")
        if self.max_total_calls is not None and count > (left := self.max_total_calls - len(self.history.calls)):
            return Turn(error=f"Of {self.max_total_calls} calls {left} are left, and this turn has {count}.")
        return turn

    def resolve(self, action: str, turn: Turn, results: list[ToolResult]) -> StepResult:
        """Apply a turn and the results of ``turn.calls`` to the state, and reward it: the second half of a step."""
        answered, self.feedback, self.results = turn.answer is not None, [], results
        observation = "" if answered else self._observe(turn, results)
        number = len(self.history.turns) + 1
        self.tokens += self._count(action + observation)
        spent = number >= self.max_turns or (self.max_tokens is not None and self.tokens > self.max_tokens)
        rewritten = {} if answered or spent else self._rewrite(action, observation)
        if self.fits is not None and not (answered or spent):
            spent = not self.fits(observation, rewritten.get("context"))
            turn = CUT if turn.cut and spent else turn
        outcome = self.evaluate_turn(turn, results, answered or spent)
        terminated = answered or outcome.terminated
        truncated = not terminated and (spent or outcome.truncated)
        context = TurnContext(
            turn=turn,
            metrics=outcome.metrics,
            previous_metrics=self._metrics,
            done=terminated or truncated,
            number=number,
            previous_turns=self.history.turns,
            failed=turn.is_mistake or any(not r.ok and not r.fault for r in results),
            repeated=self._is_repeat(turn.calls, results),
        )
        if clash := OWN_ENTRIES & {*outcome.metrics, *outcome.info}:
            raise ValueError(
                f"evaluate_turn reports {sorted(clash)}, but ToolEnv has entries of these names in the info"
            )
        terms = self.reward(context)
        self._metrics = outcome.metrics
        self.history.turns.append(turn)
        self.history.calls.extend(turn.calls)
        pairs = zip(turn.calls, results, strict=True)
        self._learned.update((call.name, result.text) for call, result in pairs if result.ok)
        self._running = not context.done
        self._transcript += [action, observation]
        info = {**outcome.metrics, **outcome.info, "reward_terms": terms, "valid": turn.error is None, "cut": turn.cut}
        info |= {"turns": number, "calls": len(self.history.calls), "tool_faults": sum(r.fault for r in results)}
        info |= {"tokens": self.tokens} if self.max_tokens is not None else {}
        info |= rewritten if self._running else {}
        return observation, float(sum(terms.values())), terminated, truncated, info

    def render(self) -> str | None:
        """Return the conversation so far as text that is safe to print (`printable`); None without a ``render_mode``."""
        return printable("\n".join(self._transcript)) if self.render_mode == "ansi" else None

    @property
    def formats(self) -> tuple[Format, ...]:
        """The formats in which turns may have to be written: one, except in a mixture."""
        return (self.format,)

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a turn, for a sampler."""
        return tuple(dict.fromkeys(string for format in self.formats for string in format.stop))

    @property
    def system_prompt(self) -> str:
        """The task in a sentence or two, and how to write turns in the format."""
        return f"{self.instructions} {self.format.instructions()}".strip()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _observe(self, turn: Turn, results: list[ToolResult]) -> str:
        """Return what the agent reads next; ``feedback`` gets its parts, without the tags of the format."""
        told = [turn.error] if turn.error else [result.text for result in results]
        failed = bool(turn.error) or not all(result.ok for result in results)
        if failed and (state := self.state_text()):
            told[-1] += f"\n{state}"
        self.feedback = list(map(encodable, told))
        if turn.error:
            return encodable(self.format.render_error(told[0]))
        shown = [replace(result, text=text) for result, text in zip(results, told, strict=True)]
        return encodable(self.format.render(turn, shown))

    def _count(self, text: str) -> int:
        """Count the tokens of a text; 0 without ``max_tokens``."""
        if self.max_tokens is None:
            return 0
        assert self.count_tokens is not None  # reset has checked
        return self.count_tokens(text)

    def _rewrite(self, action: str, observation: str) -> dict[str, Any]:
        """Return ``{"context": messages}`` if the context policy rewrote the conversation, else {}."""
        if self.context is None:
            return {}
        latest = [{"role": "assistant", "content": action}, {"role": "user", "content": observation}]
        self._messages += latest
        grown, self._shown = self._shown + latest, self.context([dict(message) for message in self._messages])
        if not isinstance(self._shown, list) or not all({"role", "content"} <= set(m) for m in self._shown):
            raise ValueError("a context is a list of messages, each with a role and a content")
        if self._shown == grown and self.context is not keep_all:
            return {}
        chat: list[dict[str, Any]] = [dict(self._shown[0])]
        for message in self._shown[1:]:
            text = message["content"]
            chat += [self.format.message(text)] if message["role"] == "assistant" else self.format.messages(text)
        return {"context": chat}

    def _is_repeat(self, calls: tuple[ToolCall, ...], results: list[ToolResult]) -> bool:
        """Whether all of ``calls`` were made in earlier turns. Earlier calls that ended in a tool failure do not count."""
        keys = [_call_key(call, self.tools.get(call.name)) for call in calls]
        repeated = bool(keys) and all(key in self._made for key in keys)
        self._made.update(key for key, result in zip(keys, results, strict=True) if not result.fault)
        return repeated


def _offset_seeds(split: str) -> int:
    if split not in ("train", "validation"):
        raise ValueError(f"split must be 'train' or 'validation', got {split!r}")
    return HELD_OUT if split == "validation" else 0


def _digest(learned: tuple[str, str]) -> bytes:
    """Return a short hash of a tool's result, the same in every process."""
    return hashlib.blake2b(repr(learned).encode(), digest_size=8).digest()


def _as_tool(tool: Tool | Callable) -> Tool:
    if not hasattr(tool, "execute_batch"):
        return FunctionTool(tool)
    taken = cast(Tool, tool)
    try:
        compile_parameters(taken.parameters)
    except ValueError as error:
        raise ValueError(f"the tool {taken.name!r} cannot be used: {error}") from None
    return taken


COMMON = frozenset(inspect.signature(ToolEnv.__init__).parameters) - {"self", "tools", "instructions", "answers"}
"""The arguments that every environment takes; a task uses this set to tell them apart from other ``**kwargs``."""


def _call_key(call: ToolCall, tool: Tool | None) -> str:
    """Return a call as text, equal for equal calls; for a tool that ignores case, case and white space do not matter."""
    arguments = map_texts(call.arguments, _fold) if getattr(tool, "ignores_case", False) else call.arguments
    return f"{call.name} {json.dumps(arguments, sort_keys=True, default=repr)}"


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())
