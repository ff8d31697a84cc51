"""The end of a run before its last update: by a signal, or because it cannot continue. Imports no torch.

SIGTERM and SIGINT (Ctrl-C) let an update in hand be finished and saved, and then end the process with status 128 + n; a
second signal ends it at once.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class TrainingStopped(RuntimeError):
    """A run cannot continue, for the reason in the message, with what is saved. A command shows it instead of a traceback."""


class _Interrupt(KeyboardInterrupt):
    """Raised where a signal came and no update is in hand. No tool's ``except Exception`` catches it."""


@dataclass
class _State:
    received: int = 0
    deferring: bool = False


_state = _State()  # of the process, as signals are


def received() -> int:
    """The number of the signal that has asked this process to stop; 0 if none has."""
    return _state.received


@contextmanager
def handle_signals() -> Iterator[None]:
    """Inside, SIGTERM and SIGINT end the process with status 128 + n, at once or after the update in hand (`deferring`)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _on_signal) for number in SIGNALS}
    try:
        yield
    except _Interrupt:
        exit_by_signal(_state.received, "")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _state.received, _state.deferring = 0, False


@contextmanager
def deferring() -> Iterator[None]:
    """Inside, a first signal is only noted, for `received`; who loops here looks at it after each update."""
    before, _state.deferring = _state.deferring, True
    try:
        yield
    finally:
        _state.deferring = before
    if _state.received and not before:  # it came after the last look
        raise _Interrupt


def exit_by_signal(number: int, message: str) -> NoReturn:
    """End the process with status 128 + n, and a line that names the signal and what is left."""
    print(f"Stopped by {signal.Signals(number).name}{message and ': ' + message}", file=sys.stderr, flush=True)
    raise SystemExit(128 + number)


def _on_signal(number: int, frame: FrameType | None) -> None:
    if _state.received:
        # A hidden cursor is shown again; nothing is waited for, neither threads nor tools.
        os.write(2, b"\x1b[?25h\n" if os.isatty(2) else b"")
        os._exit(128 + number)
    _state.received = number
    if not _state.deferring:
        raise _Interrupt
    name = signal.Signals(number).name
    # Not by print: the signal may have come in the middle of one.
    os.write(2, f"\n{name}: the update in hand is finished and saved first; a second signal stops at once\n".encode())
