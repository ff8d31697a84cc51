"""A turn while it is sampled: when it ends, and where a thought that has used up its budget is closed."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import torch

from agent_envs.control_tokens import THINK
from trainers.engines.engine import Completion
from trainers.models.policy import Policy

_THOUGHT, _SAID = "They-want-to-know", "It-is-so"  # in a known turn that the chat template writes
_CALL = {"id": "known0000", "type": "function", "function": {"name": "look_up", "arguments": {"words": "it"}}}
_TOOL = {"type": "function", "function": {"name": "look_up", "description": "", "parameters": {
    "type": "object", "properties": {"words": {"type": "string"}}}}}  # fmt: skip


class ThoughtBudget:
    """The budget of a turn's thoughts in tokens, and the tokens that close a longer thought.

    A thought begins and ends as the chat template writes it (in a channel of gpt-oss), else with ``<think>`` and ``</think>``.

    Attributes:
        tokens: the budget, over all thoughts of a turn.
        closing: the ids that close a thought: what the template writes after a thought, whatever follows it.
        begins_inside: whether the prompt opens a thought.
    """

    def __init__(self, policy: Policy, tokens: int):
        self.tokens, self.begins_inside = tokens, bool(policy.opened_thought)
        opening, closing = _find_marks(policy)
        self.closing = policy.encode(closing, "\n")
        end = policy.encode(closing.strip(), "\n")
        self._tokenizer, self._opening = policy.tokenizer, opening.strip()
        self._end = str(policy.tokenizer.decode(end[:1])) if end[0] in policy.control else closing.strip()
        self._tail = 4 + max(len(mark.encode()) for mark in (self._opening, self._end))  # tokens of one byte or more
        texts = policy.tokenizer.batch_decode([[i] for i in range(len(policy.tokenizer))])
        last = self._opening[-1], self._end[-1]
        self._may_matter = {i for i, text in enumerate(texts) if "\ufffd" in text or any(c in text for c in last)}

    def is_inside(self, tokens: list[int], was_inside: bool) -> bool:
        """Whether a turn is in a thought after its last token."""
        if tokens[-1] not in self._may_matter:
            return was_inside
        tail = str(self._tokenizer.decode(tokens[-self._tail :]))
        opened, closed = tail.rfind(self._opening), tail.rfind(self._end)
        return was_inside if opened == closed else opened > closed


@dataclass(slots=True, kw_only=True)
class OpenTurn:
    """A turn that is being sampled, of at most ``longest`` tokens."""

    longest: int
    is_complete: Callable[[list[int]], bool]  # whether the last of its tokens ends it
    budget: ThoughtBudget | None = None
    completion: Completion = field(default_factory=Completion)
    ended: bool = False
    noise: list[float] = field(
        default_factory=list
    )  # where each token is drawn; empty for the process's random numbers
    _inside: bool = False
    _spent: int = 0  # sampled tokens of thoughts
    _forced: list[int] = field(default_factory=list)  # tokens that come next, whatever is drawn

    def __post_init__(self):
        self._inside = self.budget is not None and self.budget.begins_inside

    def seed_noise(self, seed: int) -> None:
        """Give the turn its own noise."""
        self.noise = np.random.default_rng(seed).random(self.longest).tolist()

    def append(self, token: int, logprob: float) -> int:
        """Append a drawn token, or instead of it one that closes a thought; return the appended token."""
        tokens, logprobs = self.completion.tokens, self.completion.logprobs
        if self._forced:
            token = self._forced.pop(0)
            tokens.append(token)
            logprobs.append(None)
        else:
            tokens.append(token)
            logprobs.append(logprob)
            if self.is_complete(tokens):
                self.completion.finish_reason = "stop"
            elif self.budget is not None:
                self._count_thought(self.budget)
        self.ended = self.completion.finish_reason == "stop" or len(tokens) == self.longest
        return token

    def goes_on(self, count: int) -> bool:
        """Whether the next ``count`` tokens go into the turn as they are drawn, provided that none of them can end it."""
        return self.budget is None and len(self.completion.tokens) + count < self.longest

    def _count_thought(self, budget: ThoughtBudget) -> None:
        was_inside = self._inside
        self._inside = budget.is_inside(self.completion.tokens, was_inside)
        self._spent += was_inside and self._inside
        if self._inside and self._spent >= budget.tokens:
            self._forced, self._inside = list(budget.closing), False


def _find_marks(policy: Policy) -> tuple[str, str]:
    """Find the texts that open and close a thought, as the chat template writes them around a known thought."""
    if policy.opened_thought:
        return "<think>", policy.continue_prompt("")
    if policy.dialect is not None and policy.dialect.shows_thought:
        thought = {"role": "assistant", "reasoning_content": _THOUGHT}
        written = []
        for more in (
            {"content": _SAID},
            {"content": "", "tool_calls": [_CALL]},
            {"content": _SAID, "tool_calls": [_CALL]},
        ):
            try:
                text = str(policy.tokenizer.decode(policy.turn_ids(thought | more, [_TOOL])))
            except Exception:  # such a turn cannot be written; templates are programs, and raise what they like
                continue
            opening, found, rest = text.partition(_THOUGHT)
            written += [(opening, rest)] * bool(found)
        columns = takewhile(lambda column: len({*column}) == 1, zip(*(rest for _, rest in written), strict=False))
        closing = "".join(column[0] for column in columns)
        if not policy.dialect.family.channels:  # templates with thoughts only beside calls continue with the call
            end = re.escape(policy.thought_marks[1])
            closing = "".join(re.findall(rf"\A\s*{end}\s*", closing))
        if len(written) > 1 and closing.strip():
            return written[0][0], closing
    return policy.thought_marks if policy.thought_marks != THINK else ("<think>", "\n</think>\n\n")


def next_noise(turns: Sequence[OpenTurn], steps: int, device: torch.device) -> torch.Tensor | None:
    """Return the ``noise`` of `trainers.engines.sampling.sample`, float64 [steps, M], for the next tokens of each turn; None if
    turns have none of their own. Ended turns get noise too."""
    if not all(turn.noise for turn in turns):
        return None
    lengths = [len(turn.completion.tokens) for turn in turns]
    noise = [[t.noise[(n + i) % t.longest] for t, n in zip(turns, lengths, strict=True)] for i in range(steps)]
    return torch.tensor(noise, dtype=torch.float64, device=device)
