"""Calls and answers as plain tags: Search-R1's form, and RAGEN's."""

from collections.abc import Sequence

from agent_envs.formats import arguments
from agent_envs.formats.base import Format, Malformed, check_tools, exact, make_turn, total
from agent_envs.formats.blocks import escape, list_tags, quote, read_blocks, tag_pattern
from agent_envs.formats.json_text import dumps
from agent_envs.tools import Tool
from agent_envs.types import ToolCall, ToolResult, Turn


class SearchTags(Format):
    """Search-R1's form (arXiv 2503.09516): ``<search>query</search>``, and ``<answer>text</answer>`` to finish.

    Each tool is called by a tag of its own name around its arguments: a string or number as it is, ``a || b`` for one list of
    strings, a JSON object for any other. ``<think>…</think>`` is never executed.
    """

    name = "tags"

    def __init__(self, tools: Sequence[Tool], *, answers: bool = True):
        check_tools(tools, answers, reserved=("answer", "think", "information"))
        self._tools = {self._tag_of(tool): tool for tool in tools}  # by tag
        self._answers = answers
        tags = [*self._tools, *["answer"] * answers]
        self._tag = tag_pattern([*tags, "information"])
        self.tags = list_tags([*tags, "information"])
        self.stop = tuple(f"</{tag}>" for tag in tags)
        self._others = [tag for tag in self.tags if tag != "</information>"]

    def _tag_of(self, tool: Tool) -> str:
        return tool.name

    def instructions(self) -> str:
        acts = ["call a tool"] * bool(self._tools) + ["answer"] * self._answers
        text = f"In each turn you may think inside <think></think>, and then {'either ' * (len(acts) > 1)}{' or '.join(acts)}:"
        for tag, tool in self._tools.items():
            text += f"\n- {self._example(tag, tool)}: {quote(_description(tool), self.tags)}"
        if self._answers:
            text += "\n- <answer>text</answer>: give the final answer, as short as possible, and finish."
        if self._tools:
            text += "\nResults come back inside <information></information>."
        if [*self._tools] == ["search"]:  # checkpoints were trained with this sentence
            text += " Use one hop at a time."
        return text

    @total
    def parse(self, text: str) -> Turn:
        thoughts, blocks = read_blocks(text, self._tag)
        blocks = [(tag, content) for tag, content in blocks if tag != "information"]  # the agent's, no tool result
        if any(self._is_empty(tag, content) for tag, content in blocks):
            raise Malformed(f"A tag is empty. Write {self._usage()}.")
        answers = [content for tag, content in blocks if tag not in self._tools]
        known = [(self._tools[tag], content) for tag, content in blocks if tag in self._tools]
        calls = [ToolCall(tool.name, arguments.read(tool, content)) for tool, content in known]
        return make_turn(thoughts, calls, answers, self._usage())

    def _is_empty(self, tag: str, content: str) -> bool:
        return arguments.is_missing(self._tools[tag], content) if tag in self._tools else not content

    def _usage(self) -> str:
        calls = [self._example(tag, tool) for tag, tool in self._tools.items()]
        return " or ".join(calls + ["<answer>text</answer>"] * self._answers)

    def _example(self, tag: str, tool: Tool) -> str:
        return f"<{tag}>{quote(arguments.example(tool), self.tags)}</{tag}>"

    @exact
    def write(self, turn: Turn) -> str:
        tags = {tool.name: tag for tag, tool in self._tools.items()}
        text = "" if turn.thought is None else f"<think>{turn.thought}</think>"
        text += "".join(self._write_call(tags[call.name], call) for call in turn.calls)
        return text + ("" if turn.answer is None else f"<answer>{turn.answer}</answer>")

    def _write_call(self, tag: str, call: ToolCall) -> str:
        tool = self._tools[tag]
        text = arguments.write(tool, call.arguments)
        return f"<{tag}>{escape(text, self._tag) if arguments.is_json(tool) else text}</{tag}>"

    def render(self, turn: Turn, results: list[ToolResult]) -> str:
        return _frame("\n".join(quote(result.text, self._others) for result in results))

    def render_error(self, error: str) -> str:
        # The usage is trusted, and is shown as it has to be written; the rest may quote the agent.
        text = self._usage().join(quote(part, self._others) for part in error.split(self._usage()))
        return _frame(f"Invalid turn: {text}")


class Ragen(SearchTags):
    """RAGEN's form (arXiv 2504.20073): ``<think>…</think><answer>Up || Right</answer>``, where the answer is the action.

    For tasks with one tool and no final answer, or with a final answer and no tool.
    """

    name = "ragen"

    def __init__(self, tools: Sequence[Tool], *, answers: bool = True):
        if len(tools) + answers != 1:
            raise ValueError(
                "the format 'ragen' has one tag, <answer>: it is for a task with one tool and no final answer, or with a "
                f"final answer and no tool, not for {len(tools)} tools with answers={answers}; choose another format"
            )
        super().__init__(tools, answers=answers)

    def _tag_of(self, tool: Tool) -> str:
        return "answer"


def _description(tool: Tool) -> str:
    if options := arguments.choices(tool):
        return f"{tool.description} Choose from: {', '.join(options)}."
    name, kind = arguments.plain_argument(tool)
    if kind == "scalar":
        return f"{tool.description} ({name}: {tool.parameters['properties'][name]['type']})"
    if kind == "json" and tool.parameters.get("properties"):
        return f"{tool.description} Arguments, as JSON schema: {dumps(tool.parameters)}"
    return tool.description


def _frame(text: str) -> str:
    # A passage is untrusted text: it must not be able to end the block that marks it as such.
    text = text.replace("</information>", "< /information>").replace("<|", "< |")  # nor to pose as a chat message
    return f"<information>{text}</information>"
