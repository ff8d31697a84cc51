"""Schemas of strangers: compiled when a tool is taken on, refused with the reason, and never slow."""

import os
import socket

import pytest
from broken_envs import Digit, Echo

from agent_envs.tools import run_calls
from agent_envs.tools.schema import compile_parameters
from agent_envs.types import ToolCall, ToolResult

SEED = int(os.environ.get("ATTACK_SEED", "0"))


class Takes(Echo):
    """A tool with any schema, which notes what gets through."""

    name = "takes"

    def __init__(self, parameters):
        self.parameters, self.taken = parameters, []

    def execute(self, arguments):
        self.taken.append(arguments)
        return ToolResult("taken")


def schema(x, **more):
    return {"type": "object", "properties": {"x": x}, "required": ["x"], **more}


def doubled(depth):
    """A schema of a few lines with 2**depth ways through it."""
    ways = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(depth)}
    return schema({"$ref": "#/$defs/d0"}, **{"$defs": {**ways, f"d{depth}": {"minLength": 1}}})


def nested(depth):
    inner: dict = {}
    for _ in range(depth):
        inner = {"items": inner}
    return inner


X = {  # of the argument x; the first ones refer to what is elsewhere
    "refers to 'http://127.0.0.1:9/x.json'": [{"$ref": "http://127.0.0.1:9/x.json"}],
    "inside it": [
        *({"$ref": "file:///etc/passwd"}, {"$ref": "#/$defs/none"}),
        *({"$dynamicRef": "http://a/b"}, {"anyOf": [{"items": {"$ref": "http://a/b"}}]}),
    ],
    r"\$id inside it": [{"$id": "http://a/b", "$ref": "#/properties"}],
    r"\['properties'\]\['x'\]\['type'\] is wrong: 'strng'": [{"type": "strng"}],
    "is wrong": [{"type": "string", "minLength": "one"}],
    "patternProperties, which": [{"type": "object", "patternProperties": {"a": {}}}],
    "unclosed group": [{"type": "string", "pattern": "("}],
    "look-ahead": [{"type": "string", "pattern": "(?=a)b"}],
    "backreferences": [{"type": "string", "pattern": r"(a)\1"}],
    "size limit": [{"type": "string", "pattern": "(a{1000}){1000}"}],
    "1,000 at most": [{"type": "string", "pattern": "a" * 1001}],
    "51 patterns": [{"anyOf": [{"pattern": f"a{i}"} for i in range(51)]}],
    "100,000 at most": [{"enum": ["a" * 200_000]}],
    "nested too deeply|no JSON form": [nested(20_000)],
    "no JSON form": [{"default": float("nan")}, {"default": {1, 2}}],
}
REFUSED = [
    *((schema(x), reason) for reason, xs in X.items() for x in xs),
    *((schema({"$ref": "#"}, **{"$ref": "#"}), "in circles|cannot be used"), (doubled(40), "tangled")),
    *(({"properties": ["x"]}, "properties|is wrong"), ([], "object"), ("string", "object"), (None, "object")),
]


