"""AnyText: membership by type and length, samples that a seed fixes."""

import copy
import pickle
from types import SimpleNamespace
from typing import Literal

import jsonschema
import pytest
from gymnasium.vector.utils import batch_space

from agent_envs.spaces import AnyText, example_turns
from agent_envs.tool_env import ToolEnv
from agent_envs.tools import FunctionTool
from agent_envs.types import ToolCall, Turn


def test_samples_belong_and_repeat_with_the_seed():
    phrases = ("<answer>x</answer>",)
    space, twin = AnyText(phrases=phrases, seed=3), AnyText(phrases=phrases, seed=3)
    samples = [space.sample() for _ in range(200)]
    assert samples == [twin.sample() for _ in range(200)]
    assert all(sample in space for sample in samples)
    assert phrases[0] in samples and any(phrases[0] not in sample for sample in samples)


def test_it_survives_copies_pickling_and_batching():
    space = AnyText(9, ("a",))
    assert copy.deepcopy(space) == space == pickle.loads(pickle.dumps(space))
    assert space != AnyText(10, ("a",)) and space != AnyText(9)
    batch = batch_space(space, 3)
    batch.seed(1)
    assert batch.sample() in batch and len(batch.sample()) == 3


def test_each_tool_gets_a_call_that_fits_and_there_may_be_an_answer():
    def look(words: str, page: int = 7) -> str:
        """looks."""
        return words

    turn, answer = example_turns([FunctionTool(look)], answers=True)
    assert turn.calls == (ToolCall("look", {"words": "the first town"}),)  # only what is required
    assert answer == Turn(answer="the first town") and example_turns([], answers=True) == [answer]
    assert example_turns([FunctionTool(look)], answers=False) == [turn]


def foreign(**schema):
    """A tool with a schema of somebody else's making, as MCP servers send them."""
    return SimpleNamespace(name="foreign", description="does things.", parameters=schema)


SCHEMAS = [
    *({"type": ["string", "null"]}, {"type": ["null", "integer"]}, {"const": 0}, {"enum": [None, 3]}, {}, True),
    {"default": "x", "type": "string", "minLength": 1},
    {"examples": ["2026-01-31"], "type": "string", "pattern": "^[0-9-]+$"},
    *({"allOf": [{"type": "integer"}]}, {"oneOf": [{"type": "number"}, {"type": "string"}]}, {"type": "array"}),
    *({"type": "array", "items": True}, {"type": "array", "items": {"type": "integer"}, "minItems": 3}),
    *({"type": "object"}, {"type": "object", "required": ["x"]}, {"type": "integer", "maximum": -2}),
    *({"type": "integer", "exclusiveMinimum": 4}, {"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
    {"type": "object", "required": ["price"], "properties": {"price": {"type": "number", "minimum": 100}}},
    *({"$ref": "#/definitions/name"}, {"$ref": "#/properties/other"}),
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_any_schema_has_an_example(schema):
    properties = {"x": schema, "other": {"type": "boolean"}}
    whole = {"type": "object", "properties": properties, "required": ["x"], "definitions": {"name": {"type": "string"}}}
    (turn,) = example_turns([foreign(**whole)], answers=False)
    jsonschema.validate(turn.calls[0].arguments, whole)


def test_a_schema_that_leads_nowhere_or_in_circles_does_no_harm():
    lost = {"type": "object", "properties": {"x": {"$ref": "#/$defs/gone"}}, "required": ["x", "undescribed"]}
    (turn,) = example_turns([foreign(**lost)], answers=False)
    assert set(turn.calls[0].arguments) == {"x", "undescribed"}
    endless = {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}
    assert example_turns([foreign(**endless)], answers=False)
    assert example_turns([foreign()], answers=False)[0].calls[0].arguments == {}


def listing(values: list[Literal["a||b", "c"]]) -> str:
    """lists."""


def sort(order: Literal["", "desc"]) -> str:
    """sorts."""


def split(sign: Literal[" ", ","]) -> str:
    """splits."""


def never(sign: Literal[" "]) -> str:
    """cannot be called in tags."""


BLANK = foreign(properties={"x": {"type": "string", "default": ""}}, required=["x"])
BLANK.execute_batch = None
EXAMPLES = [
    (listing, ["<listing>c</listing>"]), (sort, ["<sort>desc</sort>"]), (split, ["<split>,</split>"]),
    (never, []), (BLANK, []),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "written"), EXAMPLES)
def test_an_example_that_cannot_be_written_is_another_or_none(tool, written):
    phrases = ToolEnv([tool]).action_space.phrases
    assert [*phrases] == [*written, "<answer>the first town</answer>"]
