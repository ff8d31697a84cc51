"""The methods by which `environment_factory` shows the tools to TRL, without TRL itself."""

import asyncio

import pytest

from agent_envs.plug.trl import _method


class Recorder:
    async def _take(self, name, given):
        return given


@pytest.mark.parametrize(
    ("schema", "keeps_null"),
    [
        ({"type": "string"}, False),
        ({"type": ["integer", "null"]}, True),
        ({"enum": ["a", "b"]}, False),
        ({"enum": ["a", None]}, True),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, False),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, True),
        ({}, True),  # anything
    ],
)
def test_null_leaves_an_optional_argument_out_where_it_is_no_value_of_it(schema, keeps_null):
    properties = {"query": {"type": "string"}, "more": schema}
    parameters = {"type": "object", "properties": properties, "required": ["query"]}
    search = _method({"name": "search", "description": "Search.", "parameters": parameters})
    said = asyncio.run(search(Recorder(), query="x", more=None))
    assert said == ({"query": "x", "more": None} if keeps_null else {"query": "x"})
    assert asyncio.run(search(Recorder(), query=None)) == {"query": None}  # a mistake of the model's, which is told so
