"""Parser of Harmony turns, messages in channels of the gpt-oss models (github.com/openai/harmony, docs/format.md)."""

import re

from agent_envs.formats.base import Malformed, Unfinished
from agent_envs.formats.json_text import read_object
from agent_envs.types import ToolCall

_TOKEN = re.compile(r"<\|(?:start|end|message|channel|constrain|return|call)\|>")
_MESSAGE = re.compile(
    r"\s*+<\|start\|>(?P<role>[^<]*+)(?:<\|channel\|>(?P<channel>[^<]*+))?(?:<\|constrain\|>[^<]*+)?"
    r"<\|message\|>(?P<content>.*?)(?:<\|(?P<end>end|return|call)\|>|\Z)",
    re.DOTALL,
)
_RECIPIENT = re.compile(r"to=functions\.(\w[\w./-]*)")
_START = "<|start|>assistant"
_CALL = "<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>"
_ANSWER = "<|channel|>final<|message|>text<|return|>"


def read_messages(text: str) -> tuple[list[str], list[ToolCall], list[str]]:
    """Return the thoughts, calls and answers of a turn, which is the text after ``<|start|>assistant``.

    Thoughts are in the channel ``analysis``, answers in ``final``. A call is a JSON object in ``commentary`` for the recipient
    ``functions.name``; messages there without a recipient are ignored. The last message may lack its end token.

    Raises:
        Malformed: the text is not such a turn.
    """
    text = text.rstrip()
    text = text if text.lstrip().startswith("<|start|>") else _START + text
    thoughts, calls, answers = [], [], []
    place = 0
    while place < len(text):
        message = _MESSAGE.match(text, place)
        if not message:
            raise Malformed(f"The turn is not made of messages. Write {_CALL} or {_ANSWER}.")
        place = message.end()
        channel, recipient = _read_header(message["role"], message["channel"] or "")
        content = message["content"].strip()
        if _TOKEN.search(content):
            raise Malformed("A message was not ended before the next one began.")
        if channel == "analysis" and message["end"] is None:
            raise Unfinished("The message in the channel analysis is never ended.")
        if recipient is not None:
            calls.append(_read_call(channel, recipient, content, message["end"]))
        elif channel == "analysis":
            thoughts.append(content)
        elif channel == "final":
            answers.append(content)
    return thoughts, calls, answers


def _read_header(role: str, channel: str) -> tuple[str, str | None]:
    """Return the channel and the recipient; the latter may be in either part of the header."""
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
