"""What a rollout asks of an engine: prompts as ids in; ids, log-probabilities and finish reasons out.

`Engine` is all of it, so that a faster engine, or a server, can take the place of another.
"""

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True, kw_only=True)
class Completion:
    """``tokens`` include the one that ended the turn. ``finish_reason``: "stop" or "length"."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = "length"


class Engine(Protocol):
    """Keys name conversations."""

    def submit(self, prompts: dict[int, list[int]], max_new_tokens: int, temperature: float) -> None:
        """Begin a turn of each of these conversations. A prompt that extends what was already seen under its key costs
        only the new ids. ``temperature`` 0 is greedy; log-probabilities are those of the distribution that was sampled
        from (at 0, of the untempered one). Turns that are open at the same time have one temperature."""
        ...

    def finished(self) -> dict[int, Completion]:
        """Go on until some of the open turns are complete, and return those; none if no turn is open."""
        ...

    def reset(self) -> None:
        """Forget all conversations; call it whenever the weights have changed."""
        ...


def generate(
    engine: Engine, prompts: dict[int, list[int]], max_new_tokens: int, temperature: float
) -> dict[int, Completion]:
    """One turn of each conversation, in the order of ``prompts``."""
    engine.submit(prompts, max_new_tokens, temperature)
    done: dict[int, Completion] = {}
    while some := engine.finished():
        done |= some
    return {key: done[key] for key in prompts}
