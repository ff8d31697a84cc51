"""A model behind an OpenAI-compatible endpoint as an agent: it plays episodes, many at once, and leaves a record of each.

The model is given the tools of the environment as functions and calls them, or it writes its turns as text in one of our
formats. What the endpoint answers is a turn of the environment that ``gymnasium.make`` gives: same rewards, same ends.

What goes wrong on the way is never the model's mistake. The client asks again with growing pauses; where a server wants to be
left alone for a while, all requests wait. An episode that cannot be played is a failed one. An endpoint that answers nobody
any more, or refuses everybody, ends the evaluation in one line.
"""

import asyncio
import importlib.util
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from agent_envs.formats.json_text import dumps, read_object
from agent_envs.integrations.episode import Episode, Message, Reply, take_message
from agent_envs.utils.scripts import EpisodeRecorder
from trainers.episodes.records import Origin, make_record
from trainers.runtime.errors import UserError
from trainers.runtime.signals import TrainingStopped

NATIVE = "native"
RETRIES = 6  # of a request, by the client: half a second is doubled up to eight, 24 s in all
ROUNDS = 3  # of such requests, where the endpoint is there
MOST_REFUSED = 3  # episodes in a row that could not be played, while no request at all was answered
CONNECT_SECONDS, PROBE_SECONDS = 5.0, 15.0
LONGEST_WAIT = 120.0  # seconds; a server that asks for more is not waited for

Job = tuple[int, int]  # the number of an instance, and which attempt at it


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where and how models are asked.

    Attributes:
        url: base of the API, such as ``http://127.0.0.1:8000/v1``.
        key_variable: the environment variable that holds the key; without one none is sent.
        temperature, max_new_tokens: None leaves them to the server.
        requests_per_minute: 0 for no limit.
        timeout: seconds that an answer may take.
    """

    url: str
    key_variable: str = "OPENAI_API_KEY"
    temperature: float | None = None
    max_new_tokens: int | None = None
    requests_per_minute: float = 0.0
    timeout: float = 600.0


class Unplayable(Exception):
    """An episode cannot go on; the message says why."""


class EndpointStopped(TrainingStopped):
    """The endpoint is not there, or refuses all that is asked."""


def check(url: str) -> None:
    """Raise a ValueError where the address is none, or where the client is not installed."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"api must be an address such as http://127.0.0.1:8000/v1, got {url!r}")
    if parts.username or parts.password or parts.query:
        raise UserError("api must be an address without a key in it: put the key into an environment variable")
    if importlib.util.find_spec("openai") is None:
        raise UserError("api needs the openai package: pip install 'agent-r1-envs[api]'")


def make_episode(id: str, format: str, /, **env_kwargs: Any) -> Episode:
    """An episode that a model behind an API can play.

    Args:
        format: "native" for function calls, or a format of text.

    Raises:
        ValueError: the task, or the format, is not for chat APIs.
    """
    if format == NATIVE:
        episode = Episode(id, native=True, **env_kwargs)
        if episode.env.context is not None:
            raise UserError("function calls stay in the conversation: with a context, choose a --format of text")
        return episode
    episode = Episode(id, **{**env_kwargs, **({"format": format} if format else {})})
    for form in episode.env.formats:
        if form.special_tokens:
            raise UserError(f"a chat API takes special tokens out of a text: choose another format than {form.name!r}")
        if form.name == "openai":
            raise UserError("the format 'openai' is that of function calls: leave it out, or give --format native")
    return episode


def choose_format(id: str, format: str, env_kwargs: Mapping[str, Any]) -> str:
    """Function calls where nothing else is asked for and the task can be played by them; "" is the format that the
    environment has of itself."""
    if format or "format" in env_kwargs or env_kwargs.get("context", "append") != "append":
        return format
    try:
        make_episode(id, NATIVE, **env_kwargs).close()
    except ValueError:
        make_episode(id, "", **env_kwargs).close()  # raises what is wrong apart from that
        return ""
    return NATIVE


