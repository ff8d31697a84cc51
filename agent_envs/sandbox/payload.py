"""The configuration of the processes of a run, including the files that they see. It is passed by the command line and the
standard input of the first process."""

import importlib.util
import marshal
import math
import os
import subprocess
import sys
from functools import cache
from importlib.abc import InspectLoader
from types import CodeType

from agent_envs.sandbox import seccomp

NOBODY = 65534  # the kernel's number for a user who owns nothing
SCRATCH_BYTES = 64 << 20
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
ENVIRONMENT = {
    "PATH": "/usr/bin",
    "USER": "sandbox",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C",  # the only locale that needs no files; PYTHONUTF8 sets the encoding
    "MALLOC_ARENA_MAX": "1",  # each further arena takes 64 MB of address space, which is limited
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",  # the same code prints sets in the same order
    "PYTHONNOUSERSITE": "1",
    "PYTHONUNBUFFERED": "1",  # keeps what was printed before a timeout
    "PYTHONUTF8": "1",
}


@cache
def python() -> str:
    """The interpreter itself, not the link to it in a virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


# Prints the paths of the standard library and of what its extensions load. The extensions are opened, not run.
_LIBRARIES = """
import ctypes, os, sys
for folder in filter(os.path.isdir, sys.path):
    print(folder)
    for name in os.listdir(folder) if folder.endswith("lib-dynload") else ():
        if not name.startswith("_tkinter"):  # half of X11, and there is no display
            try: ctypes.CDLL(os.path.join(folder, name))
            except OSError: pass
try: ctypes.CDLL("libgcc_s.so.1")  # which glibc loads when a thread is cancelled
except OSError: pass
class Info(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
def each(info, size, data):
    print(os.fsdecode(info.contents.name))
    return 0
visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
ctypes.CDLL(None).dl_iterate_phdr(visit(each), None)
"""


@cache
def visible_tree() -> tuple[dict[str, str], list[str]]:
    """Return the visible files of the machine, read-only: path inside -> path outside; and hidden folders in them."""
    command = [python(), "-I", "-S", "-c", _LIBRARIES]
    listed = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
    paths = [os.path.normpath(line) for line in listed.stdout.splitlines() if line.startswith("/")]
    shown: dict[str, str] = {}
    for path in (*paths, python(), "/etc/ld.so.cache", "/usr/share/zoneinfo"):
        if os.path.exists(path) and not any(path.startswith(f"{other}/") for other in shown):
            shown[path] = os.path.realpath(path)
    packages = [f"{folder}/{name}" for folder in shown for name in ("site-packages", "dist-packages")]
    return shown, [path for path in packages if os.path.isdir(path)]


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
    """`child.py`, compiled, from the import system's cache. It is sent along, since a sandbox cannot see the file."""
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
        "RLIMIT_CPU": math.ceil(timeout) + 1,  # for what the timeout misses: processes left running by unsafe code
        "RLIMIT_FSIZE": SCRATCH_BYTES,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_STACK": 8 << 20,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
    }
    setup: dict[str, object] = {}
    if isolated:
        limits["RLIMIT_NPROC"] = 64  # threads; outside a namespace it would count all processes of the user
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
