"""The calls that a program makes in an episode, as rows of token ids.

A call is a conversation for the policy to continue. It extends an earlier call of the episode if it repeats that call's
messages and sampled turn, and adds no other turn of the assistant. Its prompt is then the earlier call's ids, the sampled
ids, and the new messages; only the new messages are encoded. Any other call starts its own row.
"""

import hashlib
import json
import secrets
import warnings
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from agent_envs.chat_tokens import ChatTokens
from agent_envs.formats.base import Malformed
from agent_envs.formats.blocks import find_end, split_thought
from trainers.engines.engine import LEAST_TURN, Completion
from trainers.trajectory import Step, Trajectory

Message = dict[str, Any]
_Key = tuple[Any, ...]  # of a message, equal if two messages count as the same


class CallRefused(Exception):
    """A call cannot be answered; ``status`` and ``code`` are the API's."""

    def __init__(self, status: int, message: str, code: str = "invalid_request"):
        super().__init__(message)
        self.status, self.code = status, code

    def as_json(self) -> dict[str, Any]:
        """The error in the API's form."""
        return {"message": str(self), "type": "invalid_request_error", "param": None, "code": self.code}


@dataclass(slots=True, kw_only=True)
class Turn:
    """The answer to a call: the message for the client, why it ended, and the numbers of tokens."""

    message: Message
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A request for a turn. ``messages`` have the API's form, with text as content; ``answer`` gets a `Turn`."""

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    body: Mapping[str, Any] = field(default_factory=dict)  # the request as received
    answer: "Future[Turn]" = field(default_factory=Future)
    keys: list[_Key] = field(default_factory=list)  # of its messages and, once sampled, of its turn
    shown: list[Message] = field(default_factory=list)  # the same in the form of records
    row: "Call | None" = None  # the earlier call that it extends
    starts: bool = False  # it begins a row
    prompt: list[int] = field(default_factory=list)
    place: int = 0  # among the calls of its episode, from 1
    number: int = 0  # of its conversation in the engine
    seed: int = 0
    message: Message = field(default_factory=dict)  # the turn
    step: Step = field(default_factory=lambda: Step(prompt=[], tokens=[], logprobs=[]))
    extended: bool = False

    def settle(self, result: Turn | Exception) -> None:
        """Give the program its answer, unless it no longer waits."""
        if not self.answer.set_running_or_notify_cancel():
            return
        if isinstance(result, Turn):
            self.answer.set_result(result)
        else:
            self.answer.set_exception(result)


ENDED = CallRefused(403, "the episode of this key has ended", "episode_ended")


class CallLog:
    """The calls of one episode as text: finds which call extends which, and fills a `Trajectory` with their turns and rewards.

    Only one thread at a time may begin and finish calls; any thread may give rewards.

    Args:
        max_calls: number of calls that are admitted; later ones are refused.
        keep: number of latest answered calls that others may extend; None for all.
        shown: converts a message to the form in records.

    Attributes:
        calls, rows: their numbers so far.
        edits: number of calls that changed a turn of the assistant, and so began a row.
        refused: why the latest call beyond a limit was refused; "" if none was.
        before_turn: called before each answer is added; returns a label of the state for `Trajectory.anchors`.
    """

    def __init__(
        self, trajectory: Trajectory, *, max_calls: float = float("inf"), keep: int | None = None,
        shown: Callable[[Message], Message] = lambda message: message,
    ):  # fmt: skip
        self.trajectory, self.max_calls, self.calls, self.rows, self.edits = trajectory, max_calls, 0, 0, 0
        self.refused = ""
        self.before_turn: Callable[[], Any] = lambda: None
        self._escape = shown
        self._answered: deque[Call] = deque(maxlen=keep)
        self._lock = Lock()  # guards the rewards
        self._owed = _new_turn()  # rewards before the first answered call

    # -- by the thread that answers -----------------------------------------------------------------------------------

    def admit(self, call: Call) -> None:
        """Give a call its place, and the earlier call that it extends. Raises CallRefused."""
        if self.calls >= self.max_calls:
            self.refused = f"the episode has had its {self.max_calls} calls"
            raise CallRefused(400, self.refused, "calls_exceeded")
        self.refused = ""
        self.calls += 1
        call.place = self.calls
        call.keys = [_key_of(message) for message in call.messages]
        fitting = [row for row in self._answered if row.tools == call.tools and _extends(call.keys, row.keys)]
        call.row = max(fitting, key=lambda row: len(row.keys), default=None)

    def attach(self, call: Call) -> None:
        """Let a call continue its row, or start one if it extends no call or another call has continued that row."""
        call.starts = call.row is None or call.row.extended
        if call.row is None:
            self.edits += any(_is_edited(call, row) for row in self._answered)
        else:
            call.row.extended = True

    def add(self, call: Call, message: Message, step: Step, error: str, was_cut: bool) -> None:
        """Add a call and the answer to the trajectory. ``error``: why its turn is malformed, or ""."""
        latest, trajectory = (self._answered[-1] if self._answered else None), self.trajectory
        known = call.row.shown if call.row is not None else []
        told = [self._escape(_shown(each, place)) for place, each in enumerate(call.messages) if place >= len(known)]
        call.shown = [*known, *told, _shown(message)]
        # A row that other calls have interrupted is shown from its beginning.
        new = call.shown[len(known) if call.row is latest else 0 : -1]
        self.rows += call.starts
        call.message, call.step = message, step
        call.keys.append(_key_of(message))
        self._answered.append(call)
        is_whole = len(new) + 1 == len(call.shown)
        if is_whole and trajectory.steps and new[0]["role"] != "system":  # as records mark where a row begins
            new.insert(0, {"role": "system", "content": ""})
        label = self.before_turn()
        with self._lock:
            trajectory.messages += new
            seen = {"message": len(trajectory.messages), "observation": new[-1]["content"]}
            is_text = message.keys() == {"role", "content"}
            action = message["content"] if is_text else json.dumps(message, ensure_ascii=False)
            said = {"action": action, "invalid": bool(error), "cut": was_cut}
            step.reward = self._owed["reward"]
            trajectory.turns.append(self._owed | seen | said)
            self._owed = _new_turn()
            trajectory.messages.append(call.shown[-1])
            trajectory.anchors.append(label)
            trajectory.steps.append(step)

    # -- by the program, in any thread --------------------------------------------------------------------------------

    def reward(
        self, value: float, terms: Mapping[str, float] | None = None, seen: Mapping[str, Any] | None = None
    ) -> None:
        """Add a reward to the turn answered last, or to the first turn if there is none yet. ``seen``: ``calls``, ``found`` and
        ``text`` for the turn's record."""
        seen = seen or {}
        with self._lock:
            trajectory = self.trajectory
            turn = trajectory.turns[-1] if trajectory.turns else self._owed
            if trajectory.steps:
                trajectory.steps[-1].reward += value
            turn["reward"] += value
            turn["calls"] = [*turn["calls"], *seen.get("calls", ())]
            turn["found"] = [*turn["found"], *seen.get("found", ())]
            turn["next_observation"] = "\n".join(filter(None, [turn["next_observation"], seen.get("text", "")]))
            for name, paid in (terms or {}).items():
                turn["reward_terms"][name] = turn["reward_terms"].get(name, 0.0) + paid
                trajectory.reward_terms[name] = trajectory.reward_terms.get(name, 0.0) + paid


