"""One run: start `child.monitor`, feed it, read its output, and never wait longer than the time limit."""

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent_envs.sandbox.payload import encode, encode_payload, first_command

CHUNK = 1 << 16  # bytes read at a time
_GRACE = 0.25  # seconds for the monitor to clean up after the deadline, before it is killed


class SandboxError(RuntimeError):
    """A failure of the sandbox, never of the program.

    No isolation is available here, or the sandbox itself failed.
    """


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a run.

    Attributes:
        stdout, stderr: printed text, with invalid UTF-8 replaced. Beyond ``max_output`` bytes the middle is left out.
        returncode: exit status, or minus the number of the signal that ended the program; -9 after a timeout.
        timed_out: the run was stopped at its time limit.
        truncated: part of ``stdout`` or ``stderr`` was left out.
    """

    stdout: str
    stderr: str
    returncode: int
    timed_out: bool = False
    truncated: bool = False


class Capture:
    """The first and the last ``limit / 2`` bytes of a stream, in bounded memory."""

    def __init__(self, limit: int):
        self.first, self.last, self.total = limit - limit // 2, limit // 2, 0
        self.head, self.tail = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.first - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > self.last + CHUNK:
            del self.tail[: len(self.tail) - self.last]

    @property
    def truncated(self) -> bool:
        return self.total > self.first + self.last

    def text(self) -> str:
        """What was kept, decoded, invalid UTF-8 replaced; a line states how many bytes were left out."""
        data = bytes(self.head + self.tail)
        if self.truncated:
            left_out = b"\n[... %d bytes left out ...]\n" % (self.total - self.first - self.last)
            data = bytes(self.head) + left_out + bytes(self.tail[len(self.tail) - self.last :])
        return data.decode("utf-8", "replace")


def execute(
    backend: str, code: str, *, stdin: str = "", timeout: float = 5.0, memory_mb: int = 256, max_output: int = 20_000
) -> Completed:
    """Run a program on a backend, without the checks of `run`. Raises SandboxError: the sandbox could not be made or broke."""
    deadline = time.monotonic() + timeout
    out, err = Capture(max_output), Capture(max_output)
    with contextlib.ExitStack() as stack:
        scratch = "/tmp"
        if backend == "unsafe":
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="unsafe-", ignore_cleanup_errors=True))
        reports, report = os.pipe()
        stack.callback(os.close, reports)
        with os.fdopen(report, "wb"):  # closed here as soon as the child has it
            payload = encode_payload(backend, code, report, deadline, scratch, timeout, memory_mb) + encode(stdin)
            options: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            options |= {"env": {}, "cwd": "/", "pass_fds": (report,), "start_new_session": True}
            process = subprocess.Popen(first_command(), bufsize=0, **options)
        assert process.stdin and process.stdout and process.stderr  # pipes, all three
        try:
            report_line = _communicate(process, payload, reports, deadline + _GRACE, out, err)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            _drain(process.stdout.fileno(), out)
            _drain(process.stderr.fileno(), err)
            for stream in (process.stdin, process.stdout, process.stderr):
                stream.close()
            process.wait()
    return _make_completed(backend, report_line, time.monotonic() >= deadline, out, err)


def _make_completed(backend: str, report_line: str, late: bool, out: Capture, err: Capture) -> Completed:
    kind, _, rest = report_line.partition(" ")
    if backend == "unsafe" and kind not in ("exit", "timeout", "error"):  # the code killed its monitor
        kind, rest = "exit", str(-signal.SIGKILL)
    if kind == "error" or (kind not in ("exit", "timeout") and not late):
        raise SandboxError(f"the sandbox ({backend}) failed: {rest or err.text()[-1000:] or 'it ended without a word'}")
    returncode = int(rest) if kind == "exit" else -signal.SIGKILL
    return Completed(out.text(), err.text(), returncode, kind != "exit", out.truncated or err.truncated)


def _communicate(
    process: subprocess.Popen, payload: bytes, reports: int, until: float, out: Capture, err: Capture
) -> str:
    """Write and read until no process is left that could write the report, or time is over. Returns its first line."""
    assert process.stdin and process.stdout and process.stderr
    report, unsent, stdin = bytearray(), memoryview(payload), process.stdin.fileno()
    sinks: dict[int, Callable[[bytes], None]] = {
        process.stdout.fileno(): out.add,
        process.stderr.fileno(): err.add,
        reports: report.extend,
    }
    with selectors.DefaultSelector() as selector:
        for fd in (*sinks, stdin):
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ if fd in sinks else selectors.EVENT_WRITE)
        while reports in selector.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if key.fd == stdin:
                    try:
                        unsent = unsent[os.write(key.fd, unsent[:CHUNK]) :]
                    except BrokenPipeError:  # the reader has gone
                        unsent = unsent[:0]
                    over = not unsent
                else:
                    data = os.read(key.fd, CHUNK)
                    sinks[key.fd](data)
                    over = not data
                if over:
                    selector.unregister(key.fd)
                    if key.fd == stdin:
                        process.stdin.close()
    return report.decode("utf-8", "replace").partition("\n")[0]


def _drain(fd: int, capture: Capture) -> None:
    """Read the rest of a pipe, at most its capacity: in the unsafe backend, a process may continue to write."""
    with contextlib.suppress(BlockingIOError):
        for _ in range((1 << 20) // CHUNK):
            if not (data := os.read(fd, CHUNK)):
                return
            capture.add(data)
