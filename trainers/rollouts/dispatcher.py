"""Answer the calls of many programs in batches, with one engine."""

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from threading import Condition
from typing import Protocol

from trainers.agents.calls import ENDED, Call, CallRefused, Session, Turn
from trainers.engines.engine import Completion, Engine, SamplingParams
from trainers.rollouts.timing import Timing

PATIENCE = (
    0.25  # seconds without a new call after which the waiting calls are answered, even if other programs still run
)

KEPT = 256  # once the engine has seen more conversations, its memory is freed as soon as no turn is open


class Caller(Protocol):
    """The part of an episode that the dispatcher uses; see `trainers.agents.tasks.Episode`."""

    number: int
    session: Session
    running: bool
    waiting: int
    since: float
    ended: bool

    def fail(self, problem: str) -> None:
        """End the episode."""


class Dispatcher:
    """Collects calls, samples their turns and answers them.

    A batch begins when all running programs wait for an answer. The order of events, and with it every rounding error, then
    does not depend on timing. The others wait for a slow program for only `PATIENCE` seconds.

    Args:
        timeout: the longest time between two calls of a program, in seconds.
    """

    def __init__(self, engine: Engine, params: SamplingParams, timing: Timing, timeout: float = math.inf):
        self.engine, self.params, self.timing, self.timeout = engine, params, timing, timeout
        self.changed = Condition()  # notified when a call arrives, and when a program begins or ends
        self._arrived: list[tuple[Caller, Call]] = []
        self._open: dict[int, tuple[Caller, Call]] = {}  # by conversation, in the order of their submission
        self._seen: set[int] = set()  # conversations that the engine knows
        self._closed = self._warned = False

    def submit(self, caller: Caller, call: Call) -> None:
        """Queue a call; the thread in `run` answers it. Raises CallRefused after `close`."""
        with self.changed:
            if self._closed:
                raise ENDED
            caller.waiting += 1
            self._arrived.append((caller, call))
            self.changed.notify_all()

    def run(self, callers: Sequence[Caller]) -> None:
        """Answer calls until all callers have ended."""
        while True:
            arrived = self._collect(callers)
            if self._open and len(self._seen) > 2 * max(KEPT, len(callers)):  # until the memory can be freed
                with self.changed:
                    self._arrived += arrived
                arrived = []
            self._begin(arrived)
            if self._open:
                with self.timing.measure("decode"):
                    done = self.engine.wait()
                self.timing.count("decode", sum(len(completion.tokens) for completion in done.values()))
                self._finish(done)
            elif not arrived and all(caller.ended for caller in callers):
                return

    def close(self) -> None:
        """Refuse the waiting calls and all later ones."""
        with self.changed:
            self._closed = True
            rest, self._arrived = [*self._arrived, *self._open.values()], []
        for caller, call in rest:
            self._answer(caller, call, ENDED)

    def _collect(self, callers: Sequence[Caller]) -> list[tuple[Caller, Call]]:
        """Wait until there is something to do; return the waiting calls."""
        with self.timing.measure("tools"), self.changed:
            latest = time.monotonic()
            while True:
                now, count = time.monotonic(), len(self._arrived)
                busy = [caller for caller in callers if caller.running and not caller.waiting and not caller.ended]
                late = [caller for caller in busy if now - caller.since > self.timeout]
                for caller in late:
                    caller.fail(f"TimeoutError: the program took more than {self.timeout:g} s without a call")
                has_work = bool(self._open or self._arrived)
                if not late and not busy and (has_work or all(caller.ended for caller in callers)):
                    break
                if has_work and now - latest > PATIENCE:
                    break
                self.changed.wait(PATIENCE if has_work else min(1.0, self.timeout))
                if len(self._arrived) > count:
                    latest = time.monotonic()
            arrived, self._arrived = self._arrived, []
        return sorted(arrived, key=lambda pair: (pair[0].number, repr(pair[1].messages)))

    def _begin(self, arrived: list[tuple[Caller, Call]]) -> None:
        if not self._open and len(self._seen) > KEPT:
            self.engine.reset()
            self._seen.clear()
        begun: dict[int, list[Call]] = {}
        for caller, call in arrived:
            try:
                if caller.ended:
                    raise ENDED
                caller.session.begin(call, self.params.max_new_tokens, self.engine.max_length)
            except CallRefused as error:
                self._answer(caller, call, error)
                continue
            self._open[call.number] = caller, call
            self._seen.add(call.number)
            longest = self.params.max_new_tokens
            begun.setdefault(min(call.max_tokens or longest, longest), []).append(call)
            if call.temperature not in (None, self.params.temperature) and not self._warned:
                self._warned = True
                asked = f"a program asks for temperature {call.temperature:g}"
                warnings.warn(f"{asked}: all calls are sampled at {self.params.temperature:g} here", stacklevel=2)
        for longest, calls in begun.items():
            params = replace(self.params, max_new_tokens=int(longest))
            seeds = {call.number: call.seed for call in calls} if params.temperature else None
            with self.timing.measure("prefill", sum(len(call.prompt) for call in calls)):
                self.engine.submit({call.number: call.prompt for call in calls}, params, seeds)

    def _finish(self, done: dict[int, Completion]) -> None:
        for number in [number for number in self._open if number in done]:
            caller, call = self._open.pop(number)
            # A thread of a program may still run after the end of its episode.
            self._answer(caller, call, ENDED if caller.ended else caller.session.finish(call, done[number]))

    def _answer(self, caller: Caller, call: Call, result: Turn | CallRefused) -> None:
        with self.changed:
            caller.waiting, caller.since = caller.waiting - 1, time.monotonic()
        call.settle(result)
