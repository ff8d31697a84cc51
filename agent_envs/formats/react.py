"""Thought, Action, Action Input, Observation: the form of ReAct, as its common descendants write it."""

import re
from collections.abc import Sequence
from typing import Any

from agent_envs.formats.arguments import plain_argument
from agent_envs.formats.base import Format, Malformed, Unfinished, check_tools, exact, make_turn, total
from agent_envs.formats.blocks import THINK, escape, quote, split_thought
from agent_envs.formats.json_text import dumps, read_object
from agent_envs.tools import Tool
from agent_envs.types import ToolCall, ToolResult, Turn

_LABEL = re.compile(r"^[ \t]*(Thought|Action Input|Action|Observation|Final Answer)[ \t]*:", re.MULTILINE)
# Text by which a result could pose as the agent or as another message: a label after anything like a line break,
# a thought, a special token (``<|im_start|>``).
_BREAK = r"\r\n\v\f\x1c-\x1e\x85\u2028\u2029"
_POSE = re.compile(
    rf"(^|[{_BREAK}])(?=[^\S{_BREAK}]*+(?:Thought|Action(?: Input)?|Observation|Final Answer|Question)[ \t]*+:)",
    re.IGNORECASE,
)
_CONTROL = re.compile(r"<(?=\|\w+\|>|/?think>)", re.IGNORECASE)


class React(Format):
    """ReAct (arXiv 2210.03629) in lines that start with a label.

    ::

        Thought: I need the birthplace first.
        Action: search
        Action Input: Ada Kern

    The input is a JSON object, or the bare string of a tool with one string argument. A turn may hold several such pairs. The
    last turn has ``Final Answer:``. Text before the first label, and ``<think>…</think>`` at the start, is thought.
    """

    name = "react"

    def __init__(self, tools: Sequence[Tool], *, answers: bool = True):
        check_tools(tools, answers)
        self._tools, self._answers = {tool.name: tool for tool in tools}, answers
        plain = {tool.name: plain_argument(tool) for tool in tools}
        self._strings = {name: argument for name, (argument, kind) in plain.items() if kind == "string"}  # bare inputs
        action = ["'Action: tool' and 'Action Input: its arguments' on lines of their own"]
        self._usage = " or ".join(action * bool(tools) + ["'Final Answer: text'"] * answers)
        self.stop = ("\nObservation:",)

    def instructions(self) -> str:
        lines = ["In each turn write these lines:\n\nThought: what to do next, and why"]
        if self._tools:
            lines += [
                f"Action: one of {', '.join(self._tools)}",
                "Action Input: its arguments, a JSON object\n",
                "Then stop: the result comes back as a line 'Observation: …'. Several pairs of Action and Action Input "
                "in one turn run together. A tool that takes a single string also takes the bare text as its input.\n",
                "Tools, with the JSON schemas of their arguments:",
            ]
            lines += [quote(f"- {t.name}: {t.description} {dumps(t.parameters)}", ()) for t in self._tools.values()]
        if self._answers:
            ending = "\nTo finish, write in place of Action and Action Input:\n\n" if self._tools else ""
            lines.append(f"{ending}Final Answer: the final answer, as short as possible")
        return "\n".join(lines)

    @total
    def parse(self, text: str) -> Turn:
        thoughts, text = split_thought(text)
        head, *pieces = map(str.strip, _LABEL.split(text))
        sections = list(zip(pieces[::2], pieces[1::2], strict=True))
        if sections and sections[-1] == ("Observation", ""):
            sections.pop()  # where sampling stopped
        if self._answers and sections and sections[-1] == ("Final Answer", ""):
            raise Unfinished("The final answer is empty.")
        contents = {label: [c for name, c in sections if name == label] for label in ("Thought", "Final Answer")}
        if any(label == "Observation" for label, _ in sections):
            raise Malformed("Only tools write 'Observation:': end the turn after the last Action Input.")
        thoughts += [head] * bool(head) + contents["Thought"]
        return make_turn(thoughts, self._read_calls(sections), contents["Final Answer"], self._usage, self._answers)

    def _read_calls(self, sections: list[tuple[str, str]]) -> list[ToolCall]:
        calls = []
        name: str | None = None  # of a tool that still waits for its input
        for label, content in sections:
            if (label == "Action Input") != (name is not None):
                raise Malformed("Each line 'Action: tool' is followed by its line 'Action Input: arguments'.")
            if name is not None:
                calls.append(ToolCall(name, self._read_input(name, content)))
            name = content if label == "Action" else None
        if name is not None:
            raise Unfinished("The last 'Action:' has no 'Action Input:'.")
        return calls

    def _read_input(self, name: str, text: str) -> dict[str, Any]:
        argument = self._strings.get(name)
        if argument is None:
            try:
                return read_object(text, "The Action Input") if text else {}
            except Malformed:
                if name in self._tools:
                    raise
                return {}  # the agent has to learn that there is no such tool
        given = self._as_object(name, text)
        return {argument: text} if given is None else given

    def _as_object(self, name: str, text: str) -> dict[str, Any] | None:
        """Return the input of a tool with one string argument if it is written as an object; None for a bare string."""
        try:
            given = read_object(text, "The Action Input")
        except Malformed:
            return None
        argument, required = self._strings[name], self._tools[name].parameters.get("required")
        return given if argument in given or not (given or required) else None

    @exact
    def write(self, turn: Turn) -> str:
        lines = [] if turn.thought is None else [f"Thought: {turn.thought}"]
        lines += [f"Action: {call.name}\nAction Input: {self._write_input(call)}" for call in turn.calls]
        lines += [] if turn.answer is None else [f"Final Answer: {turn.answer}"]
        return "\n".join(lines)

    def _write_input(self, call: ToolCall) -> str:
        argument = self._strings.get(call.name)
        text = call.arguments.get(argument) if argument else None
        if isinstance(text, str) and len(call.arguments) == 1:
            plain = text == text.strip() and not _LABEL.search(text) and not THINK.search(text)
            if plain and self._as_object(call.name, text) is None:
                return text
        return escape(dumps(call.arguments), THINK)

    def render(self, turn: Turn, results: list[ToolResult]) -> str:
        return "\n".join(_frame(result.text) for result in results)

    def render_error(self, error: str) -> str:
        return _frame(f"Invalid turn: {error}")


def _frame(text: str) -> str:
    quoted = _POSE.sub(r"\1> ", text)
    return f"Observation: {_CONTROL.sub('< ', quoted)}"
