"""Run programs that try to escape from the sandbox or to do harm: none may succeed, and each must end in time.

    python -m benchmarks.envs.sandbox_escapes                    # the tries, one line each
    python -m benchmarks.envs.sandbox_escapes --runs 10000       # then 10,000 runs, which must leave no process

This process has things to find: a file, an environment variable, an open and inheritable file, a TCP server, an abstract
Unix socket and a System V shared memory segment. Exits with 1 if any try succeeds.

A try reports success by `escaped(...)`. A try that ends by its own mistake (such as a NameError) proves nothing and counts as
broken, which fails as well.
"""

import ctypes
import os
import platform
import random
import socket
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent_envs import sandbox
from agent_envs.sandbox.probe import choose_backend

LATE = 0.5  # seconds after the time-out within which every call must return
SECRET = "s3cr3t-" + "".join(random.Random("canary").choices("abcdef0123456789", k=12))

# System calls by number on x86-64 and on AArch64; each must fail with ENOSYS or EPERM.
_CALLS = """
fork 57 -, vfork 58 -, clone 56 220, clone3 435 435, ptrace 101 117, process_vm_readv 310 270,
process_vm_writev 311 271, pidfd_open 434 434, pidfd_getfd 438 438, kcmp 312 272, mount 165 40, umount2 166 39,
pivot_root 155 41, chroot 161 51, unshare 272 97, setns 308 268, open_tree 428 428, move_mount 429 429, fsopen 430 430,
fsmount 432 432, mount_setattr 442 442, name_to_handle_at 303 264, open_by_handle_at 304 265, mknod 133 -,
mknodat 259 33, add_key 248 217, request_key 249 218, keyctl 250 219, io_uring_setup 425 425, bpf 321 280,
perf_event_open 298 241, userfaultfd 323 282, memfd_create 319 279, memfd_secret 447 447, shmget 29 194, shmat 30 196,
msgget 68 186, semget 64 190, mq_open 240 180, sethostname 170 161, setdomainname 171 162, clock_settime 227 112,
settimeofday 164 170, adjtimex 159 171, reboot 169 142, kexec_load 246 104, init_module 175 105, swapon 167 224,
syslog 103 116, seccomp 317 277, personality 135 92, sched_setscheduler 144 119, setpriority 141 140, ioprio_set 251 30,
iopl 172 -, ioperm 173 -, modify_ldt 154 -, quotactl 179 60, acct 163 89, fanotify_init 300 262, vhangup 153 58,
setuid 105 146, setresuid 117 147, setgid 106 144, setgroups 116 159, capset 126 91, setsid 112 157, setpgid 109 154,
execveat 322 281, process_madvise 440 440
"""
CALLS = {
    name: int(number)
    for name, *numbers in (row.split() for row in _CALLS.split(","))
    if (number := numbers[platform.machine() != "x86_64"]) != "-"
}

BEGUN = "begun\n"  # what a program prints before its try
PRELUDE = """
import ctypes, errno, mmap, os, signal, socket, stat, struct, subprocess, sys, threading, time
libc, buffer = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer
def escaped(*what):
    print("ESCAPED", *what, flush=True)
def gets(function, *arguments):
    try:
        result = function(*arguments)
    except (OSError, ValueError, MemoryError, OverflowError, EOFError, subprocess.SubprocessError):
        return
    escaped(function, arguments, repr(result)[:200])
def call(name, *arguments):
    if name not in CALLS:
        return
    result = libc.syscall(CALLS[name], *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if result != -1 or ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
        escaped(name, result, errno.errorcode.get(ctypes.get_errno()))
def read(path):
    return open(path, "rb").read(100)
def files(*tops):
    for top in tops:
        for folder, folders, names in os.walk(top):
            for name in folders + names:
                yield os.path.join(folder, name)
"""

# Each try begins with a line "# name". HOST is the dict of `bait`.
_TRIES = "\n" + Path(__file__).with_name("sandbox_tries.py.txt").read_text(encoding="utf-8")
TRIES = dict(part.split("\n", 1) for part in _TRIES.split("\n# ")[1:])


@dataclass(kw_only=True)
class Args:
    """Try to escape from the sandbox, then count the processes left behind."""

    backend: str = "auto"
    """Isolation of the sandbox: auto, namespaces or unsafe."""
    timeout: float = 1.0
    """Seconds for each try."""
    only: str = ""
    """Only the tries with this text in their name."""
    runs: int = 0
    """Runs after the tries: mostly short ones; some time out, print without end or abort."""