class Session(CallLog):
    """The calls of one episode as rows of token ids, answered by the policy in this process.

    Args:
        seed: seed of the episode's sampling noise. The noise of a call depends on its prompt and on the number of equal prompts
            before it, not on when it arrives. None: each call gets fresh noise.
        number: returns a new number for a conversation of the engine.
        max_calls, keep: see `CallLog`.
    """

    def __init__(
        self, policy: ChatTokens, trajectory: Trajectory, number: Callable[[], int], *, seed: int | None = None,
        max_calls: float = float("inf"), keep: int | None = None,
    ):  # fmt: skip
        super().__init__(trajectory, max_calls=max_calls, keep=keep, shown=policy.escape_all)
        self.policy, self._number, self._seed = policy, number, seed
        self._prompts: Counter[bytes] = Counter()

    def begin(self, call: Call, max_new_tokens: int, max_length: float) -> None:
        """Give a call its prompt, noise and conversation. Raises CallRefused."""
        self.admit(call)
        if call.tools and self.policy.dialect is None:
            why = self.policy.refusal
            warnings.warn(f"the model cannot call functions ({why}): it is not shown the program's tools", stacklevel=2)
        try:
            call.prompt = self._encode(call)
        except Exception as error:  # a chat template may raise anything
            text = " ".join(str(error).split())
            raise CallRefused(400, f"the model's chat template cannot write these messages: {text}") from error
        if len(call.prompt) + min(max_new_tokens, LEAST_TURN) > max_length:
            self.refused = (
                f"the prompt has {len(call.prompt)} tokens, and the model reads {max_length:.0f} with its turn"
            )
            raise CallRefused(400, self.refused, "context_length_exceeded")
        self.attach(call)
        call.number = self._number() if call.row is None or call.starts else call.row.number
        if self._seed is not None:
            prompt = array("q", call.prompt).tobytes()
            self._prompts[prompt] += 1
            call.seed = seed_of(self._seed, prompt, self._prompts[prompt])
        else:
            call.seed = secrets.randbits(62)

    def finish(self, call: Call, completion: Completion) -> Turn:
        """Add the turn that was sampled for a call to the rows; return the client's answer."""
        tokens, logprobs, was_cut = completion.tokens, completion.logprobs, completion.finish_reason == "length"
        stopped = bool(call.stop) and self._has_stop(tokens, call.stop)
        if stopped:  # drop what was sampled after the stop string
            count = 1 + bisect_left(range(1, len(tokens)), True, key=lambda n: self._has_stop(tokens[:n], call.stop))
            tokens, logprobs, was_cut = tokens[:count], logprobs[:count], False
        message, error = self._read(call, tokens, was_cut, stopped)
        self.add(call, message, Step(prompt=call.prompt, tokens=tokens, logprobs=logprobs), error, was_cut)
        reason = "length" if was_cut else "tool_calls" if message.get("tool_calls") else "stop"
        count = len(tokens)
        return Turn(message=message, finish_reason=reason, prompt_tokens=len(call.prompt), completion_tokens=count)

    def _encode(self, call: Call) -> list[int]:
        row, tools = call.row, call.tools or None
        if row is None:
            return self.policy.conversation_ids(call.messages, tools)
        names = {made["id"]: made["function"]["name"] for made in row.message.get("tool_calls") or ()}
        new = [
            message if "tool_call_id" not in message else {"name": names.get(message["tool_call_id"]), **message}
            for message in call.messages[len(row.keys) :]
        ]
        try:
            return row.step.prompt + row.step.tokens + self.policy.observation_ids(new, row.step.tokens, tools)
        except ValueError:  # a template that cannot append such messages
            call.row = None
            return self.policy.conversation_ids(call.messages, tools)

    def _has_stop(self, tokens: list[int], stop: tuple[str, ...]) -> bool:
        return find_end(self.policy.decode_text(tokens), stop) is not None

    def _read(self, call: Call, tokens: list[int], was_cut: bool, stopped: bool) -> tuple[Message, str]:
        """Read a sampled turn as the API's message; return it, and why it is malformed, or "". A stop string, and what follows
        it in its token, is left out, as in the API."""
        policy = self.policy
        if call.tools and policy.dialect is not None and not was_cut and not stopped:
            message = policy.read_turn(tokens, call.tools)
            error = str(message.pop("error", ""))
            message.pop("unfinished", None)
            for place, made in enumerate(message.get("tool_calls") or ()):
                if made["id"] == f"call_{place}":  # clients tell calls of different turns apart by their ids
                    made["id"] = f"call_{call.place}_{place}"
            return message, error
        text, error = policy.decode_text(tokens), ""
        if stopped:
            text = cut_at(text, call.stop)
        try:
            thoughts, content = split_thought(text)
        except Malformed as problem:
            thoughts, content, error = [], text, str(problem)
        message = {"role": "assistant", "content": content.strip()}
        return message | ({"reasoning_content": "\n".join(thoughts)} if any(thoughts) else {}), error


