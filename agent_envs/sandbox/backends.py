"""The files that are visible inside a sandbox."""

import os
import subprocess
import sys
from functools import cache

NOBODY = 65534  # the kernel's own number for a user who owns nothing
SCRATCH_BYTES = 64 << 20
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
ENVIRONMENT = {
    "PATH": "/usr/bin",
    "USER": "sandbox",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C",  # the only locale without files, which are not shown; PYTHONUTF8 says what text is
    "MALLOC_ARENA_MAX": "1",  # each further arena takes 64 MB of address space, which is what is limited
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",  # the same code prints the same sets
    "PYTHONNOUSERSITE": "1",
    "PYTHONUNBUFFERED": "1",  # what was printed before a time-out is seen
    "PYTHONUTF8": "1",
}


@cache
def python() -> str:
    """The interpreter itself, not the link to it in a virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


# Prints where the standard library is, and what its extensions load: they are opened, not run.
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
