"""How families of models write function calls: what a model sampled is read as the parts of an assistant message.

Which family a chat template is of is found by rendering a known message and reading it back (`find_dialect`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_envs.formats.base import Malformed, Unfinished
from agent_envs.formats.blocks import split_thought
from agent_envs.formats.harmony import read_messages
from agent_envs.formats.json_text import read_value, read_value_at
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
        read: the `Response` of a turn without its end, given the `Schemas`. Raises `Malformed`, and nothing else, for what is no
            turn of this family; takes time linear in the length of the text.
        marks: strings that stand nowhere but around calls and results.
        thought: what a thought stands between, at the start of a turn; None where `read` finds thoughts itself.
        ends: tokens that end a turn, where the template alone does not tell.
        goes_on: tokens that end a message, and not the turn.
    """

    name: str
    read: Callable[[str, Schemas], Response]
    marks: tuple[str, ...] = ()
    thought: tuple[str, str] | None = ("<think>", "</think>")
    ends: tuple[str, ...] = ()
    goes_on: tuple[str, ...] = ()


def _read_between(
    opening: str, closing: str, read_one: Callable[[str, int, Schemas], tuple[list[ToolCall], int]]
) -> Callable:
    """A reader of what begins with ``opening``: ``read_one`` gets the place after it, and returns calls and where they end."""

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
    return [_to_call(made, "arguments")], _skip(text, end, "</tool_call>")


def _read_llama(text: str, schemas: Schemas) -> Response:
    """``{"name": …, "parameters": {…}}`` is the whole turn, several of them stand between semicolons."""
    body = text.strip().removeprefix("<|python_tag|>").lstrip()
    if not body.startswith("{"):
        return Response(text=text)
    response, place = Response(), 0
    while place < len(body):
        made, end = read_value_at(body, place, "A call must be a JSON object")
        response.calls.append(_to_call(made, "parameters"))
        place = _SEPARATOR.match(body, end).end()  # type: ignore[union-attr]  # it matches nothing as well
        if place < len(body) and body[place] != "{":
            raise Malformed("A turn that calls functions holds nothing but the calls.")
    return response


_SEPARATOR = re.compile(r"[\s;]*")


def _read_list(opening: str, closing: str, arguments: str) -> Callable[[str, Schemas], Response]:
    """``opening [{"name": …, arguments: {…}}, …] closing``, or one name and its arguments behind the opening."""
    named = re.compile(r"\s*([\w./-]+)(?:\[CALL_ID\](\w+))?(?:\[ARGS\])?(?=\s*\{)")

    def read_one(text: str, place: int, schemas: Schemas) -> tuple[list[ToolCall], int]:
        name = named.match(text, place)
        made, end = read_value_at(text, name.end() if name else place, "Calls must be JSON")
        if name:
            made = {"name": name[1], arguments: made, "id": name[2] or ""}
        calls = [_to_call(call, arguments) for call in (made if isinstance(made, list) else [made])]
        return calls, _skip(text, end, closing)

    return _read_between(opening, closing, read_one)


def _to_call(made: Any, arguments: str) -> ToolCall:
    """``made`` may also give the call an id, and its type."""
    if not isinstance(made, dict) or not isinstance(name := made.get("name", made.get("tool_name")), str):
        raise Malformed(f'A call must have a "name" and "{arguments}".')
    known = {"name", "tool_name", arguments, "id", "tool_call_id", "type"}
    given, id = made.get(arguments, {}), made.get("id", made.get("tool_call_id", ""))
    if unknown := made.keys() - known:
        raise Malformed(f'A call has a "name" and "{arguments}", and no {sorted(unknown)[0][:100]!r}.')
    if not isinstance(given, dict) or not isinstance(id, str):
        raise Malformed(f'The "{arguments}" of a call must be a JSON object.')
    return ToolCall(name, given, id=id)


def _skip(text: str, place: int, expected: str) -> int:
    """The place after ``expected``, which stands at ``place`` or after white space there."""
    while place < len(text) and text[place].isspace():
        place += 1
    if not text.startswith(expected, place):
        raise Malformed(f"A call is not closed with {expected}.")
    return place + len(expected)


# -- values between tags -----------------------------------------------------------------------------------------------

_FUNCTION, _PARAMETER = re.compile(r"\s*<function=([^<>\s]+)>\s*"), re.compile(r"<parameter=([^<>\n]+)>")
_NAME, _KEY = re.compile(r"\s*([^\s<>]+)\s*"), re.compile(r"<arg_key>([^<>]+)</arg_key>\s*<arg_value>")


