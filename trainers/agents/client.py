"""The `openai` client that a Python function gets: it hands its calls of chat to their episode, without HTTP.

To write, send and read a request takes four milliseconds of the CPU that also samples. Whatever is asked for in another way
(a stream, a raw response, a timeout, another address) goes over HTTP, as with any client.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import httpx
import openai
from openai.resources.chat import AsyncChat, AsyncCompletions, Chat, Completions
from openai.types.chat import ChatCompletion

from trainers.agents.calls import Call, CallRefused
from trainers.agents.endpoint import Callee, find_callee, read_call, write_completion

_FIELDS = {
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stop", "n", "max_tokens", "max_completion_tokens",
    "temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "logprobs", "top_logprobs", "response_format",
}  # fmt: skip
_ERRORS = {400: openai.BadRequestError, 401: openai.AuthenticationError, 403: openai.PermissionDeniedError}
Find = Callable[[str], Callee | None]


class _Completions(Completions):
    def create(self, *values: Any, **arguments: Any) -> Any:
        """As of the API."""
        client: Any = self._client
        if values or (body := _read_body(client, arguments)) is None:
            return super().create(*values, **arguments)
        try:
            turn = _submit(client, body).answer.result()
        except CallRefused as error:
            raise _to_api_error(error, client) from None
        return ChatCompletion.model_validate(write_completion(turn, body))


class _AsyncCompletions(AsyncCompletions):
    async def create(self, *values: Any, **arguments: Any) -> Any:
        """As of the API."""
        client: Any = self._client
        if values or (body := _read_body(client, arguments)) is None:
            return await super().create(*values, **arguments)
        try:
            turn = await asyncio.wrap_future(_submit(client, body).answer)
        except CallRefused as error:
            raise _to_api_error(error, client) from None
        return ChatCompletion.model_validate(write_completion(turn, body))


class _Chat(Chat):
    @cached_property
    def completions(self) -> Completions:
        return _Completions(self._client)


class _AsyncChat(AsyncChat):
    @cached_property
    def completions(self) -> AsyncCompletions:
        return _AsyncCompletions(self._client)


def make_clients(find: Find, url: str) -> tuple[type[openai.OpenAI], type[openai.AsyncOpenAI]]:
    """The classes of the clients of an endpoint, which also copies with other options have. ``find``: the episode of a key."""

    class Client(openai.OpenAI):
        endpoint = find, url

        @cached_property
        def chat(self) -> Chat:
            return _Chat(self)

    class AsyncClient(openai.AsyncOpenAI):
        endpoint = find, url

        @cached_property
        def chat(self) -> AsyncChat:
            return _AsyncChat(self)

    return Client, AsyncClient


def _read_body(client: Any, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """The body of a request, a copy of its own; None where it has to go over HTTP."""
    given = {name: value for name, value in arguments.items() if not isinstance(value, openai.Omit | openai.NotGiven)}
    is_local = client.timeout is None and client.api_key and str(client.base_url).rstrip("/") == client.endpoint[1]
    if not is_local or not {"model", "messages"} <= given.keys() <= _FIELDS:
        return None
    try:
        return json.loads(json.dumps(given, default=_to_plain))
    except (TypeError, ValueError, RecursionError):  # the client says what is wrong with it
        return None


def _to_plain(value: Any) -> Any:
    if isinstance(value, openai.BaseModel):
        return value.to_dict(mode="json")
    raise TypeError(f"{type(value).__name__} is no JSON")


def _submit(client: Any, body: dict[str, Any]) -> Call:
    callee, call = find_callee(client.endpoint[0], client.api_key), read_call(body)
    callee.submit(call)
    return call


def _to_api_error(error: CallRefused, client: Any) -> openai.APIStatusError:
    told = {"message": str(error), "type": "invalid_request_error", "param": None, "code": error.code}
    request = httpx.Request("POST", f"{client.endpoint[1]}/chat/completions")
    response: Any = httpx.Response(error.status, json={"error": told}, request=request)
    return _ERRORS[error.status](f"Error code: {error.status} - {error}", response=response, body=told)
