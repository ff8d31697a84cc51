"""Harmony: the form of the gpt-oss models, messages in channels."""

import re
from collections.abc import Sequence

from agent_envs.formats.base import Format, Malformed, check_tools, exact, make_turn, total
from agent_envs.formats.blocks import escape
from agent_envs.formats.json_text import dumps, read_object
from agent_envs.formats.typescript import declare
from agent_envs.tools import Tool
from agent_envs.types import ToolCall, ToolResult, Turn

_TOKEN = re.compile(r"<\|(?:start|end|message|channel|constrain|return|call)\|>")
_SPECIAL = re.compile(r"<(?=\|\w+\|>)")
_MESSAGE = re.compile(
    r"\s*+<\|start\|>(?P<role>[^<]*+)(?:<\|channel\|>(?P<channel>[^<]*+))?(?:<\|constrain\|>[^<]*+)?"
    r"<\|message\|>(?P<content>.*?)(?:<\|(?P<end>end|return|call)\|>|\Z)",
    re.DOTALL,
)
_RECIPIENT = re.compile(r"to=functions\.(\w[\w./-]*)")
_START = "<|start|>assistant"
_CALL = "<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>"
_ANSWER = "<|channel|>final<|message|>text<|return|>"


class Harmony(Format):
    """OpenAI's response format for gpt-oss (github.com/openai/harmony, docs/format.md).

    A turn is what follows ``<|start|>assistant``. Messages in the channel ``analysis`` are thought, a call goes to
    ``functions.name`` in ``commentary`` and holds a JSON object, and the final answer stands in ``final``. A message in
    ``commentary`` without a recipient is ignored. The last message may lack its end token.
    """

    name = "harmony"
    special_tokens = True

    def __init__(self, tools: Sequence[Tool], *, answers: bool = True):
        check_tools(tools, answers)
        self._tools, self._answers = tools, answers
        self._usage = " or ".join([_CALL] * bool(tools) + [_ANSWER] * answers)
        self.stop = (*["<|call|>"] * bool(tools), *["<|return|>"] * answers)

    def instructions(self) -> str:
        """What follows the task in the developer message."""
        text = "Think in the analysis channel."
        if self._answers:
            text += " Give the final answer, as short as possible, in the final channel."
        if self._tools:
            text += " Calls to the functions go to the commentary channel."
            text += f"\n\n# Tools\n\n## functions\n\n{declare(self._tools, 'functions')}"
        return text

    @total
    def parse(self, text: str) -> Turn:
        return make_turn(*read_messages(text, self._usage), self._usage, self._answers)

    @exact
    def write(self, turn: Turn) -> str:
        messages = [] if turn.thought is None else [f"<|channel|>analysis<|message|>{turn.thought}<|end|>"]
        for call in turn.calls:
            header = f"<|channel|>commentary to=functions.{call.name} <|constrain|>json"
            messages.append(f"{header}<|message|>{escape(dumps(call.arguments), _TOKEN)}<|call|>")
        if turn.answer is not None:
            messages.append(f"<|channel|>final<|message|>{turn.answer}<|return|>")
        return _START.join(messages)

    def render(self, turn: Turn, results: list[ToolResult]) -> str:
        pairs = zip(turn.calls, results, strict=True)
        return "".join(
            f"<|start|>functions.{call.name} to=assistant<|channel|>commentary<|message|>{_plain(result.text)}<|end|>"
            for call, result in pairs
        )

    def render_error(self, error: str) -> str:
        # The usage is ours, and is shown as it has to be written; the rest may quote the agent.
        text = self._usage.join(map(_plain, error.split(self._usage)))
        return f"<|start|>developer<|message|>Invalid turn: {text}<|end|>"


def read_messages(text: str, usage: str = f"{_CALL} or {_ANSWER}") -> tuple[list[str], list[ToolCall], list[str]]:
    """The thoughts, the calls and the answers of a turn. Raises `Malformed` where it is none; ``usage`` says what to write."""
    text = text.rstrip()
    text = text if text.lstrip().startswith("<|start|>") else _START + text
    thoughts, calls, answers = [], [], []
    place = 0
    while place < len(text):
        message = _MESSAGE.match(text, place)
        if not message:
            raise Malformed(f"The turn is not made of messages. Write {usage}.")
        place = message.end()
        channel, recipient = _read_header(message["role"], message["channel"] or "")
        content = message["content"].strip()
        if _TOKEN.search(content):
            raise Malformed("A message was not ended before the next one began.")
        if recipient is not None:
            calls.append(_read_call(channel, recipient, content, message["end"]))
        elif channel == "analysis":
            thoughts.append(content)
        elif channel == "final":
            answers.append(content)
    return thoughts, calls, answers


def _read_header(role: str, channel: str) -> tuple[str, str | None]:
    """The channel and the recipient, which may stand in either part of the header."""
    author, *words = role.split() or [""]
    if author != "assistant":
        raise Malformed("Every message of the turn must be the assistant's own: tools and users write theirs.")
    named, *more = channel.split() or [""]
    if named not in ("analysis", "commentary", "final"):
        raise Malformed("Every message needs a channel: analysis, commentary or final.")
    recipients = [word for word in words + more if word.startswith("to=")]
    if len(recipients) > 1:
        raise Malformed("A message has one recipient.")
    return named, recipients[0] if recipients else None


def _read_call(channel: str, recipient: str, content: str, end: str | None) -> ToolCall:
    name = _RECIPIENT.fullmatch(recipient)
    if not name or channel != "commentary" or end not in ("call", None):
        raise Malformed(f"Write a call as {_CALL}.")
    return ToolCall(name[1], read_object(content.strip() or "{}", "The content of a call"))


def _plain(text: str) -> str:
    return _SPECIAL.sub("< ", text)