def _read_tags(
    begin: re.Pattern[str], key: re.Pattern[str], value_end: str, call_end: str, framed: bool
) -> Callable[[str, Schemas], Response]:
    """``<tool_call>``, the name, keys with their values between tags, ``call_end``.

    ``framed``: a value stands between line breaks that are not its own.
    """

    def read_one(text: str, place: int, schemas: Schemas) -> tuple[list[ToolCall], int]:
        found = begin.match(text, place)
        if not found:
            raise Malformed("A <tool_call> begins with the name of the function.")
        arguments: dict[str, Any] = {}
        properties, place = schemas.get(found[1], {}).get("properties", {}), found.end()
        while pair := key.match(text, place):
            end = text.find(value_end, pair.end())
            if end < 0 or pair[1] in arguments:
                raise Malformed(f"{pair[1][:100]!r} has no end, or is there twice.")
            value = text[pair.end() : end]
            value = value.removeprefix("\n").removesuffix("\n") if framed else value
            arguments[pair[1]] = read_typed(value, properties.get(pair[1], {}))
            place = _skip(text, end, value_end)
            place = _skip(text, place, "")
        for tag in call_end.split():
            place = _skip(text, place, tag)
        return [ToolCall(found[1], arguments)], place

    return _read_between("<tool_call>", "</tool_call>", read_one)


def read_typed(text: str, schema: Any) -> Any:
    """A value without quotes, of the type that its schema wants: a string where it takes strings alone, else JSON; what is
    neither stays text, and the tool says what it wants."""
    kinds = kinds_of(schema)
    if text in ("null", "None") and "null" in kinds:
        return None
    if kinds and not kinds - {"string", "null"}:
        return text
    try:
        return _PYTHON[text] if text in _PYTHON else read_value(text, "")
    except Malformed:
        return text


_PYTHON = {"True": True, "False": False, "None": None}  # as templates write them that print values


def kinds_of(schema: Any) -> set[str]:
    """The types that a schema allows; empty where it does not say."""
    if not isinstance(schema, dict):
        return set()
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return set().union(*map(kinds_of, options)) if all(map(kinds_of, options)) else set()
    if "enum" in schema and all(isinstance(option, str) for option in schema["enum"]):
        return {"string"}
    kind = schema.get("type", [])
    return {kind} if isinstance(kind, str) else set(kind)


# -- Gemma -------------------------------------------------------------------------------------------------------------

_CALL = re.compile(r"\s*call:([\w./-]+)(?=\{)")
_BARE = re.compile(r"[^,:{}\[\]<]*")


def _read_gemma(opening: str, closing: str, quote: str) -> Callable[[str, Schemas], Response]:
    """``opening call:name{key:value,…} closing``, strings between two ``quote``."""

    def read_one(text: str, place: int, schemas: Schemas) -> tuple[list[ToolCall], int]:
        found = _CALL.match(text, place)
        if not found:
            raise Malformed("A call begins with call: and the name of the function.")
        arguments, end = _read_gemma_value(text, found.end(), quote, 0)
        return [ToolCall(found[1], arguments)], _skip(text, end, closing)

    return _read_between(opening, closing, read_one)


def _read_gemma_value(text: str, place: int, quote: str, depth: int) -> tuple[Any, int]:
    """The value at a place, and where it ends."""
    if text.startswith(quote, place):
        end = text.find(quote, place + len(quote))
        if end < 0:
            raise Malformed("A string is not closed.")
        return text[place + len(quote) : end], end + len(quote)
    closing = {"{": "}", "[": "]"}.get(text[place : place + 1])
    if closing is None:
        bare = _BARE.match(text, place)
        assert bare
        return read_value(bare[0], "An argument must be a number, true, false, null or a quoted string"), bare.end()
    if depth > 50:
        raise Malformed("The arguments are nested more than 50 levels deep.")
    pairs: dict[str, Any] = {}
    values: list[Any] = []
    place += 1
    while not text.startswith(closing, place):
        if closing == "}":
            key, place = _read_gemma_key(text, place, quote)
            if key in pairs:
                raise Malformed(f"The key {key[:100]!r} is there twice.")
            pairs[key], place = _read_gemma_value(text, place, quote, depth + 1)
        else:
            value, place = _read_gemma_value(text, place, quote, depth + 1)
            values.append(value)
        if text.startswith(",", place):
            place += 1
        elif not text.startswith(closing, place):
            raise Malformed("The arguments are not closed.")
    return (pairs if closing == "}" else values), place + 1


