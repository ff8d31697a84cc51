"""A model of an OpenAI-compatible endpoint as an agent: it acts in many episodes at once, and each leaves a record.

The model calls the environment's tools as functions, or writes its turns as text in one of our formats. Requests with
temporary failures are repeated; an episode that cannot be finished has failed.
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
RETRIES = 6  # of a request, by the openai client, after pauses of 0.5 s, doubled up to 8 s: 24 s in all
TRIES = 3  # requests for a turn, if the answers hold none
MOST_REFUSED = 3  # turns in a row without an answer, after which the endpoint is given up
CONNECT_SECONDS, PROBE_SECONDS = 5.0, 15.0

E = TypeVar("E")
Job = tuple[int, int]  # the number of an instance, and of a rollout of it


class EpisodeFailed(Exception):
    """An episode cannot continue; the message states the reason."""


class EndpointStopped(TrainingStopped):
    """The endpoint cannot be reached, or refuses all requests."""


def make_episode(id: str, format: str, /, **env_kwargs: Any) -> Episode:
    """Make an episode in which a model of an API can act, by "native" function calls or in a text ``format``. Raises a
    ValueError if the task or the format does not support chat APIs."""
    episode = Episode(id, **env_kwargs | ({"format": format} if format else {}))
    if episode.native and episode.env.context is not None:
        raise UserError(
            "function calls cannot use a rewritten context: leave context at 'append', or choose a --format of text"
        )
    return episode


def choose_format(id: str, format: str, env_kwargs: Mapping[str, Any]) -> str:
    """Choose function calls if no format is given and the task allows them; "" is the environment's own format."""
    format = format or (NATIVE if env_kwargs.get("format") == NATIVE else "")
    if format or "format" in env_kwargs or env_kwargs.get("context", "append") != "append":
        return format
    try:
        make_episode(id, NATIVE, **env_kwargs).close()
    except ValueError:
        make_episode(id, "", **env_kwargs).close()  # raises if something else is wrong
        return ""
    return NATIVE


class ApiAgent:
    """One model of an endpoint.

    Args:
        url: base of the API, such as ``http://127.0.0.1:8000/v1``.
        key_variable: the environment variable that holds the API key; if it is not set, the key "none" is sent.
        temperature, max_new_tokens: None for the server's defaults.
        timeout: seconds to wait for an answer.
        known_to_fail: number of episodes that failed in an earlier run; if they fail again, the endpoint is not given up.

    Attributes:
        problems: counts of the reasons why episodes could not be finished; reasons that differ only in numbers are one.
        tell: called with a short text when a request is repeated.
    """

    def __init__(
        self, url: str, model: str, origin: Origin, *, key_variable: str = "OPENAI_API_KEY",
        temperature: float | None = None, max_new_tokens: int | None = None, timeout: float = 600.0, known_to_fail: int = 0,
    ):  # fmt: skip
        self.url, self.model, self.origin = url, model, origin
        self.temperature, self.max_new_tokens, self.timeout = temperature, max_new_tokens, timeout
        self.problems: Counter[str] = Counter()
        self.tell: Callable[[str], object] = lambda text: None
        self._answered_as: set[str] = set()  # names of models in the answers
        self._native = False  # whether the model calls functions
        self._key_variable = key_variable
        self._key = os.environ.get(key_variable, "").strip()  # with a newline in a header, the error would show the key
        self._quirks: set[str] = set()  # those of `_QUIRKS` that the API has shown
        self._refused = -known_to_fail  # turns in a row without an answer
        self._lock, self._thread = Lock(), local()

    def run(
        self, run_episode: Callable[[E, int, int], dict], episodes: Sequence[E], jobs: Iterable[Job],
        keep: Callable[[dict], None],
    ) -> None:  # fmt: skip
        """Run the jobs, with each of ``episodes`` in a thread of its own.

        ``run_episode`` gets one of ``episodes``, the number of an instance and the number of its rollout. It returns a record,
        which ``keep`` gets immediately. Raises EndpointStopped if the endpoint cannot be reached, or refuses all requests.
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
        http: Any = openai.DefaultHttpxClient  # made with httpx, or with its successor
        hooks = {"request": [self._tell_of_silence], "response": [self._tell_of_retry]}
        with openai.OpenAI(
            base_url=base, api_key=self._key or "none", timeout=seconds, max_retries=RETRIES,
            http_client=http(limits=httpx.Limits(max_connections=None), event_hooks=hooks),
        ) as self._client:  # fmt: skip
            self._check_alive("does not answer")
            for episode in episodes:
                Thread(target=work, args=(episode,), daemon=True).start()  # daemon: a hung thread blocks no exit
            while running:
                result = results.get()
                if isinstance(result, BaseException):
                    raise result
                if result is None:
                    running -= 1
                else:
                    keep(result)

    def run_episode(self, episode: Episode, number: int, sample: int) -> dict:
        """Let the model act in an episode; return its record."""
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
        """Count the reason why an episode could not be finished."""
        with self._lock:
            same = (known for known in self.problems if _NUMBERS.sub("", known) == _NUMBERS.sub("", problem))
            self.problems[next(same, problem)] += 1

    def find_oddities(self, records: Iterable[dict]) -> Iterator[str]:
        """Yield a line for each oddity of the answers: another model's name, or no function call in any message."""
        wanted = self.model.lower().rpartition("/")[2]
        others = [name for name in sorted(self._answered_as) if wanted not in name.lower()]
        if others:
            yield f"{self.url} was asked for {self.model}, and answers as {', '.join(others)}"
        turns = [turn for record in records for turn in record["turns"]]
        if turns and self._native and not any('"tool_calls"' in turn["action"] for turn in turns):
            advice = "does the server pass tools on? Try --format tags"
            yield f"none of {len(turns)} messages of {self.model} calls a function: {advice}"

    def request_turn(self, messages: list[Message], form: Form) -> tuple[Message, Message, bool]:
        """Request the next turn; return it, its token usage, and whether it was cut. Raises EpisodeFailed or EndpointStopped."""
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
        """Request a turn once. If the API asks for another parameter, later requests use it. If a stop string ended a thought,
        later requests have no stop strings."""
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
        if status == 429 and b"insufficient_quota" in response.read():  # waiting does not refill an empty account
            response.headers["x-should-retry"] = "false"  # the openai client obeys this header
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
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):  # not a chat completion
            if isinstance(name := reply.json()["model"], str) and name:
                self._answered_as.add(name)

    def _options(self, form: Form, quirks: frozenset[str]) -> dict[str, Any]:
        options = dict(form.fields)
        if "no stop" in quirks:
            options.pop("stop", None)
        if self.temperature is not None:
            options["temperature"] = self.temperature
        longest = [options.pop(name, None) for name in ("max_completion_tokens", "max_tokens")]
        if limit := min(filter(None, (self.max_new_tokens, *longest)), default=None):
            is_new = longest[0] is not None or "completion tokens" in quirks
            options["max_completion_tokens" if is_new else "max_tokens"] = limit
        return options

    def _check_alive(self, what: str, *outages: type[Exception]) -> None:
        """Raise `EndpointStopped` if the endpoint cannot be reached, or fails with one of ``outages``; not if it answers
        anything else, or is too busy to answer in time."""
        import openai

        try:
            self._client.with_options(max_retries=2, timeout=PROBE_SECONDS).models.list()
        except (openai.APIConnectionError, *outages) as error:
            if not isinstance(error, openai.APITimeoutError) or type(error.__cause__).__name__ == "ConnectTimeout":
                raise EndpointStopped(f"{self.url} {what}: {self._explain(error)}") from error
        except (openai.APIError, ValueError):
            pass  # not every server has a list of models

    def _explain(self, error: Exception, native: bool = False) -> str:
        """Describe an error in one line, without the API key, which some servers repeat."""
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
            text += " (if the API takes no tools, --format hermes writes them in the text)"
        return f"{status}: {text}" if status else text


