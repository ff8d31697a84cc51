"""Sampling from a `transformers` model, with keys and values kept across turns."""

import torch

from trainers.engines.engine import Completion
from trainers.engines.model_runner import Forward
from trainers.engines.prefix_cache import Histories, Row
from trainers.engines.sampling import sample
from trainers.engines.stopping import Stops
from trainers.models.policy import Policy

PASS = 8192  # tokens of a prefill at once, padding included
WORTH_SHARING = 16  # tokens at the beginning of new prompts, such as instructions, that are fed once for all of them


class TransformersEngine:
    """Sampling from a `transformers` model, with keys and values kept across turns.

    Conversations with the same history, such as attempts at one question, are one row of the cache until they differ:
    what they share is computed once, and each draws its own token from the same distribution. A turn ends when it ends:
    those that go on are joined by those that have got their observation.

    A model that keeps a state other than keys and values is refused.
    """

    def __init__(self, policy: Policy, stop: tuple[str, ...]):
        self.policy, self._forward, self._stopped = policy, Forward(policy), Stops(policy, stop)
        self.reset()

    def reset(self) -> None:
        self._histories = Histories(self._forward.reset())
        self._open: dict[int, tuple[Completion, int]] = {}  # with the longest that the turn may get
        self._rows: list[Row] = []  # those with open turns
        self._temperature = 1.0

    @property
    def graphs(self) -> int:
        """How many CUDA graphs are recorded."""
        return self._forward.graphs

    def submit(self, prompts: dict[int, list[int]], max_new_tokens: int, temperature: float) -> None:
        if self._open and temperature != self._temperature:
            raise ValueError(f"turns at temperature {self._temperature} are open, and these have {temperature}")
        if repeated := sorted(self._open.keys() & prompts):
            raise ValueError(f"conversations {repeated} have an open turn already")
        self._temperature = temperature
        found = self._histories.extend(prompts)
        with torch.no_grad(), self.policy.autocast():
            self._prefill({row: ids[:-1] for row, ids in found.items()})
        for row, ids in found.items():
            row.next = ids[-1]
        self._rows += found
        self._open |= {key: (Completion(), max_new_tokens) for key in prompts}

    def finished(self) -> dict[int, Completion]:
        done: dict[int, Completion] = {}
        enough = len(self._open) // 8  # a few at a time, or prefills would be small
        # Around all of it: under autocast weights are rounded once, and not for each token.
        with torch.no_grad(), self.policy.autocast():
            while self._open and len(done) <= enough:
                done |= self._step()
        return done

    def _prefill(self, wanted: dict[Row, list[int]]) -> None:
        """Let the cache hold all of these ids."""
        fresh = {row: ids for row, ids in wanted.items() if not row.ids}
        shared = _common(list(fresh.values())) if len(fresh) > 1 else []
        if len(shared) >= WORTH_SHARING:
            first, *others = fresh
            self._feed({first: shared})
            for row in others:
                self._histories.fill(first, row, shared)
        rows = sorted(
            (row for row in wanted if len(wanted[row]) > len(row.ids)), key=lambda r: len(r.ids) - len(wanted[r])
        )
        while rows:
            count = max(1, PASS // (len(wanted[rows[0]]) - len(rows[0].ids)))
            self._feed({row: wanted[row][len(row.ids) :] for row in rows[:count]})
            del rows[:count]

    def _feed(self, new: dict[Row, list[int]]) -> None:
        """Put new ids behind what the rows hold, in one pass."""
        self._histories.cache.reserve(len(self._histories.rows), 0)
        rows, lengths = [row.index for row in new], [len(row.ids) for row in new]
        self._forward.prefill(list(new.values()), rows, lengths)
        for row, part in new.items():
            row.ids += part

    def _step(self) -> dict[int, Completion]:
        """One more token for each open turn; returns those that it completes."""
        rows, histories = self._rows, self._histories
        span = 1 + max(row.index for row in rows)
        if span > 2 * len(rows):
            histories.to_front(rows)
            span = len(rows)
        # Rows without an open turn come along, and what is written behind their end is written over later.
        everyone = histories.rows[: self._forward.rows(span)]
        hidden = self._forward.decode(
            [self.policy.pad_id if row.next is None else row.next for row in everyone],
            [len(row.ids) for row in everyone],
            reach=1 + max(len(row.ids) for row in rows),
        )
        logits = self.policy.logits(hidden[torch.tensor([row.index for row in rows], device=hidden.device)])
        keys = [key for row in rows for key in row.keys]
        which = torch.tensor([n for n, row in enumerate(rows) for _ in row.keys], device=hidden.device)
        tokens, logprobs = sample(logits, which, self._temperature)
        drawn = dict(zip(keys, zip(tokens.tolist(), logprobs.tolist(), strict=True), strict=True))
        self._rows, done = [], {}
        for row in rows:
            row.ids.append(row.next)
            ended, goes_on = self._take(row, drawn)
            done |= ended
            if ended and goes_on:
                histories.part(row, list(ended))
            for token, keys in goes_on.items():
                going = histories.part(row, keys)
                going.next = token
                self._rows.append(going)
        histories.copy()
        return done

    def _take(
        self, row: Row, drawn: dict[int, tuple[int, float]]
    ) -> tuple[dict[int, Completion], dict[int, list[int]]]:
        """Each conversation of a row gets its token: those whose turn it ends, and the others by token."""
        ended, goes_on = {}, {}
        for key in row.keys:
            (completion, limit), (token, logprob) = self._open[key], drawn[key]
            completion.tokens.append(token)
            completion.logprobs.append(logprob)
            if self._stopped(completion.tokens):
                completion.finish_reason = "stop"
            elif len(completion.tokens) < limit:
                goes_on.setdefault(token, []).append(key)
                continue
            ended[key] = self._open.pop(key)[0]
        return ended, goes_on


def _common(sequences: list[list[int]]) -> list[int]:
    """What they all begin with."""
    first, last = min(sequences), max(sequences)
    return first[: next((i for i, (x, y) in enumerate(zip(first, last, strict=False)) if x != y), len(first))]