def _read_gemma_key(text: str, place: int, quote: str) -> tuple[str, int]:
    if text.startswith(quote, place):
        key, end = _read_gemma_value(text, place, quote, 0)
    else:
        bare = _BARE.match(text, place)
        assert bare
        key, end = bare[0], bare.end()
    if not text.startswith(":", end):
        raise Malformed("An argument is written as key:value.")
    return key, end + 1


# -- which one ---------------------------------------------------------------------------------------------------------


def _read_harmony(text: str, schemas: Schemas) -> Response:
    thoughts, calls, answers = read_messages(text)
    return Response(thoughts, calls, "\n".join(answers))


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
    Family("Cohere", _read_list("<|START_ACTION|>", "<|END_ACTION|>", "parameters"), ("<|START_ACTION|>",)),
    Family(
        "Gemma 4", _read_gemma("<|tool_call>", "<tool_call|>", '<|"|>'), ("<|tool_call>", "<|tool_response>"),
        ("<|channel>thought", "<channel|>"), ends=("<|tool_response>", "<turn|>"),
    ),
    Family(
        "FunctionGemma", _read_gemma("<start_function_call>", "<end_function_call>", "<escape>"),
        ("<start_function_call>", "<start_function_response>"),
    ),
    Family("harmony", _read_harmony, thought=None, ends=("<|call|>", "<|return|>"), goes_on=("<|end|>",)),
    Family("Llama", _read_llama, ("<|python_tag|>",)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dialect:
    """The way in which the models of a chat template write calls.

    Attributes:
        opens_thought: the generation prompt begins a thought.
        shows_thought: the template has a place for thoughts.
        parallel: it writes several calls in one turn.
    """

    family: Family
    opens_thought: bool = False
    shows_thought: bool = False
    parallel: bool = True

    def read(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Response:
        """Read a turn without its end. Raises `Malformed` where it is none."""
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        thoughts: list[str] = []
        if self.family.thought:
            thoughts, text = split_thought(text, *self.family.thought)
            if self.opens_thought and not thoughts:
                raise Unfinished("The thought is never closed with </think>.")
        response = self.family.read(text, schemas)
        response.thoughts = [*filter(None, thoughts), *response.thoughts]
        if mark := next((mark for mark in self.family.marks if mark in response.text), None):
            raise Malformed(f"{mark} is out of place.")
        if len(response.calls) > 1 and not self.parallel:
            raise Malformed("A turn calls one function.")
        return response


_KNOWN_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look words up.",
        "parameters": {
            "type": "object",
            "properties": {
                "words": {"type": "string", "description": "what is looked up"},
                "count": {"type": "integer", "description": "how many"},
                "exact": {"type": "boolean", "description": "in this case"},
                "among": {"type": "array", "items": {"type": "string"}, "description": "where"},
            },
            "required": ["words"],
        },
    },
}
_KNOWN_ARGUMENTS = (
    {"words": 'Who said "1 < 2",\nand when?', "count": 3, "exact": True, "among": ["Zürich", "7"]},
    {"words": "42"},
)
_NO_THOUGHT = "\u2063"
_KNOWN_THOUGHT, _KNOWN_RESULTS = "They-ask-for-words", ("first-result", "second-result")
Render = Callable[..., str]  # (messages, tools, add_generation_prompt)


def read_by_tokenizer(tokenizer: Any, prompt: str) -> Family:
    """How a tokenizer of `transformers` with a ``response_template`` reads turns after a generation prompt."""

    def read(text: str, schemas: Schemas) -> Response:
        tools = [{"type": "function", "function": {"name": n, "parameters": schema}} for n, schema in schemas.items()]
        try:
            message = tokenizer.parse_response(text, prefix=prompt, tools=tools)
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            thoughts = [str(message[name]) for name in ("reasoning_content", "thinking") if message.get(name)]
            made = [{"name": call["name"], "arguments": call.get("arguments") or {}} for call in calls]
            return Response(thoughts, [_to_call(call, "arguments") for call in made], str(message.get("content") or ""))
        except Exception as problem:  # it raises what it likes
            raise Malformed(f"The turn cannot be read: {one_line(problem)}") from None

    return Family("its own tokenizer", read, thought=None)


