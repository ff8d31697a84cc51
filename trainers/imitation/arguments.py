"""Clean tool calls that were stored in tables: Arrow gives every struct the keys of all others, as nulls."""

from collections.abc import Mapping
from typing import Any

from agent_envs.chat_messages import Message, read_arguments
from agent_envs.formats.families import kinds_of
from agent_envs.tools.schema import compile_parameters
from trainers.runtime.errors import UserError


def drop_nulls(value: Any) -> Any:
    """Remove keys that are null from a schema or a list of functions."""
    if isinstance(value, dict):
        return {name: drop_nulls(item) for name, item in value.items() if item is not None}
    return [drop_nulls(item) for item in value] if isinstance(value, list) else value


def clean_calls(message: Message, parameters: Mapping[str, Any]) -> Message:
    """Remove nulls that a function's schema does not allow from the calls of a message.

    Args:
        parameters: schemas of functions, by name. Arguments of other functions, or with an invalid schema, are not checked.

    Raises:
        UserError: arguments are not an object, or the message is to be taught and arguments do not fit their schema.
    """
    if not message.get("tool_calls"):
        return message
    cleaned = []
    for call in message["tool_calls"]:
        name, arguments = call["function"]["name"], read_arguments(call)
        if not isinstance(arguments, dict):
            raise UserError(f"the arguments of a call of {name!r} must be an object, got {arguments!r}")
        schema = parameters.get(name)
        arguments = _drop_unknown_nulls(arguments, schema)
        if schema and message.get("weight") != 0 and (problem := _find_problem(arguments, schema)):
            raise UserError(f"a call of {name!r} cannot be taught: {problem}")
        cleaned.append(drop_nulls({**call, "function": None}) | {"function": {"name": name, "arguments": arguments}})
    return {**message, "tool_calls": cleaned}


def _find_problem(arguments: dict[str, Any], schema: Any) -> str | None:
    try:
        check = compile_parameters(schema)
    except ValueError:  # as in data with Python's types, "str" and "list[int]"
        return None
    return check(arguments)


def _drop_unknown_nulls(value: Any, schema: Any) -> Any:
    schema = schema if isinstance(schema, dict) else {}
    if isinstance(value, list):
        return [_drop_unknown_nulls(item, schema.get("items")) for item in value]
    if not isinstance(value, dict):
        return value
    inner = schema.get("properties") or {}
    return {
        name: _drop_unknown_nulls(item, inner.get(name))
        for name, item in value.items()
        if item is not None or (name in inner and "null" in (kinds_of(inner[name]) or {"null"}))
    }
