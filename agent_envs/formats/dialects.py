"""The dialect of a chat template, found by the family that reads back a known message of the template."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_envs.formats.base import Malformed, Unfinished
from agent_envs.formats.families import FAMILIES, Family, Response, Schemas, to_call
from agent_envs.formats.notations import quote_free
from agent_envs.types import ToolCall


@dataclass(frozen=True, slots=True)
class Dialect:
    """The way in which the models of a chat template write calls.

    Attributes:
        opens_thought: the generation prompt begins a thought.
        shows_thought: the template has a place for thoughts.
        parallel: it writes several calls in one turn.
        last_thought: the empty thought that it writes before calls in the last message of a conversation only.
    """

    family: Family
    opens_thought: bool = False
    shows_thought: bool = False
    parallel: bool = True
    last_thought: str = ""

    def read(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Response:
        """Parse a turn without its end. Raises `Malformed` if it is not well-formed."""
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        thought, response = "", Response()
        opening, closing = self.family.thought or ("", "")
        if not opening or self.family.channels:
            response = self.family.read(text, schemas)
        else:
            begins = self.opens_thought or text.lstrip().startswith(opening)
            if not begins:
                response = self.family.read(text, schemas)
            if begins or closing in response.text:  # a mark in the arguments of a call is not a thought's
                thought, text = _cut_thought(text, opening, closing)
                response = self.family.read(text, schemas)
            if opening in response.text or closing in response.text:
                kind = Unfinished if response.text.rfind(opening) > response.text.rfind(closing) else Malformed
                raise kind(f"{opening} may stand once, at the start, and must be closed with {closing}.")
        response.thoughts = [*filter(None, [thought]), *response.thoughts]
        if mark := next((mark for mark in self.family.marks if mark in response.text), None):
            raise Malformed(f"{mark} is out of place.")
        if len(response.calls) > 1 and not self.parallel:
            raise Malformed("A turn calls one function.")
        return response


def _cut_thought(text: str, opening: str, closing: str) -> tuple[str, str]:
    head, closed, rest = text.partition(closing)
    head = head.lstrip().removeprefix(opening)
    if not closed or opening in head:
        kind = Malformed if closed else Unfinished
        raise kind(f"A thought stands at the start, once, and is closed with {closing}.")
    return head.strip(), rest


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
    {"words": 'Who\'s to say "1 < 2",\nand C:\\new?', "count": 3, "exact": True, "among": ["Zürich", "7"]},
    {"words": "42"},
)
_NO_THOUGHT = "\u2063"
_KNOWN_THOUGHT, _KNOWN_RESULTS = "They-ask-for-words", ("first-result", "second-result")
_OPENED = re.compile(r"<think>\s*(?:</think>\s*)?\Z")
Render = Callable[..., str]  # (messages, tools, add_generation_prompt)


def read_by_tokenizer(tokenizer: Any, prompt: str) -> Family:
    """Make a family that parses turns by a tokenizer of `transformers` with a ``response_template``."""

    def read(text: str, schemas: Schemas) -> Response:
        tools = [{"type": "function", "function": {"name": n, "parameters": schema}} for n, schema in schemas.items()]
        try:
            message = tokenizer.parse_response(text, prefix=prompt, tools=tools)
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            thoughts = [str(message[name]) for name in ("reasoning_content", "thinking") if message.get(name)]
            made = [{"name": call["name"], "arguments": call.get("arguments") or {}} for call in calls]
            return Response(thoughts, [to_call(call, "arguments") for call in made], str(message.get("content") or ""))
        except Exception as problem:  # it may raise anything
            raise Malformed(f"The turn cannot be read: {one_line(problem)}") from None

    return Family("its own tokenizer", read, thought=None)


def find_dialect(render: Render, decode: Callable[[str], str], more: Sequence[Family] = ()) -> Dialect:
    """Find the dialect of a chat template: the first family that reads back a known message of the template. `FAMILIES` come
    before ``more``, since they tell a malformed call from text.

    Args:
        render: renders a conversation by the template, as text.
        decode: returns a turn as it looks after it was sampled.

    Raises:
        ValueError: function calls cannot be used; the message gives the reason in one line.
    """
    question = [{"role": "user", "content": "Look it up."}]
    try:
        prompt = render(question, [_KNOWN_TOOL], True)
        if prompt == render(question, None, True):
            raise ValueError("its chat template does not take tools")
    except ValueError:
        raise
    except Exception as error:  # templates are programs and may raise anything
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
) -> Dialect:
    calls = [ToolCall("look_up", arguments) for arguments in _KNOWN_ARGUMENTS[:count]]
    turn = _known_turn(count)
    thinking = {**turn, "reasoning_content": _KNOWN_THOUGHT, "thinking": _KNOWN_THOUGHT}
    alone = write_turn(render, turn, [_KNOWN_TOOL])
    if "look_up" not in alone:
        raise ValueError("its chat template leaves calls out")
    answered = _check_results(render, [*question, turn], count)
    whole = render([*question, thinking], [_KNOWN_TOOL], False)
    shows_thought = whole.startswith(prompt) and _KNOWN_THOUGHT in whole
    lead, later = alone.partition("look_up")[0], answered.removeprefix(prompt).partition("look_up")[0]
    last_thought = lead.removesuffix(later) if answered.startswith(prompt) and lead.endswith(later) else ""
    texts = {False: decode(alone)}
    for family in families:
        if family.unquoted and True not in texts:
            texts[True] = decode(write_turn(render, _known_turn(count, quote_free), [_KNOWN_TOOL]))
        text = texts[family.unquoted]
        for end in family.ends:
            text = text.removesuffix(end)
        dialect = Dialect(family, prompt.rstrip().endswith("<think>"), shows_thought, count > 1, last_thought)
        try:
            response = dialect.read(text, [_KNOWN_TOOL])
        except Malformed:
            continue
        if [(call.name, call.arguments) for call in response.calls] == [(call.name, call.arguments) for call in calls]:
            return dialect
    raise ValueError(f"nothing here reads calls that are written as {texts[False]!r}")


def _known_turn(count: int, quote: Callable[[Any], Any] = lambda value: value) -> dict[str, Any]:
    made = [{name: quote(value) for name, value in given.items()} for given in _KNOWN_ARGUMENTS[:count]]
    calls = [to_tool_call("look_up", arguments, f"known000{i}") for i, arguments in enumerate(made)]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _check_results(render: Render, messages: list[dict[str, Any]], count: int) -> str:
    """Render a conversation with the results of its last message's calls, up to the next turn. Raises ValueError if results
    are left out or reordered, or if a turn after results begins differently than the first turn."""
    results = [
        {"role": "tool", "name": "look_up", "tool_call_id": f"known000{i}", "content": _KNOWN_RESULTS[i]}
        for i in range(count)
    ]
    answered = render([*messages, *results], [_KNOWN_TOOL], True)
    places = [answered.find(told) for told in _KNOWN_RESULTS[:count]]
    if -1 in places or places != sorted(places):
        raise ValueError("its chat template leaves out results, or changes their order")
    leads = []  # between the generation prompt and the text, of the first turn and of one after results
    for before in (messages[:-1], [*messages, *results]):
        stem = _OPENED.sub("", render(before, [_KNOWN_TOOL], True))
        whole = render([*before, {"role": "assistant", "content": "Zug"}], [_KNOWN_TOOL], False)
        leads.append(whole.removeprefix(stem).partition("Zug")[0])
    if leads[0] != leads[1]:
        raise ValueError("its chat template begins a turn after results in another way than its generation prompt")
    return answered


def write_known_calls(render: Render) -> str:
    """Render a conversation with a call and its result, to find the marks around them; "" if the template fails."""
    question = {"role": "user", "content": "Look it up."}
    result = {"role": "tool", "name": "look_up", "tool_call_id": "known0000", "content": _KNOWN_RESULTS[0]}
    try:
        return render([question, _known_turn(1), result], [_KNOWN_TOOL], True)
    except Exception:  # templates are programs and may raise anything
        return ""


def write_turn(render: Render, message: dict[str, Any], tools: Sequence[Mapping[str, Any]] | None) -> str:
    """Return what a chat template writes for an assistant's message after a generation prompt. If the message has no thought,
    one that the prompt opens is closed.

    Raises:
        ValueError: the template does not write the message after the generation prompt.
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
    """Make a call of a message; chat templates take ``arguments`` as an object, the API as its JSON."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
