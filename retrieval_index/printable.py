"""Text of others, made fit for a terminal or a report."""

import re

# Control characters but tab and newline, which move the cursor, rename the window or end a string; marks that turn the
# order of what is read around; lone surrogates, which cannot be printed; and separators that some readers take for lines.
_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""The text with what could harm whoever looks at it shown by number: ``\x1b``, ``\u202e``."""
    return _UNFIT.sub(_number, text.replace("\r\n", "\n"))


def _number(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