class ApiAgent:
    """One model behind an endpoint.

    Args:
        known_to_fail: how many episodes may fail again, as they have before, without a doubt about the endpoint.

    Attributes:
        problems: why episodes could not be played, and how many of them.
    """

    def __init__(self, endpoint: Endpoint, model: str, origin: Origin, known_to_fail: int = 0):
        self.endpoint, self.model, self.origin = endpoint, model, origin
        self.problems: Counter[str] = Counter()
        self._key = os.environ.get(endpoint.key_variable, "").strip()  # a newline in a header shows it in an error
        self._quirks: set[str] = set()  # of `_QUIRKS`, as they come up
        self._refused = -known_to_fail  # episodes in a row, without a request that was answered

    def play(self, episodes: Sequence[Episode], jobs: Iterable[Job], keep: Callable[[dict], None]) -> None:
        """Play the jobs, as many at once as there are episodes; ``keep`` gets the record of each as soon as it is over.

        Raises:
            EndpointStopped: it answers nobody, or refuses everybody.
        """
        _run(self._play_all(episodes, iter(jobs), keep))

    async def _play_all(self, episodes: Sequence[Episode], jobs: Iterator[Job], keep: Callable[[dict], None]) -> None:
        import openai

        async def work(episode: Episode) -> None:
            for number, sample in jobs:  # shared by all
                keep(await self._play(episode, number, sample))

        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(len(episodes)))
        pace = _Pace(self.endpoint.requests_per_minute)
        http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [pace.wait], "response": [pace.heed]})
        base = self.endpoint.url.rstrip("/").removesuffix("/chat/completions")
        seconds = openai.Timeout(self.endpoint.timeout, connect=CONNECT_SECONDS)
        async with openai.AsyncOpenAI(
            base_url=base, api_key=self._key or "none", timeout=seconds, max_retries=RETRIES, http_client=http
        ) as self._client:
            if problem := await self._find_outage():
                raise EndpointStopped(f"{base} does not answer: {problem}")
            try:
                async with asyncio.TaskGroup() as group:
                    for episode in episodes:
                        group.create_task(work(episode))
            except BaseExceptionGroup as several:
                raise several.exceptions[0] from None

    async def _play(self, episode: Episode, number: int, sample: int) -> dict:
        begun = time.monotonic()
        opening = await asyncio.to_thread(_start, episode, number, sample)
        record, messages = _Record(episode, opening), opening
        try:
            while not episode.done:
                said, usage = await self._ask(messages, episode)
                reply, back = await asyncio.to_thread(take_message, episode, said)
                record.add(said, usage, reply, back)
                messages = [*messages, said, *back] if reply.context is None else [*opening[:-1], *reply.context]
        except Unplayable as problem:
            record.problem = str(problem)
            self.problems[record.problem] += 1
        return record.finish(self.origin, number, sample, time.monotonic() - begun)

    async def _ask(self, messages: list[Message], episode: Episode) -> tuple[Message, Message]:
        """The next turn of the model, and its usage.

        Raises:
            Unplayable: the API refuses the conversation, or gives no turn.
            EndpointStopped: it answers nobody, or refuses everybody.
        """
        import openai

        problem: Exception
        for _ in range(ROUNDS):
            try:
                turn = await self._request(messages, episode)
                self._refused = 0
                return turn
            except openai.APIStatusError as error:
                problem = error
                again = error.status_code >= 500 or error.status_code in (408, 409, 429)
                if not again or error.code == "insufficient_quota":
                    break
            except (openai.APIError, ValueError) as error:  # no connection, no answer in time, no turn in the answer
                problem = error
            if outage := await self._find_outage(openai.InternalServerError):
                raise EndpointStopped(f"{self.endpoint.url} does not answer any more: {outage}")
        told, self._refused = self._explain(problem, episode.native), self._refused + 1
        if self._refused >= MOST_REFUSED:
            raise EndpointStopped(f"{self.endpoint.url} gives no turn of {self.model}: {told}")
        raise Unplayable(told)

    async def _request(self, messages: list[Message], episode: Episode) -> tuple[Message, Message]:
        """One request. Where the API names another parameter that it wants, that is what it gets from then on."""
        import openai

        while True:
            quirks = frozenset(self._quirks)
            try:
                raw = await self._client.chat.completions.with_raw_response.create(
                    model=self.model, messages=[_to_send(message, quirks) for message in messages],
                    **self._options(episode, quirks),
                )  # fmt: skip
                return _read_turn(raw.http_response.content, episode)
            except openai.BadRequestError as error:
                wanted = next((quirk for quirk, words in _QUIRKS.items() if words in str(error)), None)
                if wanted is None or wanted in quirks:
                    raise
                self._quirks.add(wanted)

    def _options(self, episode: Episode, quirks: frozenset[str]) -> dict[str, Any]:
        options: dict[str, Any] = {"tools": episode.tools} if episode.native else {}
        if not episode.native and "no stop" not in quirks and 0 < len(episode.stop) <= _MOST_STOPS:
            options["stop"] = list(episode.stop)
        if self.endpoint.temperature is not None:
            options["temperature"] = self.endpoint.temperature
        if self.endpoint.max_new_tokens is not None:
            name = "max_completion_tokens" if "completion tokens" in quirks else "max_tokens"
            options[name] = self.endpoint.max_new_tokens
        return options

    async def _find_outage(self, *outages: type[Exception]) -> str:
        """Why the endpoint cannot be spoken to at all: no connection, or one of ``outages``. "" where it answers anything else,
        or has too much to do for it."""
        import openai

        try:
            await self._client.with_options(max_retries=2, timeout=PROBE_SECONDS).models.list()
        except (openai.APIConnectionError, *outages) as error:
            is_busy = isinstance(error, openai.APITimeoutError) and "Connect" not in type(error.__cause__).__name__
            return "" if is_busy else self._explain(error)
        except Exception:  # not every server has a list of models
            pass
        return ""

    def _explain(self, error: Exception, native: bool = False) -> str:
        """In one line, and without the key, which some servers repeat."""
        status = getattr(error, "status_code", None)
        body = getattr(error, "body", None)
        told = body.get("message") if isinstance(body, dict) else None
        text = str(told or error) + (f" ({error.__cause__})" if error.__cause__ and not told else "")
        if self._key:
            text = text.replace(self._key, "…")
        text = " ".join(text.split())[:_LONGEST_ERROR]
        if status == 404:
            text += " (is that the name of the model, and does the address end in /v1?)"
        if native and status == 400 and "tool" in text:
            text += " (where it takes no tools, --format hermes has them in the text)"
        return f"{status}: {text}" if status else text


