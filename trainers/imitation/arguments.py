"""Clean tool calls that were stored in tables: Arrow gives every struct the keys of all others, as nulls."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from agent_envs.chat_messages import Message, read_arguments
from agent_envs.formats.families import kinds_of
from agent_envs.tools.schema import compile_parameters, look_up
from trainers.runtime.errors import UserError


def drop_nulls(value: Any) -> Any:
    """Remove keys that are null from a schema or a list of functions."""
    if isinstance(value, dict):
        return {name: drop_nulls(item) for name, item in value.items() if item is not None}
    return [drop_nulls(item) for item in value] if isinstance(value, list) else value


def calls_to_text(message: Message) -> Message:
    """Append the calls of a message, if it has any, to its text, as JSON."""
    calls = message.get("tool_calls")
    text = json.dumps(calls, ensure_ascii=False) if calls else ""
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**kept, "content": f"{message.get('content') or ''}\n{text}".strip()}


def are_readable(calls: Any) -> bool:
    """Whether calls have a name, and an object as arguments."""
    try:
        return all(
            isinstance(call["function"]["name"], str) and isinstance(read_arguments(call), dict) for call in calls
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


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
        arguments = _drop_unknown_nulls(arguments, [schema], schema)
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


def _drop_unknown_nulls(value: Any, schemas: list[Any], whole: Any) -> Any:
    """Remove the nulls that none of ``schemas``, which are parts of the ``whole`` one, allows."""
    parts = [part for schema in schemas for part in _find_parts(schema, whole, set())]
    if isinstance(value, list):
        return [_drop_unknown_nulls(item, [part.get("items") for part in parts], whole) for item in value]
    if not isinstance(value, dict):
        return value
    inner = defaultdict[str, list](list)
    for part in parts:
        for name, schema in (part.get("properties") or {}).items():
            inner[name].append(schema)
    return {
        name: _drop_unknown_nulls(item, inner[name], whole)
        for name, item in value.items()
        if item is not None or any("null" in (kinds_of(schema) or {"null"}) for schema in inner[name])
    }


def _find_parts(schema: Any, whole: Any, seen: set[str]) -> Iterator[dict[str, Any]]:
    """Yield a schema, the one that it refers to, and its alternatives. ``seen``: references to leave out."""
    if not isinstance(schema, dict):
        return
    yield schema
    if isinstance(reference := schema.get("$ref"), str) and reference not in seen:
        seen.add(reference)
        yield from _find_parts(look_up(reference, whole), whole, seen)
    for name in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(name) or ():
            yield from _find_parts(part, whole, seen)
