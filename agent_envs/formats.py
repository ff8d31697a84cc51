"""How an agent writes its calls and answers, and how results are shown to it.

A format goes both ways: ``instructions`` teach it, ``parse`` reads it (a total function: any string gives a `Turn`),
``render`` writes results. ``stop`` holds the strings that end a turn.
"""

import re

from agent_envs.tools import Tool
from agent_envs.types import ToolCall, ToolResult, Turn


class SearchTags:
    """Search-R1's form (arXiv 2503.09516): ``<search>query</search>``, and ``<answer>text</answer>`` to finish.

    Each tool is called by a tag of its own name around its one string argument. Several calls in a turn run together.
    Whatever stands inside ``<think>…</think>`` is private and never executed.
    """

    def __init__(self, tools: tuple[Tool, ...]):
        self._argument = {tool.name: next(iter(tool.parameters["properties"])) for tool in tools}
        self._tools = tools
        names = "|".join(map(re.escape, [*self._argument, "answer", "think"]))
        self._tag = re.compile(f"<(/?)({names})>")
        self.stop = (*(f"</{tool.name}>" for tool in tools), "</answer>")

    def instructions(self) -> str:
        lines = [f"- <{t.name}>{self._argument[t.name]}</{t.name}>: {t.description}" for t in self._tools]
        return (
            "Answer the question. In each turn you may think inside <think></think>, and then either call a tool or "
            "answer:\n" + "\n".join(lines) + "\n- <answer>text</answer>: give the final answer, as short as possible, "
            "and finish.\nResults come back inside <information></information>. Use one hop at a time."
        )

    def parse(self, text: str) -> Turn:
        """Read one assistant turn, in time linear in its length.

        Some chat templates open the thought themselves, so a turn may begin inside one.
        """
        thought, closed, rest = text.partition("</think>")
        if closed and "<think>" not in thought:
            text = rest
        found: list[tuple[str, str]] = []
        opened: str | None = None
        start = 0
        for tag in self._tag.finditer(text):
            closing, name = tag.groups()
            if opened == "think" and name != "think":
                continue
            if not closing and opened is None:
                opened, start = name, tag.end()
            elif closing and opened == name:
                if name != "think":
                    found.append((name, text[start : tag.start()].strip()))
                opened = None
            else:
                return Turn(error=f"{tag.group()} is out of place: tags may not be nested or left open.")
        if opened is not None:
            return Turn(error=f"<{opened}> is never closed with </{opened}>.")
        return self._turn(found)

    def _turn(self, found: list[tuple[str, str]]) -> Turn:
        answers = [content for name, content in found if name == "answer"]
        if not found:
            return Turn(error=f"There is no action. Write {self._usage()}.")
        if any(not content for _, content in found):
            return Turn(error=f"A tag is empty. Write {self._usage()}.")
        if answers and len(found) > 1:
            return Turn(error="A turn either calls tools or gives exactly one answer.")
        if answers:
            return Turn(answer=answers[0])
        return Turn(calls=tuple(ToolCall(name, {self._argument[name]: content}) for name, content in found))

    def _usage(self) -> str:
        calls = [f"<{name}>{argument}</{name}>" for name, argument in self._argument.items()]
        return " or ".join([*calls, "<answer>text</answer>"])

    def render(self, results: list[ToolResult]) -> str:
        # A passage is anybody's text: it must not be able to end the block that marks it as such.
        text = "\n".join(result.text for result in results).replace("</information>", "< /information>")
        return f"<information>{text}</information>"

    def render_error(self, error: str) -> str:
        return f"<information>Invalid turn: {error}</information>"
