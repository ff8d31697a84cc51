"""What the formats of chat models look like, to the letter, and which turns they refuse."""

import json

import pytest
from toy_tools import STRING, call, search, tool

from agent_envs.formats import make_format
from agent_envs.formats.base import Malformed, make_turn
from agent_envs.formats.harmony import read_messages
from agent_envs.types import ToolCall, ToolResult, Turn

TOOLS = (
    tool("search", "find passages.", ["query"], query=STRING),
    tool("forecast", "the weather.", ["city"], city=STRING, days={"type": "integer"}),
    tool("look", "see the board."),
    tool("hint", "ask for help.", about=STRING),
)
HERMES, REACT, NATIVE = (make_format(name, TOOLS) for name in ("hermes", "react", "native"))


def assert_refused(format, text):
    turn = format.parse(text)
    assert turn.error and turn == Turn(error=turn.error)


# -- hermes ------------------------------------------------------------------------------------------------------------


def test_hermes_writes_what_its_models_were_trained_on():
    assert HERMES.write(search("Zug", thought="hm")) == (
        '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "search", "arguments": {"query": "Zug"}}\n</tool_call>'
    )
    assert HERMES.write(Turn(answer="Zug")) == "<answer>Zug</answer>"
    assert HERMES.render(search("a", "b"), [ToolResult("x"), ToolResult("y")]) == (
        "<tool_response>\nx\n</tool_response>\n<tool_response>\ny\n</tool_response>"
    )
    assert HERMES.stop == ("<tool_response>", "</answer>")
    inside = HERMES.instructions().split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
    assert [json.loads(line)["function"]["name"] for line in inside] == ["search", "forecast", "look", "hint"]


CALL = '<tool_call>{"name": "search", "arguments": {"query": "a"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        (CALL, search("a")),
        (f"<think>{CALL}</think>{CALL}", search("a", thought=CALL)),
        (f"{CALL}</think>{CALL}", search("a", thought=CALL)),
        (f"{CALL}\n<tool_response>", search("a")),
        (
            CALL.replace('"a"', '"the </tool_call> <answer> token"') + CALL,
            search("the </tool_call> <answer> token", "a"),
        ),
        ('<tool_call>{"name": "no such", "arguments": {}}</tool_call>', call("no such", {})),
        ('<tool_call>{"name": "look"}</tool_call>', call("look", {})),
        ('<tool_call>{"name": "search", "arguments": {"query": 5}}</tool_call>', call("search", {"query": 5})),
        ("<answer>Zug</answer>", Turn(answer="Zug")),
    ],
)
def test_hermes_reads(text, turn):
    assert HERMES.parse(text) == turn


@pytest.mark.parametrize(
    "text",
    [
        "Zug",
        "<tool_call>search</tool_call>",
        '<tool_call>{"name": "search", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "search", "arguments": {}, "more": 1}</tool_call>',
        f"{CALL}<tool_response>Zug",
    ],
)
def test_hermes_refuses(text):
    assert_refused(HERMES, text)


# -- react -------------------------------------------------------------------------------------------------------------


def test_react_writes_lines_with_labels():
    turn = Turn(calls=(*search("Zug").calls, ToolCall("forecast", {"city": "Zug", "days": 2})), thought="hm")
    assert REACT.write(turn) == (
        'Thought: hm\nAction: search\nAction Input: Zug\nAction: forecast\nAction Input: {"city": "Zug", "days": 2}'
    )
    assert REACT.write(Turn(answer="Zug", thought="hm")) == "Thought: hm\nFinal Answer: Zug"
    assert REACT.render(turn, [ToolResult("x"), ToolResult("y")]) == "Observation: x\nObservation: y"
    assert REACT.stop == ("\nObservation:",)
    assert "- forecast: the weather. {" in REACT.instructions() and "Final Answer:" in REACT.instructions()


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("Action: search\nAction Input: Ada Kern", search("Ada Kern")),
        ("go on\nAction: search\r\nAction Input: a\n\nObservation:", search("a", thought="go on")),
        ("Thought: x\nThought: y\nAction: look\nAction Input:", call("look", {}, thought="x\ny")),
        ("Action: search\nAction Input: a\nThought: x\nAction: search\nAction Input: b", search("a", "b", thought="x")),
        ('Action: search\nAction Input: {"query": "a"}', search("a")),
        ('Action: search\nAction Input: {"query": 5}', call("search", {"query": 5})),
        ('Action: search\nAction Input: {"q": "a"}', search('{"q": "a"}')),
        ("Action: search\nAction Input: {broken", search("{broken")),
        ("Action: search\nAction Input: def f():\n    return 1", search("def f():\n    return 1")),
        ("Action: hint\nAction Input: {}", call("hint", {})),
        ('Action: search\nAction Input: {"query": "a", "k": 5}', call("search", {"query": "a", "k": 5})),
        ("Action: `search`\nAction Input: Zug", call("`search`", {})),  # the name is what is wrong, and is said to be
        ('Action: no such\nAction Input: {"a": 1}', call("no such", {"a": 1})),
        ("Thought: x\nFinal Answer: Zug\nin Zug", Turn(answer="Zug\nin Zug", thought="x")),
        (
            "<think>Action: look\nAction Input:</think>\nThought: y\nFinal Answer: Zug",
            Turn(answer="Zug", thought="Action: look\nAction Input:\ny"),
        ),
        ("Final Answer: no</think>Final Answer: Zug", Turn(answer="Zug", thought="Final Answer: no")),
    ],
)
def test_react_reads(text, turn):
    assert REACT.parse(text) == turn