_QUIRKS = {  # what an API may want to be different, and the words by which it says so
    "completion tokens": "max_completion_tokens",
    "no stop": "'stop'",
    "reasoning": "reasoning_content",
}
_MOST_STOPS = 4  # strings that OpenAI takes; a turn is cut at all of them here in any case
_LONGEST_ERROR = 300  # characters


class _Pace:
    """Spaces requests, the client's own repetitions among them: so many a minute, and none while the server asks for a pause
    (429 with Retry-After)."""

    def __init__(self, per_minute: float):
        self._gap, self._next, self._paused_until = 60 / per_minute if per_minute else 0.0, 0.0, 0.0

    async def wait(self, request: Any) -> None:
        due = max(time.monotonic(), self._next)
        self._next = due + self._gap
        while (left := max(due, self._paused_until) - time.monotonic()) > 0:  # a pause may begin meanwhile
            await asyncio.sleep(left)

    async def heed(self, response: Any) -> None:
        if response.status_code == 429:
            try:
                seconds = float(response.headers.get("Retry-After", ""))
            except ValueError:  # none, or a date, which the client reads
                return
            if 0 < seconds <= LONGEST_WAIT:
                self._paused_until = max(self._paused_until, time.monotonic() + seconds)
                self._next = max(self._next, self._paused_until)


def _run(work: Coroutine) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
        return
    loop = asyncio.new_event_loop()  # in a notebook, whose own loop runs this very code
    Thread(target=loop.run_forever, daemon=True).start()
    played = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        played.result()
    except BaseException:
        played.cancel()
        raise
    finally:
        loop.call_soon_threadsafe(loop.stop)


def _start(episode: Episode, number: int, sample: int) -> list[Message]:
    """The messages before the first turn."""
    options = {"question": number} if episode.env.questions is not None else None
    system, user = episode.start(number, attempt=sample, options=options)
    return [system, user] if system["content"] else [user]


# -- what the API says -------------------------------------------------------------------------------------------------


