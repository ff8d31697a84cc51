"""Tools as a TypeScript-like namespace, the way Harmony declares functions to a model."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agent_envs.tools import Tool

_SIMPLE = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null"}


def declare(tools: Sequence[Tool], namespace: str) -> str:
    """The namespace: a type for each tool, its JSON schema as the type of its one parameter."""
    declared = "\n\n".join(_declare(tool) for tool in tools)
    return f"namespace {namespace} {{\n\n{declared}\n\n}} // namespace {namespace}"


def _declare(tool: Tool) -> str:
    empty = not tool.parameters.get("properties")
    parameter = "" if empty else f"_: {_type(tool.parameters, tool.parameters)}"
    return "\n".join([*_comment(tool.description), f"type {tool.name} = ({parameter}) => any;"])


def _type(schema: Any, root: dict[str, Any], within: tuple[str, ...] = (), parts: Iterator[int] | None = None) -> str:
    """``within``: the references that lead here; a type that contains itself is ``any``. ``parts`` counts the parts of
    the type, of which a small schema may have billions."""
    parts = itertools.count() if parts is None else parts
    if not isinstance(schema, dict) or next(parts) > 1000:
        return "any"
    if reference := schema.get("$ref"):
        name = str(reference).rpartition("/")[2]
        inner = None if name in within else root.get("$defs", {}).get(name)
        return _type(inner, root, (*within, name), parts)
    if "const" in schema or "enum" in schema:
        return _union(_literal(value) for value in schema.get("enum", [schema.get("const")]))
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return _union(_type(option, root, within, parts) for option in options)
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union(_type({**schema, "type": one}, root, within, parts) for one in kind)
    if kind == "array":
        inner = _type(schema.get("items"), root, within, parts)
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    if kind == "object" or "properties" in schema:
        return _object(schema, root, within, parts)
    return _SIMPLE.get(str(kind), "any")


def _object(schema: dict[str, Any], root: dict[str, Any], within: tuple[str, ...], parts: Iterator[int]) -> str:
    lines = []
    for name, inner in schema.get("properties", {}).items():
        told = inner if isinstance(inner, dict) else {}
        optional = "" if name in schema.get("required", ()) else "?"
        default = f" // default: {_default(told['default'])}" if "default" in told else ""
        lines += _comment(told.get("description", ""))
        lines.append(f"{name}{optional}: {_type(inner, root, within, parts)},{default}")
    return "\n".join(["{", *lines, "}"]) if lines else "object"


def _union(types: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(types))


def _literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _default(value: Any) -> str:
    return value if isinstance(value, str) else _literal(value)


def _comment(text: str) -> list[str]:
    return [f"// {line}".rstrip() for line in text.splitlines()]
