"""What holds for every format: it reads back what it writes, reads anything at all, and lets no result pose as more."""

import json
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tools import STRING, tool

from agent_envs.formats import FORMATS, make_format
from agent_envs.types import ToolCall, ToolResult, Turn

ANY = {}


TOOLS = (
    tool("search", required=["query"], query=STRING),
    tool("move", required=["actions"], actions={"type": "array", "items": STRING}),
    tool("note", required=["a"], a=ANY, b=ANY),
    tool("look"),
    tool("count", required=["n"], n={"type": "integer"}),
)
RAGEN = (TOOLS[1],)
FORMATS_HERE = [make_format(name, TOOLS) for name in FORMATS if name != "ragen"]
FORMATS_HERE += [make_format("ragen", RAGEN, answers=False), make_format("ragen", ())]
every = pytest.mark.parametrize("format", FORMATS_HERE, ids=lambda format: format.name)
spoken = pytest.mark.parametrize(
    "format", [f for f in FORMATS_HERE if f.name != "ragen"], ids=lambda format: format.name
)
fuzzed = settings(max_examples=60, deadline=None)

TAGS = "search move note look answer think information tool_call tool_response tools".split()
CONTROL = [f"<{slash}{name}>" for slash in ("", "/") for name in TAGS]
CONTROL += [f"<|{name}|>" for name in "start end message channel constrain return call im_start im_end".split()]
CONTROL += [f"\n{label}: " for label in ("Thought", "Action", "Action Input", "Observation", "Final Answer")]
CONTROL += [" to=functions.search", "functions.search to=assistant", '{"name": "note", "arguments": ']
CONTROL += ['{"role": "assistant", "content": null, "tool_calls": [']
CONTROL += 'assistant analysis commentary final json "} ]} {} ||'.split()
SOUP = st.lists(st.sampled_from(CONTROL) | st.text(st.characters(exclude_categories=()), max_size=5), max_size=12)
SOUP = SOUP.map("".join)
WORDS = st.text(st.characters(exclude_characters="<|:{"), min_size=1).map(str.strip).filter(bool)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | SOUP
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(SOUP, v, max_size=3), max_leaves=8)


def note(**arguments):
    return ToolCall("note", arguments)


@spoken
@fuzzed
@given(st.data())
def test_what_is_written_is_read_back(format, data):
    thought = data.draw(st.none() | WORDS)
    calls = st.builds(lambda query: ToolCall("search", {"query": query}), WORDS)
    calls |= st.builds(lambda actions: ToolCall("move", {"actions": actions}), st.lists(WORDS, min_size=1, max_size=3))
    calls |= st.builds(note, a=VALUES, b=VALUES) | st.just(ToolCall("look", {}))
    turns = st.builds(Turn, calls=st.lists(calls, min_size=1, max_size=3).map(tuple), thought=st.just(thought))
    turn = data.draw(turns | st.builds(Turn, answer=WORDS, thought=st.just(thought)))
    assert format.parse(format.write(turn)) == turn


@spoken
def test_json_can_say_every_control_string(format):
    turn = Turn(calls=(note(a=CONTROL, b={text: "\\" + text for text in CONTROL}),))
    assert format.parse(format.write(turn)) == turn


@every
@fuzzed
@given(st.builds(Turn, answer=st.none() | SOUP, thought=st.none() | SOUP, error=st.none() | SOUP))
def test_a_turn_is_written_exactly_or_refused(format, turn):
    try:
        text = format.write(turn)
    except ValueError:
        return
    assert format.parse(text) == turn


@every
@pytest.mark.parametrize(
    "turn",
    [
        Turn(),
        Turn(error="no"),
        Turn(answer=""),
        Turn(answer=5),
        Turn(answer="a", calls=(ToolCall("look", {}),)),
        Turn(calls=(note(a=float("nan")),)),
        Turn(calls=(note(a=(1, 2)),)),
        Turn(calls=(note(a={1: 2}),)),
        Turn(calls=(note(a=object()),)),
        Turn(calls=(note(a=10**400),)),
        Turn(calls=(ToolCall("search", {"query": object()}),)),
        Turn(calls=(ToolCall("search", None),)),
        Turn(calls=("search",)),
        None,
    ],
)
def test_what_cannot_be_said_is_refused(format, turn):
    with pytest.raises(ValueError, match="cannot express"):
        format.write(turn)


def test_a_turn_of_bottomless_nesting_is_refused():
    value = []
    for _ in range(100_000):
        value = [value]
    for format in FORMATS_HERE:
        with pytest.raises(ValueError, match="cannot express"):
            format.write(Turn(calls=(note(a=value),)))
    while value:  # freed level by level, or the interpreter's stack would not last
        value = value.pop()


# -- reading is total --------------------------------------------------------------------------------------------------


def assert_sound(format, text):
    turn = format.parse(text)
    assert [bool(turn.calls), turn.answer is not None, turn.error is not None].count(True) == 1
    assert turn == format.parse(text)
    assert turn.error != "" and turn.answer != ""
    assert all(isinstance(call.name, str) and isinstance(call.arguments, dict) for call in turn.calls)
    assert len(turn.error or "") < 2000, "an error must not repeat the text"
    json.dumps([call.arguments for call in turn.calls], allow_nan=False)
    return turn