def _read_turn(body: bytes, episode: Episode) -> tuple[Message, Message]:
    """The assistant message of an answer, with text as ``content`` and ``reasoning_content`` and a list of ``tool_calls``
    that have ids and names; and its usage.

    Raises:
        ValueError: there is none.
    """
    try:
        answer = json.loads(json.dumps(json.loads(body), ensure_ascii=False).encode("utf-8", "replace"))
        choice = answer["choices"][0]
        message = choice["message"]
        content = _read_text(message.get("content"))
        reasoning = _read_text(message.get("reasoning_content") or message.get("reasoning"))
        calls = [_read_call(call, place) for place, call in enumerate(message.get("tool_calls") or [])]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(f"the answer is no chat completion: {body[:200].decode('utf-8', 'replace')!r}") from None
    if len({call["id"] for call in calls}) < len(calls):
        calls = [{**call, "id": f"call_{place}"} for place, call in enumerate(calls)]
    if not episode.native:
        content, calls = _end_turn(content, episode), []
    usage = answer.get("usage")
    said = {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": calls}
    return said, usage if isinstance(usage, dict) else {}


def _read_text(content: Any) -> str:
    """Text, or the text in a list of parts."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") == "text")
    if not isinstance(content, str | None):
        raise TypeError
    return content or ""


def _read_call(call: Any, place: int) -> dict[str, Any]:
    function = call.get("function") or {}
    name, arguments = function.get("name"), function.get("arguments")
    written = arguments if isinstance(arguments, str) else dumps({} if arguments is None else arguments)
    made = {"name": name if isinstance(name, str) and name else "unknown", "arguments": written}
    return {**call, "id": call.get("id") or f"call_{place}", "type": "function", "function": made}


def _end_turn(text: str, episode: Episode) -> str:
    """A turn in text as our own engines end it: with the first of the strings that end one, which an API leaves out."""
    ends = [place + len(stop) for stop in episode.stop if (place := text.find(stop)) >= 0]
    if ends:
        return text[: min(ends)]
    if episode.env.parse(text).error:
        return next((text + stop for stop in episode.stop if not episode.env.parse(text + stop).error), text)
    return text


def _to_send(message: Message, quirks: frozenset[str]) -> Message:
    """A message as the API gets it: of an assistant's without its thought, but where it wants that, and with arguments that
    are JSON, as some templates fail at others."""
    if "tool_calls" not in message:
        return message
    sent: Message = {"role": "assistant", "content": message["content"] or None}
    if message["tool_calls"]:
        sent["tool_calls"] = [_with_json_arguments(call) for call in message["tool_calls"]]
    elif not message["content"]:
        sent["content"] = "(nothing)"  # some refuse a message without anything
    if "reasoning" in quirks:
        sent["reasoning_content"] = message["reasoning_content"]
    return sent


def _with_json_arguments(call: dict[str, Any]) -> dict[str, Any]:
    written = call["function"]["arguments"] or "{}"
    try:
        read_object(written, "")
    except ValueError:
        written = dumps({"unreadable": written})
    return {**call, "function": {**call["function"], "arguments": written}}


# -- what is left of an episode ----------------------------------------------------------------------------------------


class _Record:
    """The line of an episode in episodes.jsonl, as it grows."""

    def __init__(self, episode: Episode, opening: list[Message]):
        self._episode, self._recorder = episode, EpisodeRecorder(episode.env, episode.info)
        self._opening, self._messages, self._turns = opening, list(opening), list[dict]()
        self._tokens = {"prompt_tokens": 0, "completion_tokens": 0}
        self._terminated = False
        self.problem = ""

    def add(self, said: Message, usage: Message, reply: Reply, back: list[Message]) -> None:
        """A turn, and what came back to it."""
        action = _write_turn(said, self._episode.native)
        terms = {n.removeprefix("reward/"): v for n, v in reply.metrics.items() if n.startswith("reward/")}
        read = "\n\n".join(message["content"] for message in back)
        noted = {"message": len(self._messages), "action": action, "next_observation": "" if reply.terminated else read}
        self._turns.append({**noted, **self._recorder.record_turn(), "reward": reply.reward, "reward_terms": terms})
        self._messages.append({"role": "assistant", "content": action})
        if reply.context is not None:  # a system message says that another context begins
            self._messages += [*self._opening[:-1], *reply.context]
        elif not reply.done:  # what it does not get to see is in the turn alone
            self._messages += [{"role": message["role"], "content": message["content"]} for message in back]
        for name in self._tokens:
            self._tokens[name] += count if isinstance(count := usage.get(name), int) else 0
        self._terminated = reply.terminated

    def finish(self, origin: Origin, number: int, sample: int, seconds: float) -> dict:
        """The record. An episode that ended in a problem is failed, and so is one in which a tool broke."""
        metrics = self._episode.metrics
        others = {"valid", "tool_faults", "score"} - {origin.score}
        info = {name: value for name, value in metrics.items() if "/" not in name and name not in others}
        faults = int(metrics.get("tool_faults", 0))
        return make_record(
            origin, {**self._recorder.instance, "instance": number, "sample": sample}, self._messages, self._turns, info,
            truncated=not self._terminated, failed=bool(self.problem or faults), tool_faults=faults, **self._tokens,
            seconds=round(seconds, 3),
        )  # fmt: skip


def _write_turn(said: Message, native: bool) -> str:
    """A turn in one text: of function calls the message as JSON, as the format "openai" has it; a thought that came beside a
    turn in text stands before it."""
    if native:
        return dumps({name: value for name, value in said.items() if value})
    thought = said["reasoning_content"]
    return f"<think>\n{thought}\n</think>\n\n{said['content']}" if thought else said["content"]
