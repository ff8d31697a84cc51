"""Arguments as plain text, for tools that are too simple to need JSON."""

from typing import Any

from agent_envs.formats.json_text import dumps, read_object, read_scalar
from agent_envs.tools import Tool

SEPARATOR = "||"


def plain_argument(tool: Tool) -> tuple[str, str]:
    """Return the name of a tool's one argument and its kind: "string", "list" (of strings) or "scalar" (number or boolean).
    Without exactly one such argument, the result is ``("", "json")``."""
    properties = tool.parameters.get("properties", {})
    name, schema = next(iter(properties.items())) if len(properties) == 1 else ("", {})
    if _is_string(schema):
        return name, "string"
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "array" and _is_string(schema.get("items")):
        return name, "list"
    return (name, "scalar") if kind in ("integer", "number", "boolean") else ("", "json")


def is_json(tool: Tool) -> bool:
    """Whether the arguments are written as JSON, not as plain text."""
    return plain_argument(tool)[1] == "json"


def is_missing(tool: Tool, text: str) -> bool:
    """Whether the text is empty although the tool has a required argument."""
    given = text.replace(SEPARATOR, "").strip() if plain_argument(tool)[1] == "list" else text
    return not given and bool(tool.parameters.get("required"))


def choices(tool: Tool) -> list[str]:
    """Return the allowed values of the string argument, or of the strings in the list; empty if any is allowed."""
    name, kind = plain_argument(tool)
    schema = tool.parameters["properties"][name] if kind in ("string", "list") else {}
    return _options(schema.get("items", schema))


def example(tool: Tool) -> str:
    """Write an example of the arguments' text."""
    name, kind = plain_argument(tool)
    if kind == "list":
        return f" {SEPARATOR} ".join((choices(tool) * 2)[:2] or [name, name])
    names = tool.parameters.get("properties", {}) if kind == "json" else {}
    return "{" + ", ".join(f'"{each}": …' for each in names) + "}" if names else name


def read(tool: Tool, text: str) -> dict[str, Any]:
    """Parse the arguments of a call: a bare string, a number or boolean, strings separated by ``||``, or else a JSON object.

    Raises:
        Malformed: the text is none of these.
    """
    name, kind = plain_argument(tool)
    if not text:
        return {}
    if kind == "string":
        return {name: text}
    if kind == "list":
        return {name: [value for piece in text.split(SEPARATOR) if (value := piece.strip())]}
    if kind == "scalar" and not text.startswith("{"):
        return {name: read_scalar(text, f"The argument of {tool.name}", tool.parameters["properties"][name]["type"])}
    return read_object(text, f"The arguments of {tool.name}")


def write(tool: Tool, arguments: dict[str, Any]) -> str:
    """Write arguments as text, the inverse of `read`; some strings would not be read back unchanged."""
    name, kind = plain_argument(tool)
    if not arguments:
        return ""
    if kind == "string":
        return arguments[name]
    if kind == "list":
        return f" {SEPARATOR} ".join(arguments[name])
    if kind == "scalar" and set(arguments) == {name} and isinstance(arguments[name], int | float):
        return dumps(arguments[name])
    return dumps(arguments)


def _is_string(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    options = _options(schema)
    return schema.get("type") == "string" or (bool(options) and all(isinstance(option, str) for option in options))


def _options(schema: dict[str, Any]) -> list[Any]:
    return list(schema.get("enum", [schema["const"]] if "const" in schema else []))
