"""End a run before its last update: on a signal, or because it cannot continue. Imports no torch.

After SIGTERM, SIGINT (Ctrl-C) or SIGHUP (the terminal is closed), the current update is finished and saved, and the process
exits with status 128 + n. A second one ends it at once, except SIGHUP. Under nohup, SIGHUP remains ignored.
"""

import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
groups: set[int] = set()  # of processes that must not outlive this one


class TrainingStopped(RuntimeError):
    """A run cannot continue; the message states why, and what is saved. A command prints it instead of a traceback."""


class _Interrupt(KeyboardInterrupt):
    """Raised on a signal while no update runs. A tool's ``except Exception`` does not catch it."""


@dataclass
class _State:
    received: int = 0
    deferring: bool = False


_state = _State()  # one for the process, like signals


def received() -> int:
    """Return the number of the signal that has asked this process to stop; 0 if none has."""
    return _state.received


@contextmanager
def handle_signals() -> Iterator[None]:
    """In the body, one of `SIGNALS` ends the process with status 128 + n, at once or after the current update (`deferring`)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = [number for number in SIGNALS if number != signal.SIGHUP or not under_nohup]
    before = {number: signal.signal(number, _on_signal) for number in handled}
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
    """In the body, a first signal is only noted, for `received`; a training loop must check it after each update."""
    before, _state.deferring = _state.deferring, True
    try:
        yield
    finally:
        _state.deferring = before
    if _state.received and not before:  # the signal came after the last check of `received`
        raise _Interrupt


def exit_by_signal(number: int, message: str) -> NoReturn:
    """End the process with status 128 + n, and print a line with the signal and ``message``."""
    print(f"Stopped by {signal.Signals(number).name}{message and ': ' + message}", file=sys.stderr, flush=True)
    raise SystemExit(128 + number)


def _on_signal(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        _leave_terminal()
        if _state.received:  # the kernel and the shell send one each
            return
    if _state.received:
        # Show a hidden cursor again; wait for neither threads nor tools.
        os.write(2, b"\x1b[?25h\n" if os.isatty(2) else b"")
        for group in tuple(groups):
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        os._exit(128 + number)
    _state.received = number
    if not _state.deferring:
        raise _Interrupt
    name = signal.Signals(number).name
    # Not with print: the signal may have interrupted one.
    os.write(2, f"\n{name}: the update in hand is finished and saved first; a second signal stops at once\n".encode())


def _leave_terminal() -> None:
    """Let output that went to the terminal go nowhere: on one that is closed, printing raises OSError."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        with suppress(OSError):  # closed
            if stat.S_ISCHR(os.fstat(fd).st_mode):  # os.isatty denies a closed terminal
                os.dup2(nowhere, fd)
    os.close(nowhere)
