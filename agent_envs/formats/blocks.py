"""Text with tags: its blocks and its thoughts."""

import re
from collections.abc import Iterable
from contextlib import suppress

from agent_envs.formats.base import Malformed, Unfinished
from agent_envs.formats.json_text import read_value_at

THINK = re.compile("</?think>")
_OBJECT = re.compile(r"\s*\{")
_RESULTS = ("information", "tool_response")  # blocks that tools write


def tag_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of the opening and closing tags of ``names`` and of thoughts."""
    return re.compile(f"<(/?)({'|'.join(map(re.escape, [*names, 'think']))})>")


def list_tags(names: Iterable[str]) -> tuple[str, ...]:
    """List the opening and closing tags of ``names``."""
    return tuple(f"<{slash}{name}>" for name in names for slash in ("", "/"))


def read_blocks(text: str, tag: re.Pattern[str], json: str = "") -> tuple[list[str], list[tuple[str, str]]]:
    """Return the thoughts in a text, and its other blocks as (name, content), stripped, in order.

    Some chat templates open the thought themselves, so a turn may begin inside one. Text between blocks is ignored, as are
    tags within a thought. ``json`` names a block in which tags are ignored, too, if they are in a JSON object at its start.

    Raises:
        Malformed: tags are nested, or left open.
    """
    thoughts: list[str] = []
    blocks: list[tuple[str, str]] = []
    if closed := _find_first_close(text, tag, json):
        thoughts.append(text[: closed.start()].strip())
        text = text[closed.end() :]
    opened: str | None = None
    start = 0
    place = 0
    while found := tag.search(text, place):
        closing, name = found.groups()
        place = found.end()
        if opened == "think" and name != "think":
            continue
        if not closing and opened is None:
            opened, start = name, found.end()
            if name == json and _OBJECT.match(text, start):
                _, place = read_value_at(text, start, f"A <{name}> must hold a JSON object")
        elif closing and opened == name:
            content = text[start : found.start()].strip()
            if name == "think":
                thoughts.append(content)
            else:
                blocks.append((name, content))
            opened = None
        else:
            raise Malformed(f"{found.group()} is out of place: tags may not be nested or left open.")
    if opened is not None:
        kind = Malformed if opened in _RESULTS else Unfinished
        raise kind(f"<{opened}> is never closed with </{opened}>.")
    return thoughts, blocks


def _find_first_close(text: str, tag: re.Pattern[str], json: str) -> re.Match[str] | None:
    """Find the end of a thought in which the text begins: the first thought tag outside of JSON, if it is a closing one."""
    place = 0
    while found := tag.search(text, place):
        closing, name = found.groups()
        place = found.end()
        if name == "think":
            return found if closing else None
        if not closing and name == json and _OBJECT.match(text, place):
            with suppress(Malformed):
                _, place = read_value_at(text, place, "")
    return None


def quote(text: str, tags: Iterable[str]) -> str:
    """Break these tags, and those of thoughts, in a text from outside with a word joiner."""
    spelled = "|".join(map(re.escape, (*tags, "<think>", "</think>")))
    return re.sub(spelled, lambda found: f"{found[0][:1]}\u2060{found[0][1:]}", text)


def find_end(text: str, stop: Iterable[str]) -> int | None:
    """Return where the first of the ``stop`` strings outside of thoughts ends; None if there is none. As in `read_blocks`, a
    text may begin inside a thought."""
    head, closed, _ = text.partition("</think>")
    thinks = bool(closed) and "<think>" not in head
    for found in re.finditer("|".join(map(re.escape, ("<think>", "</think>", *stop))), text):
        if THINK.fullmatch(found[0]):
            thinks = found[0] == "<think>"
        elif not thinks:
            return found.end()
    return None


def escape(json: str, tag: re.Pattern[str]) -> str:
    """Escape the tags in a JSON text; its value stays the same, since ``<`` occurs only in strings."""
    return tag.sub(lambda found: "\\u003c" + found.group()[1:], json)


def split_thought(text: str) -> tuple[list[str], str]:
    """Split a text into the thought at its start, if any, and the rest; for formats without other tags.

    Raises:
        Malformed: a thought is left open, or is not at the start.
    """
    opening, closing = "<think>", "</think>"
    head, closed, rest = text.partition(closing)
    if not closed:
        head, rest = "", text
    head = head.strip().removeprefix(opening)
    if any(tag in part for tag in (opening, closing) for part in (head, rest)):
        kind = Unfinished if text.rfind(opening) > text.rfind(closing) else Malformed
        raise kind(f"{opening} may stand once, at the start, and must be closed with {closing}.")
    return [head.strip()] if closed else [], rest
