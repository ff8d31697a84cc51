"""Values in calls that are not JSON, but Python or similar notations. They are read within the bounds of `json_text`."""

import re
from collections.abc import Callable
from typing import Any

from agent_envs.formats.base import Malformed
from agent_envs.formats.json_text import read_value
from agent_envs.types import ToolCall

WORDS = {"True": True, "False": False, "None": None}  # as templates write them that print Python values
_BARE = re.compile(r"[^,:{}\[\]()<\"']*")
ReadString = Callable[
    [str, int], tuple[str, int] | None
]  # returns the string at a place and its end; None if there is none


def read_nested(text: str, place: int, read_string: ReadString, depth: int = 0) -> tuple[Any, int]:
    """Read the value at a place; return it and its end. It is a string, ``{key: value, …}`` with bare or string keys,
    ``[value, …]``, a number, or a word of JSON or Python."""
    place = skip(text, place, "")
    if (string := read_string(text, place)) is not None:
        return string
    closing = {"{": "}", "[": "]"}.get(text[place : place + 1])
    if closing is None:
        bare = _BARE.match(text, place)
        assert bare
        word = bare[0].strip()
        problem = "An argument must be a number, true, false, null or a quoted string"
        return WORDS[word] if word in WORDS else read_value(word, problem), bare.end()
    if depth > 50:
        raise Malformed("The arguments are nested more than 50 levels deep.")
    pairs: dict[str, Any] = {}
    values: list[Any] = []
    place = skip(text, place + 1, "")
    while not text.startswith(closing, place):
        if closing == "}":
            key, place = _read_key(text, place, read_string, ":")
            if key in pairs:
                raise Malformed(f"The key {key[:100]!r} is there twice.")
            pairs[key], place = read_nested(text, place, read_string, depth + 1)
        else:
            value, place = read_nested(text, place, read_string, depth + 1)
            values.append(value)
        place = _skip_comma(text, place, closing)
    return (pairs if closing == "}" else values), place + 1


def _read_key(text: str, place: int, read_string: ReadString, sign: str) -> tuple[str, int]:
    """Read a key; return it and the place after its ``sign``."""
    if (string := read_string(text, place)) is None:
        bare = _KEY_NAME.match(text, place)
        assert bare
        string = bare[0].strip(), bare.end()
    key, end = string
    if not key or not text.startswith(sign, skip(text, end, "")):
        raise Malformed(f"An argument is written as key{sign}value.")
    return key, skip(text, end, sign)


_KEY_NAME = re.compile(r"[^,:={}\[\]()<]*")


def _skip_comma(text: str, place: int, closing: str) -> int:
    place = skip(text, place, "")
    if text.startswith(closing, place):
        return place
    if not text.startswith(",", place):
        raise Malformed("The arguments are not closed.")
    return skip(text, place + 1, "")


def skip(text: str, place: int, expected: str) -> int:
    """Return the place after ``expected``, which must be at ``place`` or after white space there."""
    while place < len(text) and text[place].isspace():
        place += 1
    if not text.startswith(expected, place):
        raise Malformed(f"A call is not closed with {expected}.")
    return place + len(expected)


_STRING = re.compile(r"""'((?:[^'\\]|\\.)*+)'|"((?:[^"\\]|\\.)*+)\"""", re.DOTALL)
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_MEANT = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": ""}
_NAMED = re.compile(r"([A-Za-z_][\w./-]*)\(")


def _read_python_string(text: str, place: int) -> tuple[str, int] | None:
    if text[place : place + 1] not in ("'", '"'):
        return None
    if not (found := _STRING.match(text, place)):
        raise Malformed("A string is not closed.")
    said = _ESCAPED.sub(_unescape, found[1] if found[2] is None else found[2])
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), found.end()


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else _MEANT.get(found[2], found[0])


def quote_free(value: Any) -> Any:
    """Escape a string as between single quotes in Python; other values are returned unchanged."""
    if not isinstance(value, str):
        return value
    for character, escaped in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r")):
        value = value.replace(character, escaped)
    return value


def read_calls(text: str, place: int) -> tuple[list[ToolCall], int]:
    """Read ``[name(key="value", …), …]``, calls as in Python with arguments by name; return them and their end."""
    calls, place = list[ToolCall](), skip(text, skip(text, place, "["), "")
    while not text.startswith("]", place):
        name = _NAMED.match(text, place)
        if not name:
            raise Malformed("Calls are a list, [name(key=value, …)].")
        arguments: dict[str, Any] = {}
        place = skip(text, name.end(), "")
        while not text.startswith(")", place):
            key, place = _read_key(text, place, _no_string, "=")
            if key in arguments:
                raise Malformed(f"The argument {key[:100]!r} is there twice.")
            arguments[key], place = read_nested(text, place, _read_python_string)
            place = _skip_comma(text, place, ")")
        calls.append(ToolCall(name[1], arguments))
        place = _skip_comma(text, place + 1, "]")
    if not calls:
        raise Malformed("The list of calls is empty.")
    return calls, place + 1


def _no_string(text: str, place: int) -> None:
    return None
