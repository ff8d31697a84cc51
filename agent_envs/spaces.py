"""A text space for turns of any length and any characters, and example turns to sample from it."""

import itertools
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from gymnasium.spaces import Text
from gymnasium.vector.utils import create_shared_memory

from agent_envs.tools import Tool
from agent_envs.tools.schema import look_up
from agent_envs.types import ToolCall, Turn

_WORDS = "the first town"
LONGEST = 1_000_000  # characters of a text


class AnyText(Text):
    """Any string of up to ``max_length`` characters.

    ``gymnasium.spaces.Text`` checks each character against a set, and a full Unicode set costs hundreds of megabytes.
    Here only type and length decide membership. ``sample`` draws printable characters or, more often, one of ``phrases``,
    so that a random agent also takes well-formed turns.
    """

    def __init__(self, max_length: int = LONGEST, phrases: tuple[str, ...] = (), seed: int | None = None):
        super().__init__(max_length, min_length=0, charset=string.printable, seed=seed)
        self.phrases = phrases

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a string of at most ``max_length`` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Draw 1 to 39 printable characters, a phrase, or both in this order. Masks and probabilities are ignored."""
        noise = "".join(self.np_random.choice(self.character_list, self.np_random.integers(1, 40)))
        if not self.phrases or self.np_random.random() < 0.3:
            return noise[: self.max_length]
        phrase = self.phrases[self.np_random.integers(len(self.phrases))]
        return (phrase if self.np_random.random() < 0.8 else noise + phrase)[: self.max_length]

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, AnyText) and (self.max_length, self.phrases) == (other.max_length, other.phrases)

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"


@create_shared_memory.register(AnyText)
def _no_shared_memory(space: AnyText, n: int = 1, ctx: Any = None) -> None:
    """Reject shared memory: Gymnasium keeps a text there in an array of its maximum length, and then returns zeros."""
    raise ValueError("text does not live in shared memory: leave vectorization_mode out, or give shared_memory=False")


def example_turns(tools: Sequence[Tool], answers: bool) -> list[Turn]:
    """Return a well-formed turn for each tool, and one with an answer if ``answers``."""
    calls = [ToolCall(tool.name, _example({"type": "object", **tool.parameters}, tool.parameters)) for tool in tools]
    turns = [Turn(calls=(call,)) for call in calls]
    return turns + [Turn(answer=_WORDS)] * answers


def example_phrases(write: Callable[[Turn], str], tools: Sequence[Tool], answers: bool) -> tuple[str, ...]:
    """Write the `example_turns` by ``write`` of a format, without those that the format cannot express."""
    phrases = []
    for turn in example_turns(tools, answers):
        with suppress(ValueError):
            phrases.append(write(turn))
    return tuple(phrases)


def _example(
    schema: Any, root: dict[str, Any], within: tuple[str, ...] = (), parts: Iterator[int] | None = None
) -> Any:
    """Return a value that fits a JSON schema of a function's arguments; "the first town" for parts that are not understood.
    ``within``: the references followed so far, since a schema may contain itself. ``parts`` counts the parts of the value,
    since a small schema may ask for billions."""
    parts = itertools.count() if parts is None else parts
    if not isinstance(schema, dict) or next(parts) > 1000:
        return _WORDS
    if (reference := schema.get("$ref")) is not None:
        found = None if reference in within else look_up(reference, root)
        return None if reference in within else _example(found, root, (*within, reference), parts)
    given = [schema[key] for key in ("const", "default") if key in schema]
    if given := [*given, *(schema.get("enum") or schema.get("examples") or [])]:
        return next(filter(_is_plain, given), given[0])
    if options := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return _example(options[0], root, within, parts)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object":
        inner = schema.get("properties", {})
        return {name: _example(inner.get(name), root, within, parts) for name in schema.get("required", [])}
    if kind == "array":
        items = schema.get("items")
        endless = isinstance(items, dict) and items.get("$ref") in within
        return [] if endless else [_example(items, root, within, parts)] * min(max(1, schema.get("minItems", 1)), 20)
    if kind in ("integer", "number"):
        number = max(1 if kind == "integer" else 1.5, schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1))
        return min(number, schema.get("maximum", number))
    return True if kind == "boolean" else None if kind == "null" else _WORDS


def _is_plain(value: Any) -> bool:
    """Whether every format can write a value as an argument, as far as that is simple to tell."""
    return not isinstance(value, str) or (value.strip() == value != "" and "||" not in value)
