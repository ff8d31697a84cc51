"""The endpoint by its protocol; `benchmarks/agent_attacks.py` attacks it."""

import asyncio
import json
import resource
import socket

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessage

from trainers.agents.calls import CallRefused, Turn
from trainers.agents.client import connect
from trainers.agents.endpoint import BODY_BYTES, Endpoint, read_call

CALL = {"id": "call_1_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
SAID = {"role": "assistant", "content": "", "tool_calls": [CALL]}
HELLO = [{"role": "user", "content": "hello"}]


class Callee:
    """Answers a call with what its last message says, or as `SAID` where it has tools."""

    def __init__(self):
        self.calls, self.paid = [], []

    def submit(self, call):
        self.calls.append(call)
        message = SAID if call.tools else {"role": "assistant", "content": call.messages[-1]["content"]}
        reason = "tool_calls" if call.tools else "stop"
        call.answer.set_result(Turn(message=message, finish_reason=reason, prompt_tokens=7, completion_tokens=2))

    def call_tool(self, name, arguments):
        if name != "add":
            raise LookupError(f"there is no tool {name!r}")
        return str(sum(arguments.values()))

    def reward(self, value):
        self.paid.append(value)


@pytest.fixture(scope="module")
def served():
    callees = {"one": Callee(), "two": Callee()}
    endpoint = Endpoint(callees.get)
    yield endpoint.url, callees
    endpoint.close()


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=served[0], api_key="one", max_retries=0) as client:
        yield client


def test_a_turn_comes_in_the_form_of_the_api(client, served):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    create = client.chat.completions.create
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        *HELLO,
    ]
    reply = create(model="m", messages=messages, tools=tools, max_tokens=5, stop="x", temperature=0.5)
    (choice,) = reply.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert choice.message.tool_calls[0].function.arguments == '{"a": 1}' and reply.usage.total_tokens == 9
    call = served[1]["one"].calls[-1]
    assert call.messages[0] == {"role": "system", "content": "ab"}
    assert (call.max_tokens, call.stop, call.temperature, call.tools) == (5, ("x",), 0.5, tools)
    assert not create(model="m", messages=HELLO, tools=tools, tool_choice="none").choices[0].message.tool_calls
    empty = create(model="m", messages=[{"role": "user", "content": ""}]).choices[0].message
    assert empty.content == "", "programs would fail on None, and so escape a penalty"
    assert [model.id for model in client.models.list()] == ["policy"]