_QUIRKS = {  # deviations that an API may require, and the words of its error that name them
    "completion tokens": "max_completion_tokens",
    "no stop": "'stop'",
    "reasoning": "reasoning_content",
}
_NUMBERS = re.compile(r"\b(?=\w*\d)[\w-]+")  # numbers and ids of requests in an error
_MOST_STOPS = 4  # stop strings that OpenAI accepts; we cut a turn at all of them in any case
_LONGEST_ERROR = 300  # characters


def _form_of(episode: Episode) -> Form:
    """Return how the model acts in an episode."""
    if episode.native:
        return Form(fields={"tools": episode.tools})
    fields = {"stop": list(episode.stop)} if 0 < len(episode.stop) <= _MOST_STOPS else {}
    return Form(fields=fields, end_turn=episode.end_turn)


class _Record:
    """The record of a running episode for episodes.jsonl."""

    def __init__(self, episode: Episode, opening: list[Message]):
        self._episode, self._recorder = episode, EpisodeRecorder(episode.env, episode.info)
        self._opening, self._messages, self._turns = opening, list(opening), list[dict]()
        self._tokens = {"prompt_tokens": 0, "completion_tokens": 0}
        self._terminated = False
        self.problem = ""

    def add(self, response: Message, usage: Message, reply: Reply, back: list[Message]) -> None:
        """Add a turn, and the reply to it."""
        action = _write_turn(response, self._episode.native)
        terms = {n.removeprefix("reward/"): v for n, v in reply.metrics.items() if n.startswith("reward/")}
        observation = "" if reply.terminated else "\n\n".join(message["content"] for message in back)
        turn = {"message": len(self._messages), "action": action, "next_observation": observation}
        self._turns.append(turn | self._recorder.record_turn() | {"reward": reply.reward, "reward_terms": terms})
        self._messages.append(self._episode.env.format.message(action))
        if reply.context is not None:  # a system message marks the beginning of another context
            self._messages += [*self._opening[:-1], *reply.context]
        elif not reply.done:  # the last observation, which the model does not see, is only in the turn
            self._messages += back
        for name in self._tokens:
            self._tokens[name] += count if isinstance(count := usage.get(name), int) else 0
        self._terminated = reply.terminated

    def finish(self, origin: Origin, number: int, sample: int, seconds: float) -> dict:
        """Make the record. An episode has failed if it ended with a problem, or if a tool failed."""
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
    """Write a turn as one text: with function calls, the message as JSON, as in the format "native"; else the text, after its
    separate thought, if any."""
    if native:
        return dumps({name: value for name, value in response.items() if value})
    thought = response["reasoning_content"]
    return f"<think>\n{thought}\n</think>\n\n{response['content']}" if thought else response["content"]
