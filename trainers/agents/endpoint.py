"""The OpenAI-compatible endpoint in front of the policy, on this machine only.

    POST /v1/chat/completions   a turn of the episode whose key the request has
    POST /v1/responses          the same in the form of the Responses API
    GET  /v1/models
    POST /v1/tools/NAME         a tool of the episode's environment, for programs that are not Python functions
    POST /v1/reward             {"reward": 0.5} is added to the latest turn

Refusals are {"error": {"message", "code"}}. A chat stream is sent when its turn is complete. Needs the extra `[agents]`.
"""

import asyncio
import json
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from agent_envs.formats.base import Malformed
from agent_envs.formats.json_text import read_object
from retrieval_index.server import CLIENT_GONE, CONNECTION_LIMITS, read_body
from trainers.agents.calls import Call, CallRefused, Message, Turn, text_of
from trainers.agents.responses import read_request, write_response

MODEL = "policy"
BODY_BYTES = 16 * 2**20
_ONLY: dict[str, tuple[Any, str]] = {
    "n": (1, "make several calls"),
    "response_format": ({"type": "text"}, "sampling is not constrained"),
    "functions": ([], "use tools"),
}
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class Callee(Protocol):
    """An episode as the endpoint sees it."""

    def submit(self, call: Call) -> None:
        """Have a call answered."""

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool of the environment; return its text. Raises LookupError if there is no such tool."""

    def reward(self, value: float) -> None:
        """Add a reward to the latest turn."""


Find = Callable[[str], Callee | None]  # the episode of a key; None if there is none


class Endpoint:
    """The endpoint's server, in a thread.

    Attributes:
        url: the base URL for clients.
    """

    def __init__(self, find: Find, port: int = 0):
        limits = CONNECTION_LIMITS | {"limit_concurrency": None, "timeout_graceful_shutdown": 1}
        self._server = uvicorn.Server(uvicorn.Config(make_app(find), port=port, log_level="warning", **limits))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise OSError(f"the endpoint cannot listen on port {port} of 127.0.0.1: give another one")
            time.sleep(0.005)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}/v1"

    def close(self) -> None:
        """End the server."""
        self._server.should_exit = True
        self._thread.join(5)


def make_app(find: Find) -> FastAPI:
    """Make the ASGI application."""
    app = FastAPI(title="policy", openapi_url=None)
    _answer_errors(app)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "trainers"}]}

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        body = await read_json(request)
        turn = await asyncio.wrap_future(submit(find, _key_of(request), read_call(body)).answer)
        if body.get("stream"):
            return Response("".join(_write_chunks(turn, body)), media_type="text/event-stream")
        return JSONResponse(write_completion(turn, body))

    @app.post("/v1/responses")
    async def respond(request: Request) -> Response:
        body = await read_json(request)
        call = submit(find, _key_of(request), read_call(read_request(body)))
        return JSONResponse(write_response(await asyncio.wrap_future(call.answer), body))

    @app.post("/v1/tools/{name}")
    async def use_tool(request: Request, name: str) -> Response:
        callee, arguments = find_callee(find, _key_of(request)), await read_json(request)
        try:
            return JSONResponse({"result": await asyncio.to_thread(callee.call_tool, name, arguments)})
        except LookupError as error:
            raise CallRefused(404, str(error)) from error

    @app.post("/v1/reward")
    async def reward(request: Request) -> Response:
        callee, body = find_callee(find, _key_of(request)), await read_json(request)
        if not isinstance(value := body.get("reward"), int | float) or not math.isfinite(value):
            raise CallRefused(400, f"reward must be a finite number, got {value!r}")
        callee.reward(float(value))
        return JSONResponse({})

    return app


async def read_json(request: Request) -> dict[str, Any]:
    """Read the body, an object of at most `BODY_BYTES`."""
    body = await read_body(request, BODY_BYTES)
    try:
        return read_object(body.decode(), "The body")
    except (Malformed, UnicodeDecodeError, RecursionError) as problem:
        raise CallRefused(400, str(problem)) from None


def find_callee(find: Find, key: str) -> Callee:
    """The episode of a key. Raises CallRefused if there is none."""
    if (callee := find(key)) is None:
        raise CallRefused(401, "the key is of no episode that is running", "invalid_api_key")
    return callee


def submit(find: Find, key: str, call: Call) -> Call:
    """Have a call answered by the episode of a key. Raises CallRefused."""
    find_callee(find, key).submit(call)
    return call


def _key_of(request: Request) -> str:
    return request.headers.get("authorization", "").removeprefix("Bearer ").strip()


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(CallRefused)
    async def refuse(request: Request, error: CallRefused) -> Response:
        return JSONResponse({"error": error.as_json()}, error.status, {"x-should-retry": "false"})

    @app.exception_handler(ClientDisconnect)
    async def leave(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_GONE)


def read_call(body: Mapping[str, Any]) -> Call:
    """Read a chat request. Raises CallRefused for invalid or unsupported values; the docs list the options that are ignored."""
    for name, (only, advice) in _ONLY.items():
        if body.get(name) not in (None, only):
            raise CallRefused(400, f"{name} must be {only!r} here, got {body[name]!r:.200}: {advice}")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise CallRefused(400, "messages must be a list of objects, one at least")
    stop = body.get("stop") or ()
    stop = tuple(stop) if isinstance(stop, list | tuple) else (stop,)
    tools = [] if body.get("tool_choice") == "none" else body.get("tools") or []
    limit = next((name for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None), "max_tokens")
    longest = body.get(limit)
    temperature = body.get("temperature")
    checks = {
        "stop": all(isinstance(string, str) and string for string in stop),
        "tools": isinstance(tools, list) and all(map(_is_tool, tools)),
        limit: longest is None or (type(longest) is int and longest >= 1),
        "temperature": temperature is None or isinstance(temperature, int | float),
        "stream_options": isinstance(body.get("stream_options"), dict | None),
    }
    if wrong := [name for name, is_right in checks.items() if not is_right]:
        raise CallRefused(400, f"{wrong[0]} has no valid value, got {body.get(wrong[0])!r}"[:300])
    return Call(
        messages=[_read_message(message) for message in messages], tools=[_read_tool(tool) for tool in tools], stop=stop,
        max_tokens=longest, temperature=temperature, body=body,
    )  # fmt: skip


def _is_function(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type", "function") == "function" else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _is_tool(tool: Any) -> bool:
    schema = _is_function(tool) and (tool["function"].get("parameters") or {})
    return isinstance(schema, dict) and isinstance(schema.get("properties") or {}, dict)


def _read_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool that takes no arguments may have no schema; chat templates and readers of calls need one."""
    schema = dict(tool["function"].get("parameters") or {"type": "object"})
    schema["properties"] = schema.get("properties") or {}
    return {"type": "function", "function": {**tool["function"], "parameters": schema}}