def find_dialect(render: Render, decode: Callable[[str], str], more: Sequence[Family] = ()) -> Dialect:
    """The dialect of a chat template: it writes a known message, which one of the `FAMILIES` reads back, or of ``more``. Ours
    come first, since they tell a malformed call from text.

    Args:
        render: a conversation by the template, as text.
        decode: a turn as it looks after it was sampled.

    Raises:
        ValueError: why function calls cannot be used, in one line.
    """
    question = [{"role": "user", "content": "Look it up."}]
    try:
        prompt = render(question, [_KNOWN_TOOL], True)
        if prompt == render(question, None, True):
            raise ValueError("its chat template does not take tools")
    except ValueError:
        raise
    except Exception as error:  # templates are programs, and raise what they like
        raise ValueError(f"its chat template does not take tools: {one_line(error)}") from error
    problems = []
    for count in (2, 1):
        try:
            return _find(render, decode, question, prompt, count, (*FAMILIES, *more))
        except Exception as error:
            problems.append(one_line(error))
    raise ValueError(problems[0] if problems[0] == problems[1] else "; with one call: ".join(problems))


def _find(
    render: Render, decode: Callable[[str], str], question: list, prompt: str, count: int, families: Sequence[Family]
) -> Dialect:  # fmt: skip
    calls = [ToolCall("look_up", arguments) for arguments in _KNOWN_ARGUMENTS[:count]]
    made = [to_tool_call(call.name, call.arguments, f"known000{i}") for i, call in enumerate(calls)]
    turn = {"role": "assistant", "content": "", "tool_calls": made}
    thinking = {**turn, "reasoning_content": _KNOWN_THOUGHT, "thinking": _KNOWN_THOUGHT}
    text = decode(write_turn(render, turn, [_KNOWN_TOOL]))
    results = [
        {"role": "tool", "name": "look_up", "tool_call_id": call["id"], "content": told}
        for call, told in zip(made, _KNOWN_RESULTS, strict=False)
    ]
    answered = render([*question, turn, *results], [_KNOWN_TOOL], True)
    places = [answered.find(told) for told in _KNOWN_RESULTS[:count]]
    if -1 in places or places != sorted(places):
        raise ValueError("its chat template leaves out results, or changes their order")
    whole = render([*question, thinking], [_KNOWN_TOOL], False)
    shows_thought = whole.startswith(prompt) and _KNOWN_THOUGHT in whole
    for family in families:
        for end in family.ends:
            text = text.removesuffix(end)
        dialect = Dialect(family, prompt.rstrip().endswith("<think>"), shows_thought, parallel=count > 1)
        try:
            response = dialect.read(text, [_KNOWN_TOOL])
        except Malformed:
            continue
        if [(call.name, call.arguments) for call in response.calls] == [(call.name, call.arguments) for call in calls]:
            return dialect
    raise ValueError(f"nothing here reads calls that are written as {text!r}")


def write_known_calls(render: Render) -> str:
    """A conversation with a call and its result as the template writes it, for the marks around them; "" where it cannot."""
    question = {"role": "user", "content": "Look it up."}
    call = to_tool_call("look_up", _KNOWN_ARGUMENTS[1], "known0000")
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "name": "look_up", "tool_call_id": "known0000", "content": _KNOWN_RESULTS[0]}
    try:
        return render([question, turn, result], [_KNOWN_TOOL], True)
    except Exception:  # templates are programs, and raise what they like
        return ""


def write_turn(render: Render, message: dict[str, Any], tools: Sequence[Mapping[str, Any]] | None) -> str:
    """What a chat template writes of an assistant's message after a generation prompt. A thought that the prompt opens is
    closed where the message has none.

    Raises:
        ValueError: it writes the message in another place.
    """
    question = [{"role": "user", "content": "Look it up."}]
    before, after = render(question, tools, True), render([*question, message], tools, False)
    if not after.startswith(before) and not message.get("reasoning_content"):
        after = render([*question, {**message, "reasoning_content": _NO_THOUGHT}], tools, False).replace(
            _NO_THOUGHT, ""
        )
    if not after.startswith(before):
        raise ValueError("its chat template does not put a turn after its generation prompt")
    return after[len(before) :]


def to_tool_call(name: str, arguments: Any, id: str) -> dict[str, Any]:
    """A call in a message: for chat templates the arguments are an object, in the API its JSON."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
