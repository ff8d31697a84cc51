"""Where a turn ends, judged by its tokens alone."""

from trainers.models.policy import Policy


class Stops:
    """Whether the last of a turn's tokens completes it: an end of the policy's own, or one with which a stop string is
    complete in the turn's text."""

    def __init__(self, policy: Policy, stop: tuple[str, ...]):
        self._decode, self._ends, self._stop = policy.tokenizer.decode, policy.end_ids, stop
        lasts = {s[-1] for s in stop}
        texts = policy.tokenizer.batch_decode([[i] for i in range(len(policy.tokenizer))])
        # A stop string can only be complete after a token that holds its last character: the rest need no look.
        # One that holds a part of a character alone, decoded to a mark, may hold the last part of that one.
        self._may_stop = {i for i, text in enumerate(texts) if "\ufffd" in text or any(last in text for last in lasts)}
        self._tail = 4 + 2 * max(map(len, stop), default=0)

    def __call__(self, tokens: list[int]) -> bool:
        if tokens[-1] in self._ends:
            return True
        if tokens[-1] not in self._may_stop:
            return False
        tail = self._decode(tokens[-self._tail :])
        return any(s in tail for s in self._stop)
