"""Families of models by the syntax of their calls: a sampled turn is parsed into the parts of an assistant message."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_envs.formats.base import Malformed, Unfinished
from agent_envs.formats.harmony import read_messages
from agent_envs.formats.json_text import read_value, read_value_at
from agent_envs.formats.notations import WORDS, read_calls, read_nested, skip
from agent_envs.types import ToolCall

Schemas = Mapping[str, Mapping[str, Any]]  # of the parameters of functions, by their names


@dataclass(slots=True)
class Response:
    """The parts of a turn: thoughts, calls, and the text outside of both."""

    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    text: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """A way to write calls.

    Attributes:
        read: parses a turn without its end, given the `Schemas`, into a `Response`. Raises only `Malformed`, for text that is
            not a turn of this family; takes time linear in the length of the text.
        marks: strings that occur only around calls and results.
        thought: marks around a thought at the start of a turn; None if unknown.
        channels: a turn is made of messages, some of which are thoughts; `read` finds these itself.
        unquoted: the template puts strings between quotes without escaping them, so they are escaped beforehand.
        ends: tokens that end a turn, if the template does not show them.
        goes_on: tokens that end a message but not the turn.
    """

    name: str
    read: Callable[[str, Schemas], Response]
    marks: tuple[str, ...] = ()
    thought: tuple[str, str] | None = ("<think>", "</think>")
    channels: bool = False
    unquoted: bool = False
    ends: tuple[str, ...] = ()
    goes_on: tuple[str, ...] = ()


def _read_between(
    opening: str, closing: str, read_one: Callable[[str, int, Schemas], tuple[list[ToolCall], int]]
) -> Callable:
    """Make a reader of calls after ``opening``: ``read_one`` gets the place after it, and returns the calls and their end."""

    def read(text: str, schemas: Schemas) -> Response:
        calls, outside, place = list[ToolCall](), list[str](), 0
        while (start := text.find(opening, place)) >= 0:
            outside.append(text[place:start])
            try:
                made, place = read_one(text, start + len(opening), schemas)
            except Malformed as problem:
                if closing and text.find(closing, start) >= 0:
                    raise
                raise Unfinished(str(problem)) from None
            calls += made
        return Response(calls=calls, text="".join([*outside, text[place:]]))

    return read


# -- JSON --------------------------------------------------------------------------------------------------------------


def _read_hermes(text: str, place: int, schemas: Schemas) -> tuple[list[ToolCall], int]:
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""
    made, end = read_value_at(text, place, "A <tool_call> must hold a JSON object")
    return [to_call(made, "arguments")], skip(text, end, "</tool_call>")


def _read_llama(text: str, schemas: Schemas) -> Response:
    """``{"name": …, "parameters": {…}}`` as the whole turn, or several of them with semicolons between them."""
    body = text.strip().removeprefix("<|python_tag|>").lstrip()
    if not body.startswith("{"):
        return Response(text=text)
    response, place = Response(), 0
    while place < len(body):
        made, end = read_value_at(body, place, "A call must be a JSON object")
        response.calls.append(to_call(made, "parameters"))
        place = _SEPARATOR.match(body, end).end()  # type: ignore[union-attr]  # it also matches ""
        if place < len(body) and body[place] != "{":
            raise Malformed("A turn that calls functions holds nothing but the calls.")
    return response


_SEPARATOR = re.compile(r"[\s;]*")


def _read_list(opening: str, closing: str, arguments: str) -> Callable[[str, Schemas], Response]:
    """``opening [{"name": …, arguments: {…}}, …] closing``, or one name and its arguments after the opening."""
    named = re.compile(r"\s*([\w./-]+)(?:\[CALL_ID\](\w+))?(?:\[ARGS\])?(?=\s*\{)")

    def read_one(text: str, place: int, schemas: Schemas) -> tuple[list[ToolCall], int]:
        name = named.match(text, place)
        made, end = read_value_at(text, name.end() if name else place, "Calls must be JSON")
        if name:
            made = {"name": name[1], arguments: made, "id": name[2] or ""}
        calls = [to_call(call, arguments) for call in (made if isinstance(made, list) else [made])]
        return calls, skip(text, end, closing)

    return _read_between(opening, closing, read_one)


def to_call(made: Any, arguments: str) -> ToolCall:
    """Convert parsed JSON to a call; it may also have an id and a type."""
    if not isinstance(made, dict) or not isinstance(name := made.get("name", made.get("tool_name")), str):
        raise Malformed(f'A call must have a "name" and "{arguments}".')
    known = {"name", "tool_name", arguments, "id", "tool_call_id", "type"}
    given, id = made.get(arguments, {}), made.get("id", made.get("tool_call_id", ""))
    if unknown := made.keys() - known:
        raise Malformed(f'A call has a "name" and "{arguments}", and no {sorted(unknown)[0][:100]!r}.')
    if not isinstance(given, dict) or not isinstance(id, str):
        raise Malformed(f'The "{arguments}" of a call must be a JSON object.')
    return ToolCall(name, given, id=id)


# -- values between tags -----------------------------------------------------------------------------------------------

_FUNCTION, _PARAMETER = re.compile(r"\s*<function=([^<>\s]+)>\s*"), re.compile(r"<parameter=([^<>\n]+)>")
_NAME, _KEY = re.compile(r"\s*([^\s<>]+)\s*"), re.compile(r"<arg_key>([^<>]+)</arg_key>\s*<arg_value>")


def _read_tags(
    begin: re.Pattern[str],
    key: re.Pattern[str],
    value_end: str,
    call_end: str,
    framed: bool,
    opening: str = "<tool_call>",
) -> Callable[[str, Schemas], Response]:
    """``opening``, the name, keys with their values between tags, ``call_end``.

    ``framed``: the line breaks around a value are not part of it.
    """

    def read_one(text: str, place: int, schemas: Schemas) -> tuple[list[ToolCall], int]:
        found = begin.match(text, place)
        if not found:
            raise Malformed(f"A {opening} begins with the name of the function.")
        arguments: dict[str, Any] = {}
        properties, place = schemas.get(found[1], {}).get("properties", {}), found.end()
        while pair := key.match(text, place):
            end = text.find(value_end, pair.end())
            if end < 0 or pair[1] in arguments:
                raise Malformed(f"{pair[1][:100]!r} has no end, or is there twice.")
            value = text[pair.end() : end]
            value = value.removeprefix("\n").removesuffix("\n") if framed else value
            arguments[pair[1]] = read_typed(value, properties.get(pair[1], {}))
            place = skip(text, end, value_end)
            place = skip(text, place, "")
        for tag in call_end.split():
            place = skip(text, place, tag)
        return [ToolCall(found[1], arguments)], place

    return _read_between(opening, call_end.split()[-1], read_one)


def read_typed(text: str, schema: Any) -> Any:
    """Read a value without quotes by its schema: a string if only strings are allowed, else JSON. Other text stays a string,
    and the tool reports the error."""
    kinds = kinds_of(schema)
    if text in ("null", "None") and "null" in kinds:
        return None
    if kinds and not kinds - {"string", "null"}:
        return text
    try:
        return WORDS[text] if text in WORDS else read_value(text, "")
    except Malformed:
        return text


def kinds_of(schema: Any) -> set[str]:
    """Return the types that a schema allows; empty if it does not restrict them."""
    if not isinstance(schema, dict):
        return set()
    options, enum, kind = schema.get("anyOf") or schema.get("oneOf"), schema.get("enum"), schema.get("type")
    if isinstance(options, list) and options:
        return set().union(*map(kinds_of, options)) if all(map(kinds_of, options)) else set()
    if isinstance(enum, list) and all(isinstance(option, str) for option in enum):
        return {"string"}
    return {name for name in (kind if isinstance(kind, list) else [kind]) if isinstance(name, str)}


# -- Gemma -------------------------------------------------------------------------------------------------------------

_CALL = re.compile(r"\s*call:([\w./-]+)(?=\{)")


def _read_gemma(opening: str, closing: str, quote: str) -> Callable[[str, Schemas], Response]:
    """``opening call:name{key:value,…} closing``, strings between two ``quote``."""

    def read_string(text: str, place: int) -> tuple[str, int] | None:
        if not text.startswith(quote, place):
            return None
        end = text.find(quote, place + len(quote))
        if end < 0:
            raise Malformed("A string is not closed.")
        return text[place + len(quote) : end], end + len(quote)

    def read_one(text: str, place: int, schemas: Schemas) -> tuple[list[ToolCall], int]:
        found = _CALL.match(text, place)
        if not found:
            raise Malformed("A call begins with call: and the name of the function.")
        arguments, end = read_nested(text, found.end(), read_string)
        return [ToolCall(found[1], arguments)], skip(text, end, closing)

    return _read_between(opening, closing, read_one)


# -- Python ------------------------------------------------------------------------------------------------------------


def _read_lfm2(text: str, place: int, schemas: Schemas) -> tuple[list[ToolCall], int]:
    calls, end = read_calls(text, place)
    return calls, skip(text, end, "<|tool_call_end|>")


# -- DeepSeek ----------------------------------------------------------------------------------------------------------

_DEEPSEEK_CALL = re.compile(
    r"\s*<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>([\w./-]+)\s*```json|([\w./-]+)<｜tool▁sep｜>)"
)


def _read_deepseek(text: str, place: int, schemas: Schemas) -> tuple[list[ToolCall], int]:
    """``function`` and a name, then JSON in a fence (V3, R1); or a name and JSON (V3.1)."""
    calls = []
    while found := _DEEPSEEK_CALL.match(text, place):
        given, place = read_value_at(text, found.end(), "A call must hold a JSON object")
        place = skip(text, place, "```" if found[1] else "")
        place = skip(text, place, "<｜tool▁call▁end｜>")
        calls.append(to_call({"name": found[1] or found[2], "arguments": given}, "arguments"))
    if not calls:
        raise Malformed("A call begins with <｜tool▁call▁begin｜> and the name of the function.")
    return calls, skip(text, place, "<｜tool▁calls▁end｜>")


# -- channels ----------------------------------------------------------------------------------------------------------


def _read_harmony(text: str, schemas: Schemas) -> Response:
    thoughts, calls, answers = read_messages(text)
    return Response(thoughts, calls, "\n".join(answers))


_TO = re.compile(r"(?:\s*<\|start\|>assistant)?\s+to=([^\s<>]+)<\|message\|>(.*?)(<\|eom\|>|<\|eot\|>|\Z)", re.DOTALL)
_INVOKE = re.compile(r'\s*<atem:invoke name="([^"<>]+)">\s*')
_NAMED_PARAMETER = re.compile(r'<atem:parameter name="([^"<>]+)">')


def _read_muse(text: str, schemas: Schemas) -> Response:
    """Messages to ``self``, which are thoughts, to the ``user``, and to functions."""
    response, texts, text, place = Response(), list[str](), text.rstrip(), 0
    while place < len(text):
        if not (message := _TO.match(text, place)):
            raise Malformed("The turn is not made of messages, to=self, to=user or to=the name of a function.")
        recipient, content, place = message[1], message[2].strip(), message.end()
        if recipient == "self" and not message[3]:
            raise Unfinished("The message to=self is never ended.")
        if recipient == "self":
            response.thoughts.append(content)
        elif recipient == "user":
            texts.append(content)
        else:
            made = _read_muse_calls(content, schemas)
            if not made.calls or made.text.strip():
                raise Malformed(f"A message to a function holds calls alone, got one to {recipient[:100]!r}.")
            response.calls += made.calls
    response.text = "\n".join(texts)
    return response


_read_muse_calls = _read_tags(
    _INVOKE,
    _NAMED_PARAMETER,
    "</atem:parameter>",
    "</atem:invoke> </atem:function_calls>",
    False,
    "<atem:function_calls>",
)

# -- all of them -------------------------------------------------------------------------------------------------------

_SEED_THOUGHT = ("<seed:think>", "</seed:think>")  # of Seed-OSS, whose calls are not read
_LFM2 = _read_between("<|tool_call_start|>", "<|tool_call_end|>", _read_lfm2)
_RESPONSE = ("<tool_response>", "</tool_response>")
_TAGS = ("<tool_call>", "</tool_call>", *_RESPONSE)
FAMILIES = (
    Family("Hermes", _read_between("<tool_call>", "</tool_call>", _read_hermes), _TAGS),
    Family(
        "Qwen3-Coder", _read_tags(_FUNCTION, _PARAMETER, "</parameter>", "</function> </tool_call>", True),
        (*_TAGS, "<function=", "</function>", "<parameter=", "</parameter>"),
    ),
    Family(
        "GLM", _read_tags(_NAME, _KEY, "</arg_value>", "</tool_call>", False), (*_TAGS, "<arg_key>", "<arg_value>"),
        ends=("<|observation|>", "<|user|>"),
    ),
    Family("Mistral", _read_list("[TOOL_CALLS]", "", "arguments"), ("[TOOL_CALLS]", "[TOOL_RESULTS]"), ("[THINK]", "[/THINK]")),
    Family("Granite", _read_list("<|tool_call|>", "", "arguments"), ("<|tool_call|>",)),
    Family("Phi-4", _read_list("<|tool_call|>", "<|/tool_call|>", "arguments"), ("<|tool_call|>", "<|/tool_call|>")),
    Family(
        "Cohere", _read_list("<|START_ACTION|>", "<|END_ACTION|>", "parameters"), ("<|START_ACTION|>",),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    Family(
        "Gemma 4", _read_gemma("<|tool_call>", "<tool_call|>", '<|"|>'), ("<|tool_call>", "<|tool_response>"),
        ("<|channel>thought\n", "<channel|>"), ends=("<|tool_response>", "<turn|>"),
    ),
    Family(
        "FunctionGemma", _read_gemma("<start_function_call>", "<end_function_call>", "<escape>"),
        ("<start_function_call>", "<start_function_response>"),
    ),
    Family("LFM2", _LFM2, ("<|tool_call_start|>",)),
    Family("LFM2.5", _LFM2, ("<|tool_call_start|>",), unquoted=True),
    Family(
        "DeepSeek", _read_between("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _read_deepseek), ("<｜tool▁calls▁begin｜>",)
    ),
    Family(
        "harmony", _read_harmony, thought=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"), channels=True,
        ends=("<|call|>", "<|return|>"), goes_on=("<|end|>",),
    ),
    Family(
        "Muse", _read_muse, thought=(" to=self<|message|>", "<|eom|><|start|>assistant"), channels=True, goes_on=("<|eom|>",)
    ),
    Family("Llama", _read_llama, ("<|python_tag|>",)),
)  # fmt: skip


def find_thought(chat_template: Any, family: Family | None, tokens: Iterable[str]) -> tuple[str, str] | None:
    """Find the marks around a thought: those of the dialect's ``family`` if the model has such ``tokens``, as not all models of a
    family think; else those of the first family whose marks are in the template."""
    if family and family.thought and (family.channels or any(map(family.thought[0].startswith, tokens))):
        return family.thought
    known = [f.thought for f in FAMILIES if f.thought and not f.channels] + [_SEED_THOUGHT]
    return next((marks for marks in known if all(m.strip() in str(chat_template) for m in marks)), None)
