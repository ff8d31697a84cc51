"""The interface between rollouts and an `Engine`: prompt ids in; ids, log-probabilities and finish reasons out."""

import collections
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from trainers.runtime.errors import UserError

LEAST_TURN = 32  # tokens of a turn that must fit after its prompt, unless ``max_new_tokens`` is less


@dataclass(slots=True, kw_only=True)
class Completion:
    """A sampled turn: ids, their log-probabilities, and "stop" or "length".

    The ids include the one that ended the turn. A token with the log-probability None was not sampled: it closes a thought that
    has used its budget.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    finish_reason: str = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters: up to ``max_new_tokens``; see `trainers.engines.sampling.sample` for the others."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0


class Engine(Protocol):
    """Protocol of samplers; a key names a conversation.

    Attributes:
        max_length: longest conversation in tokens, ``math.inf`` for no limit.
        processed: counts of tokens that went through the model, padding included, in ``prefill`` and ``decode``, and of
            ``decode_steps``, since the caller last cleared it. Empty if the engine cannot tell, as with vLLM.
    """

    max_length: float
    processed: collections.Counter[str]

    def submit(
        self, prompts: dict[int, list[int]], params: SamplingParams, seeds: Mapping[int, int] | None = None
    ) -> None:
        """Begin a turn in each of these conversations. Prompt and turn have at most ``max_length`` tokens together.

        A prompt that extends what its conversation has seen costs only the new ids. ``temperature`` 0 is greedy decoding.
        Log-probabilities are those of the distribution that was sampled from (at 0, of the untempered one).
        ``seeds``: a seed for the noise of each conversation's turn, which then does not depend on what is sampled beside it. Give
        seeds for all turns that are open at the same time, or for none.

        Raises:
            ValueError: a conversation has an open turn or no room, or the engine cannot mix these ways of sampling.
        """
        ...

    def wait(self) -> dict[int, Completion]:
        """Generate until some of the open turns are complete, and return those; an empty dict if no turn is open."""
        ...

    def reset(self) -> None:
        """Forget all conversations. Call it whenever the weights have changed."""
        ...


def turn_lengths(
    prompts: dict[int, list[int]], max_new_tokens: int, max_length: float, open_keys: Collection[int]
) -> dict[int, int]:
    """Return how many tokens the next turn of each conversation may have. Raises ValueError as `Engine.submit` does."""
    if repeated := sorted(prompts.keys() & open_keys):
        raise ValueError(f"conversations {repeated} have an open turn already")
    if too_long := [key for key, prompt in prompts.items() if len(prompt) >= max_length]:
        longest = max(len(prompts[key]) for key in too_long)
        raise UserError(
            f"{len(too_long)} conversations have up to {longest} tokens, and the model reads {max_length:.0f} at most: take "
            f"fewer or shorter passages (k, max_chars), or another model"
        )
    return {key: int(min(max_new_tokens, max_length - len(prompt))) for key, prompt in prompts.items()}


def generate(
    engine: Engine,
    prompts: dict[int, list[int]],
    max_new_tokens: int,
    temperature: float,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> dict[int, Completion]:
    """Sample one turn of each conversation, in the order of ``prompts``."""
    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, min_p=min_p)
    engine.submit(prompts, params)
    done: dict[int, Completion] = {}
    while some := engine.wait():
        done |= some
    return {key: done[key] for key in prompts}
