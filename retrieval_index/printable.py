"""Make text from outside safe to show in a terminal or a report."""

import re

# Control characters except tab and newline: they move the cursor, rename the window or end a string. Marks that reverse the
# reading order. Lone surrogates, which cannot be printed. Separators that some programs take for line ends.
_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Replace the characters that could harm or mislead a reader by their escapes, such as ``\x1b`` or ``\u202e``."""
    return _UNFIT.sub(_number, text.replace("\r\n", "\n"))


def _number(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
