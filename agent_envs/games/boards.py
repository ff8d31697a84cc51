"""Square boards as text."""

import re


def canonical_form(rows: list[str]) -> str:
    """The same text for a board and all its rotations and reflections."""
    images = []
    for _ in range(4):
        rows = ["".join(column) for column in zip(*rows[::-1], strict=True)]
        images += ["\n".join(rows), "\n".join(row[::-1] for row in rows)]
    return min(images)


def board_rows(text: str, symbols: str) -> list[list[str]]:
    """The rows of a board in an observation: symbols with a space in between; tags and quotes around them are ignored."""
    cell = f"[{re.escape(symbols)}]"
    lines = re.findall(rf'(?<![^\s>"]){cell}(?: {cell})+(?![^\s<"\\])', text.replace("\\n", "\n"))
    return [line.split() for line in lines]
