"""The backends that work here: each is tried in a process until it works, with a program that tests the isolation."""

import subprocess
import sys
from functools import cache
from pathlib import Path

from agent_envs.sandbox import seccomp
from agent_envs.sandbox.process import SandboxError, execute

BACKENDS = ("namespaces", "unsafe")
_PROBE = """
import os, socket
def must_fail(function, *arguments):
    try:
        function(*arguments)
    except OSError:
        return
    raise SystemExit(f"{function.__name__}{arguments} was not blocked")
for path in ("/etc/passwd", "/proc/self", "/sys/kernel", "/dev/shm", "/dev/tty", package):
    must_fail(os.stat, path)
must_fail(os.mkdir, "/new")
must_fail(os.fork)
must_fail(os.setuid, 0)
must_fail(socket.socket, socket.AF_INET)
if os.getpid() > 9 or os.getuid() == 0:
    raise SystemExit("it has the processes or the user of its caller")
print("isolated")
"""


def available() -> dict[str, str]:
    """Map each backend to "ok" or the reason why it fails.

    The first call takes up to a second.
    """
    return {backend: _state(backend) for backend in BACKENDS}


def choose_backend(backend: str) -> str:
    """The backend that runs the code: ``backend`` itself, or namespaces for "auto", which is never unsafe.
    Raises SandboxError: the backend does not work here."""
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend must be 'auto' or one of {BACKENDS}, got {backend!r}")
    chosen = "namespaces" if backend == "auto" else backend
    if (state := _state(chosen)) != "ok":
        _state.cache_clear()  # it may pass, as too many open files do
        raise SandboxError(
            f"the sandbox backend {chosen!r} does not work here: {state}. It takes a machine that permits user namespaces; "
            'backend="unsafe" is for code that you trust'
        )
    return chosen


@cache
def _state(backend: str) -> str:
    if not sys.platform.startswith("linux"):
        return f"needs Linux, this is {sys.platform}"
    if backend == "unsafe":
        return "ok"
    if not seccomp.is_supported():
        return "the system calls of this machine's architecture are not known here (x86-64 and AArch64 are)"
    if not sys.executable:
        return "this program does not know its Python interpreter"
    try:
        done = execute(backend, f"package = {str(Path(__file__).parent)!r}" + _PROBE, timeout=10.0)
    except (SandboxError, OSError, subprocess.SubprocessError) as error:
        return str(error)
    return "ok" if done.stdout == "isolated\n" else f"the probe failed: {done.stderr[-500:].strip() or done}"
