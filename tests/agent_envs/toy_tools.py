"""Tools that formats write calls of, and such calls."""

from types import SimpleNamespace

from agent_envs.types import ToolCall, Turn

STRING = {"type": "string"}


def tool(name, description="does it.", required=(), **properties):
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return SimpleNamespace(name=name, description=description, parameters=schema)


def call(name, arguments, thought=None):
    return Turn(calls=(ToolCall(name, arguments),), thought=thought)


def search(*queries, thought=None):
    return Turn(calls=tuple(ToolCall("search", {"query": query}) for query in queries), thought=thought)
