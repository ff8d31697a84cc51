"""Malformed and adversarial turns and arguments, which every environment must survive."""

import math
import random
from collections.abc import Mapping
from typing import Any

# Control strings of all formats, whole and in pieces; special tokens that models may emit; text that breaks decoders.
_PIECES = (
    *"<think> </think> <search> </search> <answer> </answer> <information> </information> <move> <tool_call>".split(),
    *"</tool_call> <tool_response> </tool_response> <tools> <|im_start|> <|im_end|> <|endoftext|> <|call|>".split(),
    *"<|channel|> <|message|> <|start|> <|end|> <|return|> || { } [ ] \" ' \\ ``` <!-- --> ]]> &lt; % %s {0} $(id)".split(),
    "Thought: ", "\nAction: ", "\nAction Input: ", "\nObservation: ", "\nFinal Answer: ", "to=functions.",
    '{"name": ', '"arguments": ', '{"role": "assistant", "tool_calls": [', '"function": {', "null", "true", "NaN",
    "1e999", "9" * 5000, "-0", "\x00", "\ud800", "\udfff\ud800", "\u202e", "\u0000", "\ufeff", "\r\n", "\t", "é", "e\u0301",
    "İ", "ß", "🦊", "\u2028", "a" * 300, "the", "a town", "Up", "Right || Right", "1 + 1", "SELECT 1", "print(1)", "",
)  # fmt: skip


def make_hostile_turn(rng: random.Random, phrases: tuple[str, ...] = (), seen: str = "") -> str:
    """Make a random turn, malformed in most cases.

    Args:
        phrases: well-formed turns to damage.
        seen: the last observation, which a turn may repeat.
    """
    kind = rng.randrange(8)
    if kind < 3 or (kind < 6 and not phrases):
        return "".join(rng.choices(_PIECES, k=rng.randint(0, 30)))
    if kind == 3:
        return "".join(rng.sample(phrases, 1)) * rng.randint(1, 9)
    if kind < 6:
        return _damage(rng, rng.choice(phrases))
    if kind == 6:
        return rng.choice(_PIECES) * rng.choice((1, 10, 1000))
    return seen + rng.choice(("", *phrases)) + seen[: rng.randint(0, 50)]


def _damage(rng: random.Random, text: str) -> str:
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(text))
        cut = rng.randint(0, 3)
        text = text[:at] + rng.choice(_PIECES) * rng.randint(0, 1) + text[at + cut :]
    return text


# Values that fit a type and break programs: invalid text, string terminators, overflows, input that is slow to parse.
_TEXTS = (
    *(
        "",
        "\x00",
        "\ud800",
        "a\udfff\ud800b",
        "\u202e\u2066",
        "\x1b]0;x\x07\x1b[2J",
        "../../etc/passwd",
        "-",
        "%s%n{0}",
    ),
    *("'; --", "((((", "[" * 5000, "(" * 5000, "9" * 5000, "9**9**9", "1/0", "é" * 2001, "🦊" * 400, "#9999999999"),
    *("a " * 5000, "x" * ((1 << 20) + 1), "import os; os.kill(os.getppid(), 9)", "1" + "+1" * 240, "\n" * 300, "NaN"),
)
_NUMBERS = (0, -1, 1, 1 << 63, -(1 << 64), 10**400, 0.5, -0.0, 1e308, math.inf, -math.inf, math.nan)
_LISTS: tuple[Any, ...] = ([], [[]], [None, "\ud800"], ["a"] * 3000)
_OBJECTS: tuple[Any, ...] = ({}, {"": ""}, {"\ud800": "\x00"})
_OTHERS = (None, True, False, *_LISTS, *_OBJECTS)
_OF_TYPE: dict[str, tuple[Any, ...]] = {
    "string": _TEXTS,
    "integer": tuple(number for number in _NUMBERS if isinstance(number, int)),
    "number": _NUMBERS,
    "boolean": (True, False),
    "null": (None,),
    "array": _LISTS,
    "object": _OBJECTS,
}


def make_hostile_arguments(rng: random.Random, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Make random arguments that a tool should reject without breaking; most have the types of its schema."""
    properties = parameters.get("properties", {})
    arguments = {name: _hostile_value(rng, schema) for name, schema in properties.items()}
    if properties and rng.random() < 0.1:
        del arguments[rng.choice(list(properties))]
    if rng.random() < 0.1:
        arguments[rng.choice(_TEXTS[:8])] = rng.choice(_OTHERS)
    return arguments


def _hostile_value(rng: random.Random, schema: Any) -> Any:
    schema = schema if isinstance(schema, dict) else {}
    if rng.random() < 0.1:
        return rng.choice((*_TEXTS, *_NUMBERS, *_OTHERS))
    if options := schema.get("enum") or schema.get("anyOf") or schema.get("oneOf"):
        chosen = rng.choice(options)
        return chosen if "enum" in schema else _hostile_value(rng, chosen)
    kind = schema.get("type")
    values = _OF_TYPE.get(kind, (*_TEXTS, *_NUMBERS, *_OTHERS)) if isinstance(kind, str) else _OTHERS
    value = rng.choice(values)
    if kind == "string" and rng.random() < 0.3:
        return value[:2000] + rng.choice(_TEXTS)[:2000]
    return [_hostile_value(rng, schema.get("items"))] if kind == "array" and rng.random() < 0.5 else value
