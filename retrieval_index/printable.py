"""Make text from outside safe to show in a terminal or a report, and to send, store and tokenize."""

import re
from collections.abc import Callable
from typing import Any

# Control characters except tab and newline: they move the cursor, rename the window or end a string. Marks that reverse the
# reading order. Lone surrogates, which cannot be printed. Separators that some programs take for line ends.
_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Replace the characters that could harm or mislead a reader by their escapes, such as ``\x1b`` or ``\u202e``."""
    return _UNFIT.sub(_number, text.replace("\r\n", "\n"))


def encodable(text: str) -> str:
    """Replace lone surrogates, which no tokenizer accepts and UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Change all texts in a JSON value, also the names in its objects."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {map_texts(name, change): map_texts(item, change) for name, item in value.items()}
    return [map_texts(item, change) for item in value] if isinstance(value, list) else value


def _number(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
