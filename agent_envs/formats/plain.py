"""Any text as an action: the form of environments that were not made for tools."""

from collections.abc import Sequence

from agent_envs.formats.base import Format, check_tools, exact, total
from agent_envs.formats.blocks import split_thought
from agent_envs.tools import Tool
from agent_envs.types import ToolCall, ToolResult, Turn


class Plain(Format):
    """The text of a turn is the one argument of the one tool, unchanged; a thought, ``<think>…</think>`` at its start, is
    left out. Results are shown unchanged.

    For tasks with one tool that takes one string, and no final answer.
    """

    name = "plain"
    stop: tuple[str, ...] = ()

    def __init__(self, tools: Sequence[Tool], *, answers: bool = True):
        check_tools(tools, answers)
        properties = tools[0].parameters.get("properties", {}) if tools else {}
        if len(tools) != 1 or answers or [p.get("type") for p in properties.values()] != ["string"]:
            raise ValueError(
                "the format 'plain' is for one tool that takes one string, and no final answer; choose another format"
            )
        (self._tool,), (self._argument,) = tools, properties

    def instructions(self) -> str:
        return ""

    @total
    def parse(self, text: str) -> Turn:
        thinks = "</think>" in text or text.lstrip().startswith("<think>")
        thoughts, action = split_thought(text) if thinks else ([], text)
        action = action.lstrip() if thoughts else action
        call = ToolCall(self._tool.name, {self._argument: action})
        return Turn(calls=(call,), thought="\n".join(thoughts) if thoughts else None)

    @exact
    def write(self, turn: Turn) -> str:
        (call,) = turn.calls
        action = call.arguments[self._argument]
        return action if turn.thought is None else f"<think>\n{turn.thought}\n</think>\n\n{action}"

    def render(self, turn: Turn, results: list[ToolResult]) -> str:
        return "\n".join(result.text for result in results)

    def render_error(self, error: str) -> str:
        return f"Invalid turn: {error}"
