"""The end of a sampled turn."""

import re

from agent_envs.chat_tokens import ChatTokens


class StopChecker:
    """Check whether a turn ends, by a token or stop string outside of thoughts.

    Attributes:
        may_end: the tokens that a turn can end with.
    """

    def __init__(self, policy: ChatTokens, stop: tuple[str, ...]):
        self._decode, self._end_ids, self._stop = policy.tokenizer.decode, policy.end_ids, stop
        self._begins_inside = bool(policy.opened_thought)
        self._closings = {"</think>", policy.thought_marks[1]}
        self._event = re.compile("|".join(map(re.escape, ("<think>", "</think>", *policy.thought_marks, *stop))))
        last_characters = {s[-1] for s in stop}
        texts = policy.tokenizer.batch_decode([[i] for i in range(len(policy.tokenizer))])
        # Only a token that holds the last character of a stop string can complete it, so no other token is checked.
        # A token that holds a part of a character is decoded to U+FFFD; it may hold the last part of such a character.
        self.may_end = self._end_ids | {
            i for i, text in enumerate(texts) if "\ufffd" in text or any(last in text for last in last_characters)
        }
        # Number of last tokens that surely hold a stop string: each has at least a byte; 4 are for a character before it.
        self._tail = 4 + max((len(s.encode()) for s in stop), default=0)

    def __call__(self, tokens: list[int]) -> bool:
        """Whether the last token ends the turn, provided that no earlier token did."""
        if tokens[-1] not in self.may_end:
            return False
        if tokens[-1] in self._end_ids:
            return True
        tail = self._decode(tokens[-self._tail :])
        return any(s in tail for s in self._stop) and not self._is_thought(tokens)

    def _is_thought(self, tokens: list[int]) -> bool:
        """Whether the last stop string is in a thought. The tag or stop string before it decides: an earlier stop string did
        not end the turn, so it was in a thought. Nothing before that is read, so all calls for a turn take linear time."""
        width = self._tail
        while True:
            width *= 2
            *before, last = self._event.findall(self._decode(tokens[-width:])) or [""]
            while last not in self._stop and before:
                last = before.pop()
            if before:
                return before[-1] not in self._closings
            if width >= len(tokens):
                return self._begins_inside

    def cut(self, tokens: list[int]) -> list[int]:
        """Return a turn up to the token that ends it, or all of it if none does."""
        return next((tokens[:n] for n in range(1, len(tokens)) if self(tokens[:n])), tokens)