@pytest.mark.parametrize(("parameters", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_a_schema_that_cannot_be_used_is_refused_with_the_reason(parameters, reason):
    with pytest.raises(ValueError, match=reason):
        compile_parameters(parameters)
    with pytest.raises(ValueError, match="the tool 'takes' cannot be used"):
        Digit(Takes(parameters))
    tool = Takes(parameters)  # one that nobody looked at before
    (result,) = run_calls([({"takes": tool}, ToolCall("takes", {"x": 1}))])
    assert result.fault and not tool.taken


@pytest.mark.parametrize("reference", ["#/properties/y/default", "#/properties/y/enum/0", "#/properties", "#/note"])
@pytest.mark.parametrize("hidden", [{"pattern": "^a+$"}, {"$ref": "http://127.0.0.1:9/x"}, {"type": "strng"}])
def test_a_reference_to_what_is_no_schema_is_refused_before_anybody_uses_it(reference, hidden):
    """Inside of a list, where the schema is not gone into before there are arguments."""
    inside = {"items": {"$ref": reference}}
    parameters = {"properties": {"x": inside, "y": {"default": hidden, "enum": [hidden]}}, "note": {"type": "strng"}}
    with pytest.raises(ValueError, match=r"not a schema there|is wrong"):
        compile_parameters(parameters)


def test_nothing_is_fetched(monkeypatch):
    def connect(*_):
        raise AssertionError("a schema reached for the network")

    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(ValueError, match="refers to"):
        compile_parameters(schema({"$ref": "http://127.0.0.1:9/y.json"}))
    check = compile_parameters({"$schema": "http://127.0.0.1:9/own", **schema({"type": "string", "minLength": 1})})
    assert check({"x": "a"}) is None and "non-empty" in check({"x": ""})


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "(.*a){20}$", r"^(\w+\s?)*$", "^([a-z]+)*$"])
def test_catastrophic_patterns_are_checked_in_time_linear_in_the_text(pattern):
    text = "a" * 50_000 + "!"
    tool = Takes(schema({"type": "string", "pattern": pattern}))
    (result,) = run_calls([({"takes": tool}, ToolCall("takes", {"x": text}))])
    assert not result.ok and not result.fault and "['x'] do not fit" in result.text


def test_patterns_mean_what_they_meant():
    words = compile_parameters(schema({"type": "string", "pattern": "^[a-z]+ \\d{2}$"}))
    assert words({"x": "abc 12"}) is None and "does not match" in words({"x": "abc 1"})
    assert compile_parameters(schema({"type": "string", "pattern": "b"}))({"x": "abc"}) is None  # anywhere


@pytest.mark.parametrize(
    ("x", "value"),
    [
        ({"type": "array", "items": {"type": "string"}}, [1] * 300_000),
        ({"type": "array", "uniqueItems": True}, [{"a": i} for i in range(3_000)]),
        ({"allOf": [{"enum": list(range(i, i + 50))} for i in range(100)]}, "a" * 100_000),
        ({"$ref": "#/properties/x", "type": "array", "items": {"$ref": "#/properties/x"}}, []),
    ],
)
def test_the_work_of_a_check_is_bounded(x, value):
    try:
        problem = compile_parameters(schema(x))({"x": value})
    except ValueError as error:
        problem = str(error)
    assert problem and len(problem) < 1000


def test_legal_schemas_with_odd_parts_are_taken():
    for x in (True, {}, {"$ref": "#/$defs/a~1b"}, {"type": ["string", "null"]}, {"const": {"$ref": "http://a/b"}}):
        env = Digit(Takes(schema(x, **{"$defs": {"a/b": {"type": "object", "properties": {"y": {"$ref": "#"}}}}})))
        env.reset(seed=SEED)


def test_huge_examples_are_cut():
    wide = {"type": "array", "minItems": 10**9, "items": {"type": "array", "minItems": 10**9}}
    env = Digit(Takes(schema(wide)), format="hermes")
    assert max(map(len, env.action_space.phrases)) < 100_000
    links = [{name: {"$ref": f"#/$defs/d{i + 1}"} for name in "ab"} for i in range(40)]
    chain = {f"d{i}": {"type": "object", "required": ["a", "b"], "properties": link} for i, link in enumerate(links)}
    tree = schema({"$ref": "#/$defs/d0"}, **{"$defs": {**chain, "d40": {"type": "string"}}})
    env = Digit(Takes(tree), format="hermes")
    assert len(env.system_prompt) + max(map(len, env.action_space.phrases)) < 300_000


@pytest.mark.parametrize("name", ["default", "pattern", "$ref", "properties"])
def test_an_argument_may_have_the_name_of_a_keyword(name):
    words = {"type": "array", "items": {"type": "string", "pattern": "^a+$"}}
    check = compile_parameters({"type": "object", "properties": {name: words}})
    assert check({name: ["aaa"]}) is None
    assert "does not match" in check({name: ["b"]})
    with pytest.raises(ValueError, match="inside it"):
        compile_parameters({"type": "object", "properties": {name: {"items": {"$ref": "http://127.0.0.1:9/x"}}}})