@contextmanager
def bait():
    """Create things to find outside of the sandbox; yields the dict that the tries know as HOST."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.home())))
        secret = folder / "secret.txt"
        secret.write_text(SECRET)
        fd = os.open(secret, os.O_RDWR)
        stack.callback(os.close, fd)
        os.set_inheritable(fd, True)
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract = f"\0escape-{os.getpid()}"
        unix.bind(abstract)
        unix.listen()
        libc = ctypes.CDLL(None, use_errno=True)
        key = 0x5EC0000 + os.getpid() % 0xFFFF
        memory = libc.shmget(key, 4096, 0o1666)
        stack.callback(libc.shmctl, memory, 0, None)
        os.environ["SANDBOX_SECRET"] = SECRET
        stack.callback(os.environ.pop, "SANDBOX_SECRET")
        yield {
            "file": str(secret),
            "fd": fd,
            "repository": str(Path(__file__).resolve().parents[2]),
            "pid": os.getpid(),
            "port": server.getsockname()[1],
            "abstract": abstract,
            "shm": memory,
            "shm_key": key,
        }
        if secret.read_text() != SECRET:
            raise RuntimeError("a try wrote to the secret file")


def program(name: str, host: dict) -> str:
    head = f"CALLS = {CALLS}\nHOST = {host}\nSECRET_HALF = {SECRET[: len(SECRET) // 2].encode()}\n"
    return head + PRELUDE + f"print({BEGUN!r}, end='', flush=True)\n{TRIES[name]}\nprint('done', flush=True)\n"


def judge(done: sandbox.Completed) -> str:
    """Return "escaped", "broken" (the try itself is wrong), or how the try was held."""
    last = done.stderr.strip().rpartition("\n")[2]
    if "ESCAPED" in done.stdout:
        return "escaped: " + done.stdout[done.stdout.index("ESCAPED") :][:200]
    if done.stdout.endswith("done\n"):
        return "held: refused"
    if done.timed_out:
        return "held: timed out" if done.stdout.startswith(BEGUN) else "broken: it had no time to begin"
    if done.returncode < 0 or last.startswith(("MemoryError", "OSError", "PermissionError", "BlockingIOError")):
        return f"held: ended by {last[:60] or f'signal {-done.returncode}'}"
    return f"broken: {last[:200]}" if done.returncode == 1 else f"held: exit code {done.returncode}"


def left_behind() -> list[str]:
    """List the processes that runs of this program have left: orphans, and children that are not reaped.

    A process belongs to a run if it is in another process namespace or has the command line of a run. Runs of other programs
    are descendants of those programs, so they are not listed.
    """
    own = os.readlink("/proc/self/ns/pid")
    parents, words = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            line = (folder / "cmdline").read_bytes()
            zombie = state == "Z" and int(parent) == os.getpid()
            if zombie or b"run_next()" in line or b"/main.py" in line or os.readlink(folder / "ns/pid") != own:
                parents[int(folder.name)], words[int(folder.name)] = int(parent), line[:60]
        except OSError:
            continue  # the process has ended, or is not ours
    tops = [pid for pid, parent in parents.items() if parent in (1, os.getpid())]
    return [f"{pid} {words[pid]!r}" for pid in tops]


def tries(args: Args) -> int:
    """Run all tries; returns the number that were late or not held, plus the processes left behind."""
    bad, backend, asked = 0, choose_backend(args.backend), [name for name in TRIES if args.only in name]
    with bait() as host:
        for name in asked:
            start = time.perf_counter()
            done = sandbox.run(program(name, host), stdin="input", timeout=args.timeout, backend=args.backend)
            took = time.perf_counter() - start
            verdict = judge(done)
            late = took > args.timeout + LATE
            bad += late or verdict.startswith(("escaped", "broken"))
            print(f"{took:6.3f} s  {name:50} {verdict}{'  LATE' if late else ''}", flush=True)
    print(f"{backend}: {len(asked)} tries, {bad} not held; left behind: {left_behind() or 'nothing'}")
    return bad + len(left_behind())


def many(args: Args) -> int:
    """Run many programs in a row; returns the number of wrong ends, plus the processes and open files left behind."""
    mix = ["print('x')"] * 47 + ["import time; time.sleep(9)", "while True: print('x' * 1000)", "import os; os.abort()"]
    start, bad, slowest = time.perf_counter(), 0, 0.0
    before = len(os.listdir("/proc/self/fd"))
    for i in range(args.runs):
        code = mix[i % len(mix)]
        timeout = 10.0 if code == mix[0] else 0.5
        began = time.perf_counter()
        done = sandbox.run(code, timeout=timeout, backend=args.backend)
        late = time.perf_counter() - began - timeout if done.timed_out else 0.0
        slowest = max(slowest, late)
        if late > LATE or (code == mix[0]) != (done.stdout == "x\n"):
            bad += 1
            print(f"{code!r}: {late:.3f} s late, {str(done)[:300]}", flush=True)
        if (i + 1) % 1000 == 0:
            print(f"{i + 1} runs, {time.perf_counter() - start:.0f} s, {bad} bad, left: {left_behind()}", flush=True)
    files = len(os.listdir("/proc/self/fd")) - before
    print(
        f"{args.runs} runs: {bad} bad, {len(left_behind())} processes and {files} open files left behind; "
        f"time-outs at most {slowest:.3f} s late"
    )
    return bad + len(left_behind()) + files


def main(args: Args) -> int:
    for name, state in sandbox.available().items():
        print(f"{name}: {state}")
    bad = tries(args)
    bad += many(args) if args.runs else 0
    return bool(bad)


if __name__ == "__main__":
    import tyro

    sys.exit(main(tyro.cli(Args)))
