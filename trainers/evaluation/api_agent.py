"""A model of an OpenAI-compatible endpoint as an agent: it acts in episodes, many at once, and leaves a record of each.

The model calls the environment's tools as functions, or writes its turns as text in one of our formats. Requests that
fail in passing are repeated; an episode that cannot be finished has failed.
"""

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from queue import SimpleQueue
from threading import Lock, Thread, local
from typing import Any, TypeVar

import httpx

from agent_envs.formats.json_text import dumps
from agent_envs.integrations.episode import Episode, Message, Reply, take_message
from agent_envs.utils.scripts import EpisodeRecorder
from trainers.episodes.records import Origin, make_record
from trainers.evaluation.api_messages import Form, read_turn, thinks, to_send
from trainers.runtime.errors import UserError
from trainers.runtime.signals import TrainingStopped

NATIVE = "native"
RETRIES = 6  # of a request, by the openai client: half a second is doubled up to eight, 24 s in all
TRIES = 3  # of an answer that holds no turn
MOST_REFUSED = 3  # episodes in a row that could not be finished, while no request at all was answered
CONNECT_SECONDS, PROBE_SECONDS = 5.0, 15.0

E = TypeVar("E")
Job = tuple[int, int]  # the number of an instance, and which attempt at it


class EpisodeFailed(Exception):
    """An episode cannot continue; for the reason in the message."""


class EndpointStopped(TrainingStopped):
    """The endpoint is not there, or refuses everything."""


def make_episode(id: str, format: str, /, **env_kwargs: Any) -> Episode:
    """An episode in which a model of an API can act, by "native" function calls or in a ``format`` of text. Raises a
    ValueError if the task, or the format, is not for chat APIs."""
    episode = Episode(id, **env_kwargs | ({"format": format} if format else {}))
    if episode.native and episode.env.context is not None:
        raise UserError("function calls stay in the conversation: with a context, choose a --format of text")
    return episode


def choose_format(id: str, format: str, env_kwargs: Mapping[str, Any]) -> str:
    """Function calls where nothing else is wanted and the task allows them; "" is the environment's own format."""
    format = format or (NATIVE if env_kwargs.get("format") == NATIVE else "")
    if format or "format" in env_kwargs or env_kwargs.get("context", "append") != "append":
        return format
    try:
        make_episode(id, NATIVE, **env_kwargs).close()
    except ValueError:
        make_episode(id, "", **env_kwargs).close()  # raises what is wrong apart from that
        return ""
    return NATIVE