def _read_message(message: Mapping[str, Any]) -> Message:
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        raise CallRefused(400, f"the role of a message must be one of {', '.join(_ROLES)}, got {message.get('role')!r}")
    read: Message = {"role": role, "content": text_of(message.get("content"))}
    if role == "tool":
        if not isinstance(message.get("tool_call_id"), str):
            raise CallRefused(400, "a message of the role tool must have a tool_call_id")
        read["tool_call_id"] = message["tool_call_id"]
    if role == "assistant" and (calls := message.get("tool_calls")):
        if not isinstance(calls, list) or not all(_is_function(call) for call in calls):
            raise CallRefused(400, "tool_calls must be a list of function calls")
        read["tool_calls"] = calls
    if role == "assistant" and isinstance(thought := message.get("reasoning_content"), str):
        read["reasoning_content"] = thought
    return read


def write_completion(turn: Turn, body: Mapping[str, Any]) -> dict[str, Any]:
    """Write a turn as the answer to a chat request."""
    absent = None if turn.message.get("tool_calls") else ""
    message = turn.message | {"content": turn.message["content"] or absent, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": turn.finish_reason, "logprobs": None}
    return _head(body, "chat.completion") | {"choices": [choice], "usage": _usage(turn)}


def _head(body: Mapping[str, Any], kind: str) -> dict[str, Any]:
    id, model = f"chatcmpl-{secrets.token_hex(12)}", str(body.get("model") or MODEL)
    return {"id": id, "object": kind, "created": 0, "model": model}


def _usage(turn: Turn) -> dict[str, int]:
    prompt, sampled = turn.prompt_tokens, turn.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _write_chunks(turn: Turn, body: Mapping[str, Any]) -> Iterator[str]:
    """Write a turn as a stream: its message, why it ended, and its usage if requested."""
    delta = dict(turn.message)
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(delta["tool_calls"])]
    head = _head(body, "chat.completion.chunk")
    for part, reason in ((delta, None), ({}, turn.finish_reason)):
        choice = {"index": 0, "delta": part, "finish_reason": reason, "logprobs": None}
        yield f"data: {json.dumps(head | {'choices': [choice]})}\n\n"
    if (body.get("stream_options") or {}).get("include_usage"):
        yield f"data: {json.dumps(head | {'choices': [], 'usage': _usage(turn)})}\n\n"
    yield "data: [DONE]\n\n"
