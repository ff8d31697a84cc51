"""The `openai` client that a Python function gets: it hands chat calls to their episode without HTTP.

A request over HTTP takes four milliseconds of the CPU that also samples. Other requests (a stream, a raw response, a copy of
the client with other options) go over HTTP, as with any client.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx
import openai
from openai.types.chat import ChatCompletion

from trainers.agents.calls import CallRefused
from trainers.agents.endpoint import Find, read_call, submit, write_completion

_FIELDS = {
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stop", "n", "max_tokens", "max_completion_tokens",
    "temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "logprobs", "top_logprobs", "response_format",
}  # fmt: skip
_ERRORS = {400: openai.BadRequestError, 401: openai.AuthenticationError, 403: openai.PermissionDeniedError}


def connect(client: Any, find: Find) -> None:
    """Let a client hand its chat calls to the episode of its key."""
    over_http = client.chat.completions.create

    def create(*values: Any, **arguments: Any) -> Any:
        if values or (body := _read_body(arguments)) is None:
            return over_http(*values, **arguments)
        try:
            turn = submit(find, client.api_key, read_call(body)).answer.result()
        except CallRefused as error:
            raise _to_api_error(error, client) from None
        return ChatCompletion.model_validate(write_completion(turn, body))

    async def create_async(*values: Any, **arguments: Any) -> Any:
        if values or (body := _read_body(arguments)) is None:
            return await over_http(*values, **arguments)
        try:
            turn = await asyncio.wrap_future(submit(find, client.api_key, read_call(body)).answer)
        except CallRefused as error:
            raise _to_api_error(error, client) from None
        return ChatCompletion.model_validate(write_completion(turn, body))

    client.chat.completions.create = create_async if isinstance(client, openai.AsyncOpenAI) else create


def _read_body(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Copy arguments to the body of a request; None if the request has to go over HTTP."""
    given = {name: value for name, value in arguments.items() if not isinstance(value, openai.Omit | openai.NotGiven)}
    if not {"model", "messages"} <= given.keys() <= _FIELDS:
        return None
    try:
        return json.loads(json.dumps(given, default=_to_plain))
    except (TypeError, ValueError, RecursionError):  # the client reports what is wrong
        return None


def _to_plain(value: Any) -> Any:
    if isinstance(value, openai.BaseModel):
        return value.to_dict(mode="json")
    raise TypeError(f"{type(value).__name__} is no JSON")


def _to_api_error(error: CallRefused, client: Any) -> openai.APIStatusError:
    told = error.as_json()
    request = httpx.Request("POST", f"{client.base_url}chat/completions")
    response: Any = httpx.Response(error.status, json={"error": told}, request=request)
    return _ERRORS[error.status](f"Error code: {error.status} - {error}", response=response, body=told)
