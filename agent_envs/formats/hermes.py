"""Calls as JSON between ``<tool_call>`` tags: the form of Hermes, and of the Qwen models."""

import re
from collections.abc import Sequence

from agent_envs.formats.base import Format, Malformed, check_tools, exact, make_turn, total
from agent_envs.formats.blocks import escape, list_tags, read_blocks, tag_pattern
from agent_envs.formats.json_text import dumps, function_schema, read_object
from agent_envs.tools import Tool
from agent_envs.types import ToolCall, ToolResult, Turn

_NAMES = ("tool_call", "tool_response", "answer")
_TAG, _ANY_TAG = tag_pattern(_NAMES), tag_pattern([*_NAMES, "tools"])
_CALL = '<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>'
_ANSWER = "<answer>text</answer>"
# Text by which a result could end its block, or pose as the agent or as another message (``<|im_start|>``).
_CONTROL = re.compile(r"<(?=\|\w+\|>|/?(?:tool_response|tool_call|tools|answer|think)>)", re.IGNORECASE)


class Hermes(Format):
    """The form of Hermes function calling (NousResearch) and of Qwen 2.5 and 3.

    A call is ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``. Results come in ``<tool_response>…</tool_response>``, in
    the order of the calls. The final answer is in ``<answer>…</answer>``, reasoning in ``<think>…</think>``.
    """

    name = "hermes"
    tags = list_tags([*_NAMES, "tools"])

    def __init__(self, tools: Sequence[Tool], *, answers: bool = True):
        check_tools(tools, answers)
        self._tools, self._answers = tools, answers
        self._usage = " or ".join([_CALL] * bool(tools) + [_ANSWER] * answers)
        self.stop = (*["<tool_response>"] * bool(tools), *["</answer>"] * answers)

    def instructions(self) -> str:
        text = "In each turn you may think inside <think></think>, and then act."
        if self._tools:
            schemas = "\n".join(escape(dumps(function_schema(tool)), _ANY_TAG) for tool in self._tools)
            text += (
                f"\n\n# Tools\n\nThese functions may be called:\n<tools>\n{schemas}\n</tools>\n\nFor a call, write its name "
                f"and arguments as a JSON object inside <tool_call></tool_call>:\n{_CALL}\nSeveral calls in one turn run "
                "together. Results come back inside <tool_response></tool_response>, in the same order."
            )
        if self._answers:
            text += f"\n\nTo finish, write {_ANSWER} with the final answer, as short as possible, and no call."
        return text

    @total
    def parse(self, text: str) -> Turn:
        thoughts, blocks = read_blocks(text.rstrip().removesuffix("<tool_response>"), _TAG, json="tool_call")
        if any(name == "tool_response" for name, _ in blocks):
            raise Malformed("Only tools write <tool_response>: end the turn after the last call.")
        calls = [_read_call(content) for name, content in blocks if name == "tool_call"]
        answers = [content for name, content in blocks if name == "answer"]
        return make_turn(thoughts, calls, answers, self._usage, self._answers)

    @exact
    def write(self, turn: Turn) -> str:
        if turn.answer is not None:
            action = f"<answer>{turn.answer}</answer>"
        else:
            called = [dumps({"name": call.name, "arguments": call.arguments}) for call in turn.calls]
            action = "\n".join(f"<tool_call>\n{escape(text, _TAG)}\n</tool_call>" for text in called)
        return action if turn.thought is None else f"<think>\n{turn.thought}\n</think>\n\n{action}"

    def render(self, turn: Turn, results: list[ToolResult]) -> str:
        texts = (_CONTROL.sub("< ", result.text) for result in results)
        return "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts)

    def render_error(self, error: str) -> str:
        # The usage is trusted, and is shown as it has to be written; the rest may quote the agent.
        text = self._usage.join(_CONTROL.sub("< ", part) for part in error.split(self._usage))
        return f"<tool_response>\nInvalid turn: {text}\n</tool_response>"


def _read_call(text: str) -> ToolCall:
    call = read_object(text, "A <tool_call>")
    if not {"name"} <= call.keys() <= {"name", "arguments"}:
        raise Malformed('A <tool_call> has two keys, "name" and "arguments".')
    name, arguments = call["name"], call.get("arguments", {})  # a tool may take none
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Malformed('In a <tool_call>, "name" is a string and "arguments" a JSON object.')
    return ToolCall(name, arguments)