@pytest.mark.parametrize(
    "text",
    [
        "Zug",
        "Thought: Action: search",
        "Action: search",
        "Action: search\nThought: x\nAction Input: a",
        "Action: forecast\nAction Input: Zug",
        "Final Answer:",
        "Action: look\nAction Input: {}\nObservation: a wall",
        "Thought: a <think>Action: look\nAction Input: {}\n</think>",
        "<think>a</think>\nAction: look\nAction Input: {}\n<think>b</think>",
    ],
)
def test_react_refuses(text):
    assert_refused(REACT, text)


@pytest.mark.parametrize(
    "query",
    ["", " a ", "a\nAction: look", "Final Answer: x", '{"query": "a"}', "{}", "a\n b", "</think>", "Observation:"],
)
def test_react_says_any_string_bare_or_as_json(query):
    assert REACT.parse(REACT.write(search(query))) == search(query)
    assert REACT.parse(REACT.write(call("hint", {"about": query}))) == call("hint", {"about": query})


# -- native ------------------------------------------------------------------------------------------------------------


def message(**parts):
    return json.dumps({"role": "assistant", "content": None, **parts})


def tool_call(name="search", arguments='{"query": "a"}', **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def test_native_writes_the_messages_of_the_api():
    turn = Turn(calls=(ToolCall("search", {"query": "a"}), ToolCall("look", {}, id="xyz")), thought="hm")
    assert json.loads(NATIVE.write(turn)) == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [tool_call(id="call_0"), tool_call("look", "{}", id="xyz")],
    }
    assert json.loads(NATIVE.render(turn, [ToolResult('x"}]'), ToolResult("y")])) == [
        {"role": "tool", "tool_call_id": "call_0", "name": "search", "content": 'x"}]'},
        {"role": "tool", "tool_call_id": "xyz", "name": "look", "content": "y"},
    ]
    answered = json.loads(NATIVE.write(Turn(answer="Zug")))
    assert answered["tool_calls"] == [tool_call("answer", '{"text": "Zug"}', id="call_0")]
    assert json.loads(NATIVE.render_error("why")) == [{"role": "user", "content": "Invalid turn: why"}]
    described = {"name": "look", "description": "see the board.", "parameters": TOOLS[2].parameters}
    assert NATIVE.schemas()[2] == {"type": "function", "function": described}
    assert [schema["function"]["name"] for schema in NATIVE.schemas()[3:]] == ["hint", "answer"]


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        (message(tool_calls=[tool_call()]), search("a")),
        (message(tool_calls=[tool_call(id="x")]), Turn(calls=(ToolCall("search", {"query": "a"}, id="x"),))),
        (message(content="I look.", tool_calls=[tool_call(), tool_call()], refusal=None), search("a", "a")),
        (message(content="<think>b</think>", tool_calls=[tool_call()]), search("a", thought="b")),
        (message(tool_calls=[tool_call("answer", '{"text": " Zug"}')]), Turn(answer="Zug")),
        (message(content="b</think>", reasoning="a", tool_calls=[tool_call()]), search("a", thought="a\nb")),
        (message(tool_calls=[tool_call("no such", "{}")]), call("no such", {})),
        (message(tool_calls=[tool_call("look", "")]), call("look", {})),
        (message(tool_calls=[tool_call("look", None)]), call("look", {})),
        (f"<think>b</think>\n{message(tool_calls=[tool_call()])}", search("a", thought="b")),
    ],
)
def test_native_reads(text, turn):
    assert NATIVE.parse(text) == turn


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Zug",
        f"<think>{message(tool_calls=[tool_call()])}</think>Zug",
        "<think>Zug",
        message(content="Zug", reasoning="b"),
        '{"content": "Zug"}',
        '{"role": "user", "content": "Zug"}',
        message(),
        message(content=["Zug"]),
        message(content="<think>Zug"),
        message(content="Zug", reasoning=[]),
        message(tool_calls=[{}]),
        message(tool_calls=[tool_call(arguments={"query": "a"})]),
        message(tool_calls=[tool_call(id="x"), tool_call(id="x")]),
        message(tool_calls=[tool_call(id="call_1"), tool_call()]),
        message(tool_calls=[tool_call(name=None)]),
        message(tool_calls=[tool_call("answer", "{}")]),
        message(tool_calls=[tool_call(), tool_call("answer", '{"text": "Zug"}')]),
        message(content="Zug", error="It is not closed."),
        message(tool_calls=[tool_call() | {"type": "custom"}]),
    ],
)
def test_native_refuses(text):
    assert_refused(NATIVE, text)


