"""A question that takes a program to answer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Puzzle:
    """``program`` prints the answer too, by another way than the ``answer`` was found: the two check each other."""

    text: str
    answer: str
    program: str
    kind: str = ""