def test_a_stream_holds_the_same(client):
    tools = [{"type": "function", "function": {"name": "add"}}]
    with client.chat.completions.stream(model="m", messages=HELLO, tools=tools) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.message.tool_calls[0].function.name == "add" and final.finish_reason == "tool_calls"
    chunks = list(
        client.chat.completions.create(model="m", messages=HELLO, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "hello"
    assert chunks[-1].usage.completion_tokens == 2


def test_tools_and_rewards_of_the_episode(served):
    url, callees = served
    headers = {"Authorization": "Bearer two"}
    assert httpx.post(f"{url}/tools/add", json={"a": 1, "b": 2}, headers=headers).json() == {"result": "3"}
    assert httpx.post(f"{url}/tools/no", json={}, headers=headers).status_code == 404
    assert httpx.post(f"{url}/reward", json={"reward": 0.5}, headers=headers).status_code == 200
    assert httpx.post(f"{url}/reward", content=b'{"reward": NaN}', headers=headers).status_code == 400
    assert callees["two"].paid == [0.5] and not callees["one"].paid


ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
MADE = ChatCompletionMessage.model_validate(SAID)


@pytest.mark.parametrize(
    ("arguments", "is_local"),
    [
        ({}, True),
        ({"tools": [ADD], "logprobs": True, "stop": openai.omit, "max_tokens": 9}, True),
        ({"messages": [*HELLO, MADE, {"role": "tool", "tool_call_id": "call_1_0", "content": "3"}]}, True),
        ({"messages": [*HELLO, {"role": "assistant", "tool_calls": MADE.tool_calls}], "tools": [ADD]}, True),
        ({"n": 2}, True),
        ({"messages": []}, True),
        ({"api_key": "three"}, True),
        ({"timeout": 9.0}, False),
        ({"extra_body": {"n": 2}}, False),
        ({"messages": [{"role": "user", "content": {"a set"}}]}, False),
        ({"extra_headers": {"X-A": "b"}, "stream": True}, False),
    ],
)  # fmt: skip
def test_a_function_s_client_answers_as_one_over_http(served, arguments, is_local, monkeypatch):
    url, callees = served
    options = {"base_url": url, "api_key": arguments.pop("api_key", "one"), "max_retries": 0, "timeout": None}
    over_http, direct, sent, seen = openai.OpenAI(**options), openai.OpenAI(**options), [], []
    connect(direct, callees.get)
    post = openai.OpenAI.post
    monkeypatch.setattr(openai.OpenAI, "post", lambda *a, **how: sent.append(a) or post(*a, **how))
    for one in (over_http, direct):
        monkeypatch.setattr(one.chat.completions, "_post", one.post)
        with one:
            try:
                reply = one.chat.completions.create(**{"model": "m", "messages": HELLO} | arguments)
                parts = [part.model_dump(exclude={"id"}) for part in (reply if "stream" in arguments else [reply])]
                seen.append((parts, callees["one"].calls[-1].messages))
            except (openai.OpenAIError, TypeError) as error:
                seen.append((type(error), [getattr(error, name, None) for name in ("status_code", "code", "body")]))
    assert seen[0] == seen[1]
    assert len(sent) == (1 if is_local else 2)


def test_an_async_function_s_client_answers_too(served):
    url, callees = served

    async def ask(key: str) -> str:
        async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
            connect(client, callees.get)
            return (await client.chat.completions.create(model="m", messages=HELLO)).choices[0].message.content

    assert asyncio.run(ask("one")) == "hello"
    with pytest.raises(openai.AuthenticationError, match="of no episode that is running"):
        asyncio.run(ask("three"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n": 2}, "n must be 1 here, got 2"),
        ({"messages": []}, "messages must be a list of objects, one at least"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "the role of a message must be one of"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "must be text, or a list of parts that are text"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "must have a tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "must be a list of function calls"),
        ({"response_format": {"type": "json_object"}}, "response_format must be {'type': 'text'} here"),
        ({"functions": [{}]}, "use tools"),
        ({"tools": [{"type": "function"}]}, "tools has no valid value"),
        ({"tools": [{"function": {"name": "a", "parameters": {"properties": 1}}}]}, "tools has no valid value"),
        ({"stop": [3]}, "stop has no valid value"),
        ({"max_tokens": 0}, "max_tokens has no valid value"),
        ({"max_tokens": True, "max_completion_tokens": None}, "max_tokens has no valid value, got True"),
        ({"max_completion_tokens": 0, "max_tokens": 5}, "max_completion_tokens has no valid value, got 0"),
        ({"stream": True, "stream_options": "x"}, "stream_options has no valid value"),
        ({"temperature": "hot"}, "temperature has no valid value"),
        (b"{", "The body must be a JSON object"),
        (b"[" * 100_000, "The body must be a JSON object"),
        (b"\xff", "utf-8"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused_with_a_reason(served, changes, said):
    body = changes if isinstance(changes, bytes) else json.dumps({"messages": HELLO} | changes).encode()
    reply = httpx.post(f"{served[0]}/chat/completions", content=body, headers={"Authorization": "Bearer one"})
    assert reply.status_code == 400 and said in reply.json()["error"]["message"]


@pytest.mark.parametrize("given", [{}, {"parameters": None}, {"parameters": {}}, {"parameters": {"properties": None}}])
def test_a_tool_without_arguments_needs_no_schema(given):
    (tool,) = read_call({"messages": HELLO, "tools": [{"function": {"name": "now", **given}}]}).tools
    assert tool["type"] == "function" and tool["function"]["parameters"]["properties"] == {}


def test_a_refusal_of_the_episode(served, client):
    def refuse(call):
        raise CallRefused(403, "the episode of this key has ended", "episode_ended")

    callee = served[1]["two"]
    callee.submit = refuse
    with pytest.raises(openai.PermissionDeniedError, match="has ended"):
        client.with_options(api_key="two").chat.completions.create(model="m", messages=HELLO)
    del callee.submit


@pytest.fixture
def many_files():
    """This process may open 2,048 files; often the limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"a process may open only {hard} files here")
    if soft != resource.RLIM_INFINITY and soft < 2048:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_huge_body_is_refused_and_idle_connections_hold_up_nobody(served, client, many_files):
    reply = httpx.post(f"{served[0]}/chat/completions", content=b" " * (BODY_BYTES + 1))
    assert reply.status_code == 413
    address = client.base_url.host, client.base_url.port
    idle = [socket.create_connection(address, timeout=10) for _ in range(600)]  # uvicorn's limit here would be 512
    assert client.chat.completions.create(model="m", messages=HELLO).choices[0].message.content == "hello"
    for one in idle:
        one.close()
