"""Arguments as plain text, for tools so simple that JSON would only be in the way."""

from typing import Any

from agent_envs.formats.json_text import dumps, read_object, read_scalar
from agent_envs.tools import Tool

SEPARATOR = "||"


def string_argument(tool: Tool) -> str | None:
    """The name of the one argument of a tool that takes a string and nothing else."""
    name, schema = _only(tool)
    return name if _is_string(schema) else None


def list_argument(tool: Tool) -> str | None:
    """The name of the one argument of a tool that takes a list of strings and nothing else."""
    name, schema = _only(tool)
    return name if schema.get("type") == "array" and _is_string(schema.get("items")) else None


def scalar_argument(tool: Tool) -> str | None:
    """The name of the one argument of a tool that takes a number or a truth value and nothing else."""
    name, schema = _only(tool)
    return name if schema.get("type") in ("integer", "number", "boolean") else None


def is_json(tool: Tool) -> bool:
    """Whether the arguments are too much for plain text."""
    return not (string_argument(tool) or list_argument(tool) or scalar_argument(tool))


def is_missing(tool: Tool, text: str) -> bool:
    """Whether nothing is given to a tool that needs something."""
    given = text.replace(SEPARATOR, "").strip() if list_argument(tool) else text
    return not given and bool(tool.parameters.get("required"))


def choices(tool: Tool) -> list[str]:
    """Return the allowed values of the one string, or of each string in the one list; empty if any is allowed."""
    _, schema = _only(tool)
    return [] if is_json(tool) or scalar_argument(tool) else _options(schema.get("items", schema))


def example(tool: Tool) -> str:
    """Write an example of the arguments' text."""
    if name := string_argument(tool) or scalar_argument(tool):
        return name
    if name := list_argument(tool):
        return f" {SEPARATOR} ".join((choices(tool) * 2)[:2] or [name, name])
    names = tool.parameters.get("properties", {})
    return "{" + ", ".join(f'"{name}": …' for name in names) + "}" if names else ""


def read(tool: Tool, text: str) -> dict[str, Any]:
    """``text`` as the arguments of a call: the string itself, a number, strings around ``||``, or else a JSON object.

    Raises:
        Malformed: it is no such thing.
    """
    if not text:
        return {}
    if name := string_argument(tool):
        return {name: text}
    if name := list_argument(tool):
        values = [piece.strip() for piece in text.split(SEPARATOR)]
        return {name: [value for value in values if value]}
    if (name := scalar_argument(tool)) and not text.startswith("{"):
        return {name: read_scalar(text, f"The argument of {tool.name}")}
    return read_object(text, f"The arguments of {tool.name}")


def write(tool: Tool, arguments: dict[str, Any]) -> str:
    """The inverse of `read`, where there is one: not every string can be written as it is."""
    if not arguments:
        return ""
    if name := string_argument(tool):
        return arguments[name]
    if name := list_argument(tool):
        return f" {SEPARATOR} ".join(arguments[name])
    if (name := scalar_argument(tool)) and set(arguments) == {name} and isinstance(arguments[name], int | float):
        return dumps(arguments[name])
    return dumps(arguments)


def _only(tool: Tool) -> tuple[str, dict[str, Any]]:
    properties = tool.parameters.get("properties", {})
    name, schema = next(iter(properties.items())) if len(properties) == 1 else ("", {})
    return name, schema if isinstance(schema, dict) else {}


def _is_string(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    options = _options(schema)
    return schema.get("type") == "string" or (bool(options) and all(isinstance(option, str) for option in options))


def _options(schema: dict[str, Any]) -> list[Any]:
    return list(schema.get("enum", [schema["const"]] if "const" in schema else []))
