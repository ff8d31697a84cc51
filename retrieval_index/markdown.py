"""Markdown as plain text: what a reader sees, without the markup."""

import re
from collections.abc import Iterator

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
_HEADING = re.compile(r"^ {0,3}#{1,6} +(.*?)(?: +#+)? *$")
_RULE = re.compile(r"^ {0,3}([-*_=])(?: *\1){2,} *$")
_BEFORE = re.compile(r"^(\s*)(?:(?:>|[-*+](?: \[[ xX]\])?|\[\^[^\]]+\]:) +)+")  # of quotes, items, footnotes
_TABLE_RULE = re.compile(r"^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)+\|?\s*$")
_DEFINITION = re.compile(
    r"^ {0,3}\[(?!\^)[^\]]+\]: +(?:<[^<>]*>|\S+)(?: +(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))? *$"
)  # of a link
_INLINE = [
    (re.compile(r"<(https?://[^<>\s]+)>"), r"\1"),
    (re.compile(r"</?[a-z][a-z0-9]*(?:\s[^<>]*)?/?>"), ""),
    (re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^()\s]*(?:\([^()]*\)[^()\s]*)?(?:\s+\"[^\"]*\")?\)"), r"\1"),
    (re.compile(r"!?\[([^\[\]^]+)\]\[[^\[\]]*\]"), r"\1"),
    (re.compile(r"\[\^[^\]]+\]"), ""),
    (re.compile(r"(\*\*\*|\*\*|~~)(?=\S)(.+?)(?<=\S)\1"), r"\2"),
    (re.compile(r"(?<![\w*])\*(?=[^\s*])([^*]+?)(?<=\S)\*(?![\w*])"), r"\1"),
    (re.compile(r"(?<!\w)(___|__|_)(?=\S)(.+?)(?<=\S)\1(?!\w)"), r"\2"),
]
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_CODE = re.compile(r"(`+)(.+?)(?<!`)\1(?!`)")


def read_markdown(text: str) -> tuple[str, str]:
    """Return the first heading of level 1 ("" without one), and the plain text, which does not repeat it."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)  # front matter
    lines, title = [], ""
    for line, heading in _lines(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)):
        if heading == 1 and not title:
            title = line
        elif not (heading == 1 and line == title):
            lines += ["", line, ""] if heading else [line]
    return title, "\n".join(lines).strip()


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield each line as plain text, with the level of a heading, or 0 for other lines."""
    fence = ""
    for line in text.splitlines():
        opening = _FENCE.match(line)
        if opening and (not fence or (opening[1].startswith(fence) and line.strip() == opening[1])):
            fence = "" if fence else opening[1]
        elif fence:
            yield line, 0
        elif heading := _HEADING.match(line):
            yield _plain(heading[1]), len(line.lstrip()) - len(line.lstrip().lstrip("#"))
        elif not (_RULE.match(line) or _TABLE_RULE.match(line) or _DEFINITION.match(line)):
            line = _BEFORE.sub(r"\1", line)
            if line.lstrip().startswith("|"):
                line = ", ".join(cell.strip() for cell in line.strip().strip("|").split("|") if cell.strip())
            yield _plain(line), 0


def _plain(line: str) -> str:
    """Remove the marks of emphasis, links and code from a line; the content of code stays as it is."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[2].strip() if found.re is _CODE else found[1])
        return f"\x00{len(kept) - 1}\x00"

    line = _ESCAPED.sub(keep, _CODE.sub(keep, line.replace("\x00", "")))
    for sign, plain in _INLINE:
        line = sign.sub(plain, line)
    return re.sub(r"\x00(\d+)\x00", lambda found: kept[int(found[1])], line).rstrip()