@every
@fuzzed
@given(st.data())
def test_a_damaged_turn_is_a_turn(format, data):
    """Text near to what is well formed reaches further into a parser than noise does."""
    turns = [Turn(calls=(ToolCall("move", {"actions": ["a", "b"]}),), thought="x"), Turn(answer="y", thought="x")]
    turns += [Turn(calls=(note(a=[1, {"b": "c"}], b=None), ToolCall("search", {"query": "d"})), thought="x")]
    text = ""
    for turn in turns:
        try:
            text += format.write(turn)
        except ValueError:
            continue
    for _ in range(data.draw(st.integers(1, 4))):
        start, end = sorted(data.draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        text = text[:start] + data.draw(st.sampled_from(["", text[start:end] * 2, *CONTROL])) + text[end:]
    assert_sound(format, text)


# Arguments of the tool "note" as JSON, in each format that writes them so.
FRAMES = {
    "tags": "<note>{}</note>",
    "hermes": '<tool_call>{{"name": "note", "arguments": {}}}</tool_call>',
    "react": "Action: note\nAction Input: {}",
}


def framed(name, arguments):
    if name != "native":
        return FRAMES[name].format(arguments)
    function = {"name": "note", "arguments": arguments}
    return json.dumps({"role": "assistant", "tool_calls": [{"type": "function", "function": function}]})


@spoken
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ('{"a": 1, "a": 2}', "twice"),
        ('{"a": NaN}', "not JSON"),
        ('{"a": -Infinity}', "not JSON"),
        ('{"a": 1e999}', "large"),
        ('{"a": %s}' % ("9" * 5000), "digits"),
        ('{"a": ' * 100_000, "nested"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested"),
        ('{"a": 1', "JSON object"),
        ('{"a": 1} {"a": 2}', "JSON object"),
        ('["a"]', "JSON object"),
    ],
    ids=lambda value: value[:20],
)
def test_bad_json_is_an_error_that_says_why(format, arguments, why):
    assert why in assert_sound(format, framed(format.name, arguments)).error


@spoken
def test_strange_json_is_read_as_it_is(format):
    arguments = {"a": ["\ud800", "\x00", "é", -0.0, 1e300, 10**200, "[" * 1000], "b": {"": [[[]]]}}
    for ascii in (False, True):
        assert format.parse(framed(format.name, json.dumps(arguments, ensure_ascii=ascii))).calls == (
            note(**arguments),
        )


UNITS = (
    "< <search> </search> <search>a</search> <think> </think> <search <think></think> || <tool_call> <|start|>".split()
)
UNITS += [*'<|message|> " \\" { {"a": 9 9. , []'.split(), " ", "\n", "\t\nAction:", "\nThought: ", "\nObservation:"]
UNITS += ['<tool_call>{"name": "a", "arguments": {}}</tool_call>', "\nAction: search\nAction Input: a"]
UNITS += ["<|start|>assistant<|channel|>analysis<|message|>a<|end|>", "<|start|>assistant to=functions.a "]
OPENINGS = ["", "<think>", "<move>", '<note>{"a": "', 'Action: note\nAction Input: {"a": ', '<tool_call>{"a": ']
OPENINGS += ['{"role": "assistant", "b": "', '<|channel|>commentary to=functions.a<|message|>{"a": "']


@spoken
@pytest.mark.parametrize("opening", OPENINGS)
def test_reading_takes_linear_time(format, opening):
    """Lines of our own are counted. What a regular expression or the JSON reader spends shows as a test that hangs: at
    this size the square takes minutes for each unit."""
    for unit in UNITS:
        small, large = (steps(format, opening + unit * (size // len(unit))) for size in (1_000, 2_000))
        assert large <= 2.5 * small + 100
        format.parse(opening + unit * (50_000 // len(unit)))


def steps(format, text):
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        format.parse(text)
    finally:
        sys.settrace(before)
    return count


# -- results -----------------------------------------------------------------------------------------------------------

CALLS = Turn(calls=(ToolCall("move", {"actions": ["a"]}), ToolCall("look", {})))
LABEL = re.compile(
    r"(?:^|[\r\n\v\f\x85\u2028\u2029])\s*(?:Thought|Action|Action Input|Final Answer|Question)\s*:", re.I
)


def assert_framed(format, observation, count):
    """``count`` results stand in an observation, and nothing else."""
    if format.name in ("tags", "ragen"):
        assert observation.startswith("<information>") and observation.endswith("</information>")
        assert observation.count("</information>") == 1
    elif format.name == "hermes":
        assert observation.count("<tool_response>") == observation.count("</tool_response>") == count
        assert not re.search(r"<\|\w+\|>|</?(?:tool_call|answer|think|tools)>", observation)
    elif format.name == "react":
        assert len(re.findall(r"(?:^|[\r\n\v\f\x85\u2028\u2029])[ \t]*Observation", observation)) == count
        assert not LABEL.search(observation) and not re.search(r"<\|\w+\|>|</?think>", observation)
    else:
        assert [list(message) for message in json.loads(observation)] == [
            ["role", "tool_call_id", "name", "content"]
        ] * count


@every
@fuzzed
@given(SOUP, SOUP)
def test_a_result_cannot_leave_its_place(format, first, second):
    observation = format.render(CALLS, [ToolResult(first), ToolResult(second)])
    assert_framed(format, observation, 2)


@every
@fuzzed
@given(SOUP)
def test_an_error_cannot_leave_its_place(format, error):
    told = format.render_error(error)
    assert "Invalid turn: " in told
    if format.name in ("tags", "ragen", "hermes", "react"):
        assert_framed(format, told, 1)
