"""A text space that a language model can live in."""

import string
from typing import Any

from gymnasium.spaces import Text


class AnyText(Text):
    """Any string of up to ``max_length`` characters.

    ``gymnasium.spaces.Text`` checks each character against a set, and a full Unicode set costs hundreds of megabytes.
    Here membership is a matter of type and length alone; ``sample`` draws printable characters, and now and then puts
    one of ``phrases`` among them, so that a random agent also exercises what well-formed turns do.
    """

    def __init__(self, max_length: int = 1_000_000, phrases: tuple[str, ...] = (), seed: int | None = None):
        super().__init__(max_length, min_length=0, charset=string.printable, seed=seed)
        self.phrases = phrases

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        noise = "".join(self.np_random.choice(self.character_list, self.np_random.integers(1, 40)))
        if not self.phrases or self.np_random.random() < 0.3:
            return noise[: self.max_length]
        phrase = self.phrases[self.np_random.integers(len(self.phrases))]
        return (phrase if self.np_random.random() < 0.8 else noise + phrase)[: self.max_length]

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, AnyText) and (self.max_length, self.phrases) == (other.max_length, other.phrases)

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"