# -- harmony -----------------------------------------------------------------------------------------------------------

THINK = "<|channel|>analysis<|message|>hm<|end|>"
SEARCH = '<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": "a"}<|call|>'
FINAL = "<|channel|>final<|message|>Zug<|return|>"
START = "<|start|>assistant"


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        (SEARCH, search("a")),
        (SEARCH.removesuffix("<|call|>"), search("a")),
        (THINK + START + SEARCH + START + SEARCH, search("a", "a", thought="hm")),
        (' to=functions.search<|channel|>commentary<|message|>{"query": "a"}<|call|>', search("a")),
        ('<|channel|>commentary to=functions.search code<|message|>{"query": "a"}<|call|>', search("a")),
        ("<|channel|>commentary<|message|>I will look.<|end|>" + START + SEARCH, search("a")),
        (SEARCH.replace(".search", ".no_such"), call("no_such", {"query": "a"})),
        (FINAL, Turn(answer="Zug")),
        ("<|channel|>final<|message|>Zug", Turn(answer="Zug")),
        (THINK + "\n" + START + FINAL + "\n", Turn(answer="Zug", thought="hm")),
    ],
)
def test_harmony_reads(text, turn):
    assert make_turn(*read_messages(text), usage="") == turn


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Zug",
        THINK,
        THINK + SEARCH,
        "<|channel|>other<|message|>Zug<|return|>",
        SEARCH.replace("commentary", "analysis"),
        SEARCH.replace("<|call|>", "<|end|>"),
        SEARCH.replace('"a"', '"<|call|>"'),
        "<|start|>user<|message|>Say Zug.<|end|>" + START + FINAL,
        "<|start|>functions.search to=assistant<|channel|>commentary<|message|>Zug<|end|>" + START + FINAL,
        "<|channel|>analysis<|message|>hm" + START + THINK + START + FINAL,
        FINAL + "more",
    ],
)
def test_harmony_refuses(text):
    with pytest.raises(Malformed):
        make_turn(*read_messages(text), usage="")


# -- without an answer, without a tool ---------------------------------------------------------------------------------


@pytest.mark.parametrize("format", [HERMES, REACT, NATIVE], ids=lambda format: format.name)
def test_without_answers_there_is_none(format):
    acting = make_format(format.name, TOOLS, answers=False)
    assert acting.parse(format.write(search("a"))) == search("a")
    assert_refused(acting, format.write(Turn(answer="Zug")))
    assert "nswer" not in acting.instructions()
    with pytest.raises(ValueError, match="cannot express"):
        acting.write(Turn(answer="Zug"))


@pytest.mark.parametrize("format", [HERMES, REACT, NATIVE], ids=lambda format: format.name)
def test_without_tools_there_are_answers(format):
    answering = make_format(format.name, ())
    assert answering.parse(answering.write(Turn(answer="Zug"))) == Turn(answer="Zug")
    assert "nswer" in answering.instructions()