class ApiAgent:
    """One model of an endpoint.

    Args:
        url: base of the API, such as ``http://127.0.0.1:8000/v1``.
        key_variable: the environment variable that holds the key; without one none is sent.
        temperature, max_new_tokens: None leaves them to the server.
        timeout: seconds that an answer may take.
        known_to_fail: how many episodes may fail again, as they have before, without a doubt about the endpoint.

    Attributes:
        problems: why episodes could not be finished, and how many of them; causes that differ only in numbers are one.
        tell: is told in a few words that the server is asked again.
    """

    def __init__(
        self, url: str, model: str, origin: Origin, *, key_variable: str = "OPENAI_API_KEY",
        temperature: float | None = None, max_new_tokens: int | None = None, timeout: float = 600.0, known_to_fail: int = 0,
    ):  # fmt: skip
        self.url, self.model, self.origin = url, model, origin
        self.temperature, self.max_new_tokens, self.timeout = temperature, max_new_tokens, timeout
        self.problems: Counter[str] = Counter()
        self.tell: Callable[[str], object] = lambda text: None
        self._answered_as: set[str] = set()  # the names of models in the answers
        self._native = False  # whether it calls functions
        self._key_variable = key_variable
        self._key = os.environ.get(key_variable, "").strip()  # a newline in a header shows it in an error
        self._quirks: set[str] = set()  # of `_QUIRKS`, as they come up
        self._refused = -known_to_fail  # episodes in a row, without a request that was answered
        self._lock, self._thread = Lock(), local()

    def run(
        self, run_episode: Callable[[E, int, int], dict], episodes: Sequence[E], jobs: Iterable[Job],
        keep: Callable[[dict], None],
    ) -> None:  # fmt: skip
        """Run the jobs, one per episode of ``episodes`` at once.

        Each `run_episode` gets one of these, the number of an instance and the number of its rollout, and returns a record,
        which ``keep`` gets at once. Raises EndpointStopped if the endpoint is gone, or refuses everybody.
        """
        import openai

        rest, results, running = iter(list(jobs)), SimpleQueue[dict | BaseException | None](), len(episodes)

        def work(episode: E) -> None:
            try:
                for number, sample in rest:  # shared by all threads
                    results.put(run_episode(episode, number, sample))
                results.put(None)
            except BaseException as error:
                results.put(error)

        base = self.url.rstrip("/").removesuffix("/chat/completions")
        seconds = openai.Timeout(self.timeout, connect=CONNECT_SECONDS)
        http: Any = openai.DefaultHttpxClient  # of httpx, or of its successor
        hooks = {"request": [self._tell_of_silence], "response": [self._tell_of_retry]}
        with openai.OpenAI(
            base_url=base, api_key=self._key or "none", timeout=seconds, max_retries=RETRIES,
            http_client=http(limits=httpx.Limits(max_connections=None), event_hooks=hooks),
        ) as self._client:  # fmt: skip
            self._check_alive("does not answer")
            for episode in episodes:
                Thread(target=work, args=(episode,), daemon=True).start()  # one that hangs holds up no exit
            while running:
                result = results.get()
                if isinstance(result, BaseException):
                    raise result
                if result is None:
                    running -= 1
                else:
                    keep(result)

    def run_episode(self, episode: Episode, number: int, sample: int) -> dict:
        """Let the model act in an episode; returns its record."""
        begun = time.monotonic()
        options = {"question": number} if episode.env.questions is not None else None
        system, user = episode.start(number, attempt=sample, options=options)
        opening = messages = [system, user] if system["content"] else [user]
        record, form = _Record(episode, opening), _form_of(episode)
        self._native = form.native
        try:
            while not episode.done:
                response, usage, cut = self.request_turn(messages, form)
                reply, back = take_message(episode, response, cut=cut)
                record.add(response, usage, reply, back)
                messages = [*messages, response, *back] if reply.context is None else [*opening[:-1], *reply.context]
        except EpisodeFailed as problem:
            record.problem = str(problem)
            self.count_problem(record.problem)
        return record.finish(self.origin, number, sample, time.monotonic() - begun)

    def count_problem(self, problem: str) -> None:
        """Note why an episode could not be finished."""
        with self._lock:
            same = (known for known in self.problems if _NUMBERS.sub("", known) == _NUMBERS.sub("", problem))
            self.problems[next(same, problem)] += 1

    def find_oddities(self, records: Iterable[dict]) -> Iterator[str]:
        """What is odd about the answers, in a line each: another model, or messages that never call a function."""
        wanted = self.model.lower().rpartition("/")[2]
        others = [name for name in sorted(self._answered_as) if wanted not in name.lower()]
        if others:
            yield f"{self.url} was asked for {self.model}, and answers as {', '.join(others)}"
        turns = [turn for record in records for turn in record["turns"]]
        if turns and self._native and not any('"tool_calls"' in turn["action"] for turn in turns):
            advice = "does the server pass tools on? Try --format tags"
            yield f"none of {len(turns)} messages of {self.model} calls a function: {advice}"

    def request_turn(self, messages: list[Message], form: Form) -> tuple[Message, Message, bool]:
        """The next turn of the model, its usage, and whether it was cut. Raises EpisodeFailed if the API refuses."""
        import openai

        problem: Exception
        for _ in range(TRIES):
            try:
                turn = self._request(messages, form)
                self._refused = 0
                return turn
            except openai.APIError as error:
                if isinstance(error, openai.APIConnectionError | openai.InternalServerError):
                    self._check_alive("does not answer any more", openai.InternalServerError)
                problem = error
                break
            except ValueError as error:  # no turn in the answer
                problem = error
        text = self._explain(problem, form.native)
        with self._lock:
            self._refused += 1
            if self._refused >= MOST_REFUSED:
                raise EndpointStopped(f"{self.url} gives no turn of {self.model}: {text}")
        raise EpisodeFailed(text)

    def _request(self, messages: list[Message], form: Form) -> tuple[Message, Message, bool]:
        """One request. If the API names another parameter that it wants, that is what it gets from then on; a model
        whose thought a stop string ended gets none of them any more."""
        import openai

        while True:
            quirks = frozenset(self._quirks)
            try:
                body = {"model": self.model, "messages": [to_send(message, quirks) for message in messages]}
                body |= self._options(form, quirks)
                reply = self._client.post("/chat/completions", body=body, cast_to=httpx.Response)
                self._note_name(reply)
                turn = read_turn(reply.content, form)
                if thinks(turn[0]) != "still" or turn[2] or form.native or "no stop" in quirks:
                    return turn
                self._quirks.add("no stop")
            except openai.BadRequestError as error:
                wanted = next((quirk for quirk, words in _QUIRKS.items() if words in str(error)), None)
                if wanted is None or wanted in quirks:
                    raise
                self._quirks.add(wanted)

    def _tell_of_retry(self, response: Any) -> None:
        number, status = int(response.request.headers.get("x-stainless-retry-count", 0)) + 1, response.status_code
        if status == 429 and b"insufficient_quota" in response.read():  # an empty account fills no sooner
            response.headers["x-should-retry"] = "false"  # which the client heeds
            return
        self._thread.told = number <= RETRIES and (status in (408, 409, 429) or status >= 500)
        if self._thread.told:
            self.tell(f"{status}, retry {number} of {RETRIES}")

    def _tell_of_silence(self, request: Any) -> None:
        number = request.headers.get("x-stainless-retry-count", "0")
        if number != "0" and not getattr(self._thread, "told", False):
            self.tell(f"no answer, retry {number} of {RETRIES}")
        self._thread.told = False

    def _note_name(self, reply: httpx.Response) -> None:
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):  # no chat completion
            if isinstance(name := reply.json()["model"], str) and name:
                self._answered_as.add(name)

    def _options(self, form: Form, quirks: frozenset[str]) -> dict[str, Any]:
        options = dict(form.fields)
        if "no stop" in quirks:
            options.pop("stop", None)
        if self.temperature is not None:
            options["temperature"] = self.temperature
        longest = [options.pop(name, None) for name in ("max_completion_tokens", "max_tokens")]
        if limit := self.max_new_tokens or longest[0] or longest[1]:
            is_new = longest[0] is not None or "completion tokens" in quirks
            options["max_completion_tokens" if is_new else "max_tokens"] = limit
        return options

    def _check_alive(self, what: str, *outages: type[Exception]) -> None:
        """Raise `EndpointStopped` where there is no connection to the endpoint, or one of ``outages``; not where it answers
        anything else, or has too much to do for it."""
        import openai

        try:
            self._client.with_options(max_retries=2, timeout=PROBE_SECONDS).models.list()
        except (openai.APIConnectionError, *outages) as error:
            if not isinstance(error, openai.APITimeoutError) or type(error.__cause__).__name__ == "ConnectTimeout":
                raise EndpointStopped(f"{self.url} {what}: {self._explain(error)}") from error
        except (openai.APIError, ValueError):
            pass  # not every server has a list of models

    def _explain(self, error: Exception, native: bool = False) -> str:
        """In one line, and without the key, which some servers repeat."""
        status, body = getattr(error, "status_code", None), getattr(error, "body", None)
        told = body.get("message") if isinstance(body, dict) else None
        text = str(told or error) + (f" ({error.__cause__})" if error.__cause__ and not told else "")
        if self._key:
            text = text.replace(self._key, "…")
        text = " ".join(text.split())[:_LONGEST_ERROR]
        if status == 404:
            text += " (is that the name of the model, and does the address end in /v1?)"
        if status == 401:
            text += f" (the key is ${self._key_variable}{'' if self._key else ', which is not set'}; see --api-key-env)"
        if native and status == 400 and "tool" in text:
            text += " (where it takes no tools, --format hermes has them in the text)"
        return f"{status}: {text}" if status else text


