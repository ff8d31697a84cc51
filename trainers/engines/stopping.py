"""Where a turn ends, decided by its tokens alone."""

from trainers.models.policy import Policy


class StopChecker:
    """Whether the last token of a turn ends it: an end-of-turn token of the policy, or one that completes a stop string in
    the text of the turn."""

    def __init__(self, policy: Policy, stop: tuple[str, ...]):
        self._decode, self._end_ids, self._stop = policy.tokenizer.decode, policy.end_ids, stop
        last_characters = {s[-1] for s in stop}
        texts = policy.tokenizer.batch_decode([[i] for i in range(len(policy.tokenizer))])
        # A stop string can only be completed by a token that holds its last character, so no other one is looked at.
        # A token that holds only a part of a character is decoded to U+FFFD; it may hold the last part of that one.
        self._may_stop = {
            i for i, text in enumerate(texts) if "\ufffd" in text or any(last in text for last in last_characters)
        }
        self._tail = 4 + 2 * max(map(len, stop), default=0)

    def __call__(self, tokens: list[int]) -> bool:
        """Whether the last of a turn's tokens ends it."""
        if tokens[-1] in self._end_ids:
            return True
        if tokens[-1] not in self._may_stop:
            return False
        tail = self._decode(tokens[-self._tail :])
        return any(s in tail for s in self._stop)
