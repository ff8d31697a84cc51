"""The configuration that the processes of a run get: by the command line of the first, and by its standard input."""

import importlib.util
import marshal
import math
import os
from functools import cache
from importlib.abc import InspectLoader
from types import CodeType

from agent_envs.sandbox import seccomp
from agent_envs.sandbox.backends import DEVICES, ENVIRONMENT, NOBODY, SCRATCH_BYTES, python, visible_tree

_BOOT = """
import marshal, os
def read(count):
    data = b""
    while len(data) < count:
        data += os.read(0, count - len(data)) or os._exit(1)
    return data
def run_next():
    code, function, config = marshal.loads(read(int.from_bytes(read(8), "big")))
    exec(code, globals())
    globals()[function](config, run_next)
run_next()
"""  # A configuration is read to its last byte and no further: what follows is the standard input of the code.


def first_command() -> list[str]:
    """The command line of a bare interpreter that reads its configuration from standard input."""
    return [python(), "-I", "-S", "-c", _BOOT]


@cache
def _child() -> CodeType | None:
    """`child.py` compiled, by way of the import system's cache; it is sent along, since a sandbox cannot see it."""
    spec = importlib.util.find_spec("agent_envs.sandbox.child")
    assert spec is not None and isinstance(spec.loader, InspectLoader)
    return spec.loader.get_code(spec.name)


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # code and standard input may hold any string


def _pack(function: str, config: dict) -> bytes:
    data = marshal.dumps((_child(), function, config))
    return len(data).to_bytes(8, "big") + data


def encode_payload(
    backend: str, code: str, report: int, deadline: float, scratch: str, timeout: float, memory_mb: int
) -> bytes:
    """Encode the input of `child.monitor`, followed by that of `child.confine`."""
    isolated = backend != "unsafe"
    limits = {
        "RLIMIT_AS": memory_mb << 20,
        "RLIMIT_CPU": math.ceil(timeout) + 1,  # of what the time-out misses: processes left behind by unsafe code
        "RLIMIT_FSIZE": SCRATCH_BYTES,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_STACK": 8 << 20,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
    }
    setup: dict[str, object] = {}
    if isolated:
        limits["RLIMIT_NPROC"] = 64  # threads; outside a namespace it would count all that the user runs
        shown, hidden = visible_tree()
        setup = {"calls": seccomp.setup_numbers(), "devices": DEVICES, "readonly": shown, "hidden": hidden}
    shared = {"report": report, "uid": NOBODY}
    monitor = {
        **shared,
        "parent": os.getpid(),
        "deadline": deadline,
        "namespaces": isolated,
        "scratch": SCRATCH_BYTES,
        **setup,
    }
    confine = {
        **shared,
        "cwd": scratch,
        "code": encode(code),
        "limits": limits,
        "filter": seccomp.program() if isolated else b"",
        "python": [python(), f"{scratch}/main.py"],
        "environment": {**ENVIRONMENT, "HOME": scratch, "TMPDIR": scratch},
    }
    return _pack("monitor", monitor) + _pack("confine", confine)