def seed_of(episode: int, prompt: bytes, times: int) -> int:
    """Compute the seed of a call's noise from the episode's seed, the prompt, and how many times the prompt has come."""
    told = f"{episode} {times} ".encode() + prompt
    return int.from_bytes(hashlib.blake2b(told, digest_size=7).digest())


def cut_at(text: str, stop: tuple[str, ...]) -> str:
    """Text up to the first stop string outside of thoughts."""
    text = text[: find_end(text, stop)]
    return min((text.removesuffix(string) for string in stop), key=len, default=text)


def text_of(content: Any) -> str:
    """The text of a message's content, which may be a list of parts. Raises CallRefused for parts that are not text."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        parts = [part.get("text", part.get("refusal")) for part in content]
        if all(isinstance(part, str) for part in parts):
            return "".join(parts)
    raise CallRefused(400, "the content of a message must be text, or a list of parts that are text")


def _new_turn() -> dict[str, Any]:
    return {"reward": 0.0, "reward_terms": {}, "calls": [], "found": [], "next_observation": ""}


def _shown(message: Message, place: int = 0) -> Message:
    """A message for records, where a system message marks the beginning of a row: a later one has the role "developer"."""
    kept = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")
    shown = {name: message[name] for name in kept if message.get(name)} | {"content": message.get("content") or ""}
    return shown | ({"role": "developer"} if place and message["role"] == "system" else {})


def _key_of(message: Message) -> _Key:
    """A key, equal for messages that count as the same. It ignores outer white space, and the thought, which clients drop."""
    calls = [
        (call["function"]["name"], _without_layout(call["function"].get("arguments")))
        for call in message.get("tool_calls") or ()
    ]
    return message["role"], (message.get("content") or "").strip(), tuple(calls), message.get("tool_call_id") or ""


def _without_layout(arguments: Any) -> str:
    try:
        given = json.loads(arguments or "{}") if isinstance(arguments, str | None) else arguments
        return json.dumps(given, sort_keys=True)
    except (ValueError, RecursionError):
        return str(arguments)


def _extends(longer: Sequence[_Key], shorter: Sequence[_Key]) -> bool:
    rest = longer[len(shorter) :]
    return bool(rest) and longer[: len(shorter)] == shorter and all(key[0] != "assistant" for key in rest)


def _is_edited(call: Call, row: Call) -> bool:
    """Whether a call repeats all messages of an earlier one, but changes the turn that was sampled after them."""
    place = len(row.keys) - 1
    if row.tools != call.tools or len(call.keys) <= place or call.keys[:place] != row.keys[:place]:
        return False
    return call.keys[place][0] == "assistant" and call.keys[place] != row.keys[place]
