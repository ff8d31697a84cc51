"""JSON that an agent wrote: read strictly and within bounds, so that whatever it holds is safe to pass on."""

import json
import math
import re
from typing import Any

from agent_envs.formats.base import Malformed, Unfinished
from agent_envs.tools import Tool

_DEEPEST = 50  # levels of nesting
_LONGEST_NUMBER = 300  # characters; a longer one would not fit a float
_SCALARS = {"integer": "an integer", "number": "a number", "boolean": "true or false"}
# A string is one token even where it is not closed: looking for its end from every quote would take quadratic time.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def read_object(text: str, what: str) -> dict[str, Any]:
    """Read a JSON object. ``what`` names it in errors for the agent.

    Raises:
        Malformed: the text is no object, repeats a key, holds NaN or an infinity, or is nested too deeply.
    """
    value = read_value(text, f"{what} must be a JSON object")
    if not isinstance(value, dict):
        raise Malformed(f'{what} must be a JSON object, as {{"key": "value"}}.')
    return value


def read_value(text: str, problem: str) -> Any:
    """Read any JSON value, within the same bounds. Raises `Malformed` with ``problem`` and the reason."""
    depth = 0
    try:
        depth = _check_depth(text)
        return _DECODER.decode(text)
    except ValueError as reason:
        raise (Unfinished if depth > 0 else Malformed)(f"{problem}: {reason}") from None


def read_value_at(text: str, start: int, problem: str) -> tuple[Any, int]:
    """Read the JSON object or list at ``start``, after any white space; return it and its end. Tags in its strings are text.
    Raises `Malformed` with ``problem`` and the reason."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        first = token.group()[0]
        depth += (first in "[{") - (first in "]}")
        if not depth:
            return read_value(text[start : token.end()], problem), token.end()
        if depth > _DEEPEST:
            break
    return read_value(text[start:], problem), len(text)


def read_scalar(text: str, what: str, kind: str) -> int | float | bool:
    """Read a number or boolean. Raises `Malformed` for other text; the error names ``kind``, the type in the schema."""
    try:
        value = _DECODER.decode(text) if len(text) <= _LONGEST_NUMBER else None
    except ValueError:
        value = None
    if not isinstance(value, int | float):
        raise Malformed(f"{what} must be {_SCALARS[kind]}, got {text[:50]!r}.")
    return value


def dumps(value: Any) -> str:
    """Write JSON on one line, with non-ASCII characters as they are."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def function_schema(tool: Tool) -> dict[str, Any]:
    """Describe a tool as chat APIs and chat templates do."""
    described = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": described}


def _check_depth(text: str) -> int:
    """Count the objects and lists that are open at the end of a text. Raises ValueError if one is nested too deeply."""
    depth = 0
    for token in _TOKEN.finditer(text):
        first = token.group()[0]
        depth += (first in "[{") - (first in "]}")
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep.")
    return depth


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:100]!r} is there twice.")
        found[key] = value
    return found


def _number(convert: type) -> Any:
    def read(digits: str) -> Any:
        if len(digits) > _LONGEST_NUMBER:
            raise ValueError(f"a number has more than {_LONGEST_NUMBER} digits.")
        if not math.isfinite(value := convert(digits)):
            raise ValueError(f"{digits} is too large a number.")
        return value

    return read


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON.")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_number(int), parse_float=_number(float), parse_constant=_constant
)
