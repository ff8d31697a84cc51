"""Which backends work here: each is tried once a process, with a program that tests the isolation."""

import subprocess
import sys
from functools import cache
from pathlib import Path

from agent_envs.sandbox import seccomp
from agent_envs.sandbox.backends import BACKENDS, unavailable_reason
from agent_envs.sandbox.process import SandboxError, execute

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
    """Each backend with "ok" or the reason why it does not work here. The first call takes a second at most."""
    return {backend: _state(backend) for backend in BACKENDS}


def choose_backend(backend: str) -> str:
    """The name of a backend that works, `backend` itself or, for "auto", the first that isolates.

    Raises:
        SandboxError: there is none.
        ValueError: for an unknown name.
    """
    if backend == "auto":
        states = {}
        for name in BACKENDS[:-1]:
            if (state := _state(name)) == "ok":
                return name
            states[name] = state
        reasons = "; ".join(f"{name}: {state}" for name, state in states.items())
        raise SandboxError(
            f"no sandbox works here ({reasons}). Install bubblewrap on a machine that permits user namespaces, "
            'or pass backend="unsafe" for code that you trust'
        )
    if backend not in BACKENDS:
        raise ValueError(f"backend must be 'auto' or one of {BACKENDS}, got {backend!r}")
    if (state := _state(backend)) != "ok":
        raise SandboxError(f"the sandbox backend {backend!r} does not work here: {state}")
    return backend


@cache
def _state(backend: str) -> str:
    if reason := unavailable_reason(backend):
        return reason
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
