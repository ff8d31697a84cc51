"""Processes that do one step each in turn, so that whatever else the machine does hits all of them alike."""

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection


class Pace:
    """What a runner calls before its first step and after each one: ends the step, and waits for its turn."""

    def __init__(self, connection: Connection, rounds: int):
        self._connection, self._left, self._begun = connection, rounds, None

    def __call__(self) -> None:
        now = time.perf_counter()
        self._connection.send(None if self._begun is None else now - self._begun)  # None: ready to begin
        if self._left:
            self._connection.recv()
            self._left -= 1
            self._begun = time.perf_counter()


Runner = Callable[[Pace], dict]
"""Does as many steps as there are rounds, and returns what it has to say of them."""


def race(runners: dict[str, Runner], rounds: int) -> tuple[dict[str, list[float]], dict[str, dict]]:
    """Each of ``runners``, which can be pickled, in a process of its own; one step each in every round.

    Returns:
        By name, the seconds of each step, and what the runner said.

    Raises:
        RuntimeError: a runner ended early; what went wrong stands on standard error.
    """
    context = multiprocessing.get_context("spawn")
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    pipes, processes = {}, {}

    def heard(name: str):
        try:
            return pipes[name].recv()
        except EOFError:
            raise RuntimeError(f"{name} ended early: see its error above") from None

    try:
        for name, runner in runners.items():
            pipes[name], theirs = context.Pipe()
            processes[name] = context.Process(target=_run, args=(runner, theirs, rounds), name=name, daemon=True)
            processes[name].start()
            theirs.close()  # or its end would not be seen here
            heard(name)  # one after the other: what is loaded does not slow what is timed
        names = list(runners)
        for number in range(rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                pipes[name].send(None)
                seconds[name].append(heard(name))
        return seconds, {name: heard(name) for name in names}
    finally:
        for process in processes.values():
            process.join(timeout=10)
            process.kill()


def _run(runner: Runner, connection: Connection, rounds: int) -> None:
    connection.send(runner(Pace(connection, rounds)))