_QUIRKS = {  # what an API may want to be different, and the words by which it says so
    "completion tokens": "max_completion_tokens",
    "no stop": "'stop'",
    "reasoning": "reasoning_content",
}
_NUMBERS = re.compile(r"\b(?=\w*\d)[\w-]+")  # and ids of requests, in what a server says
_MOST_STOPS = 4  # strings that OpenAI takes; a turn is cut at all of them here in any case
_LONGEST_ERROR = 300  # characters


def _form_of(episode: Episode) -> Form:
    """How the model acts in an episode."""
    if episode.native:
        return Form(fields={"tools": episode.tools})
    fields = {"stop": list(episode.stop)} if 0 < len(episode.stop) <= _MOST_STOPS else {}
    return Form(fields=fields, end_turn=episode.end_turn)


class _Record:
    """The line of an episode in episodes.jsonl, as it grows."""

    def __init__(self, episode: Episode, opening: list[Message]):
        self._episode, self._recorder = episode, EpisodeRecorder(episode.env, episode.info)
        self._opening, self._messages, self._turns = opening, list(opening), list[dict]()
        self._tokens = {"prompt_tokens": 0, "completion_tokens": 0}
        self._terminated = False
        self.problem = ""

    def add(self, response: Message, usage: Message, reply: Reply, back: list[Message]) -> None:
        """A turn, and what came back to it."""
        action = _write_turn(response, self._episode.native)
        terms = {n.removeprefix("reward/"): v for n, v in reply.metrics.items() if n.startswith("reward/")}
        observation = "" if reply.terminated else "\n\n".join(message["content"] for message in back)
        turn = {"message": len(self._messages), "action": action, "next_observation": observation}
        self._turns.append(turn | self._recorder.record_turn() | {"reward": reply.reward, "reward_terms": terms})
        self._messages.append(self._episode.env.format.message(action))
        if reply.context is not None:  # a system message says that another context begins
            self._messages += [*self._opening[:-1], *reply.context]
        elif not reply.done:  # what it does not get to see is in the turn alone
            self._messages += back
        for name in self._tokens:
            self._tokens[name] += count if isinstance(count := usage.get(name), int) else 0
        self._terminated = reply.terminated

    def finish(self, origin: Origin, number: int, sample: int, seconds: float) -> dict:
        """The record. An episode that ended in a problem is failed, and so is one with a tool failure."""
        metrics = self._episode.metrics
        others = {"valid", "tool_faults", "score"} - {origin.score}
        info = {name: value for name, value in metrics.items() if "/" not in name and name not in others}
        faults = int(metrics.get("tool_faults", 0))
        return make_record(
            origin, {**self._recorder.instance, "instance": number, "sample": sample}, self._messages, self._turns, info,
            truncated=not self._terminated, failed=bool(self.problem or faults), tool_faults=faults, **self._tokens,
            seconds=round(seconds, 3),
        )  # fmt: skip


def _write_turn(response: Message, native: bool) -> str:
    """A turn in one text: of function calls the message as JSON, as the format "native" has it; a thought that came beside a
    turn in text comes before it."""
    if native:
        return dumps({name: value for name, value in response.items() if value})
    thought = response["reasoning_content"]
    return f"<think>\n{thought}\n</think>\n\n{response['content']}" if thought else response["content"]
