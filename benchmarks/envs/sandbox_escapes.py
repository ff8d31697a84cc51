"""Programs that try to get out of the sandbox, or to do harm from inside: none may, and each ends in its time.

    python -m benchmarks.envs.sandbox_escapes                    # the tries, one line each
    python -m benchmarks.envs.sandbox_escapes --runs 10000       # and then as many runs, and the processes they left: none

There is something to find: a file, an environment variable, an open and inheritable file, a TCP server, an abstract
Unix socket and a System V shared memory segment, all of this process. Exits 1 if any try came through.

A try tells by `escaped(...)` that it got somewhere. One that ends by a mistake of its own (a NameError, say) proves
nothing and counts as broken, which fails as well.
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

LATE = 0.5  # seconds after the time-out within which every call must have come back
SECRET = "s3cr3t-" + "".join(random.Random("canary").choices("abcdef0123456789", k=12))

# System calls by number on x86-64 and on AArch64; each is to answer ENOSYS or EPERM.
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

# Each begins with a line "# name". HOST is a dict of what there is to find.
_TRIES = r"""
# read a file of the caller
gets(read, HOST["file"])
# read system files
for path in ("/etc/passwd", "/etc/shadow", "/etc/hosts", "/root/.bashrc", "/var/log/syslog", "/boot", "/sys"):
    gets(read, path); gets(os.listdir, path)
# read the repository
gets(os.listdir, HOST["repository"]); gets(read, HOST["repository"] + "/README.md")
# climb out of the folder
for depth in range(1, 12):
    gets(read, "../" * depth + "etc/passwd"); gets(read, "../" * depth + HOST["file"].lstrip("/"))
# find the secret in any readable file outside the libraries
for path in files("/tmp", "/dev", "/etc", "/home", "/root", "/mnt", "/var", "/opt", "/work"):
    if path == "/tmp/main.py" or "/lib/python" in path or not os.path.isfile(path): continue
    if SECRET_HALF in open(path, "rb").read(1000): escaped(path)
# installed packages
for path in files("/usr/lib", "/usr/local", os.path.dirname(os.__file__)):
    if "/site-packages/" in path or "/dist-packages/" in path: escaped(path)
for name in ("numpy", "pip", "agent_envs"):
    if __import__("importlib.util").util.find_spec(name): escaped(name)
# proc of others
for path in ("self/environ", "1/environ", "1/root/etc/passwd", "1/cwd", f"{HOST['pid']}/mem", "self/fd", "kcore"):
    gets(os.stat, "/proc/" + path)
# symbolic link to the outside
os.symlink("/etc/passwd", "a"); gets(read, "a"); os.symlink("/", "b"); gets(read, "b/etc/passwd")
gets(read, "b/" + HOST["file"])
# hard link to a library, then write
gets(os.link, os.__file__, "/tmp/os.py")
# write to the standard library
gets(open, os.__file__, "a"); gets(os.unlink, os.__file__); gets(os.chmod, os.__file__, 0o777)
gets(os.truncate, os.__file__, 0)
gets(open, sys.executable, "r+b")
# write anywhere but in the scratch folder
for path in ("/", "/usr", "/usr/lib", "/lib", "/dev", "/etc", "/root", "/home", "/host", os.path.dirname(os.__file__)):
    gets(os.mkdir, path + "/new"); gets(open, path + "/new", "w"); gets(os.rename, "main.py", path + "/new")
# file handles instead of paths
call("name_to_handle_at", -100, b"/", buffer(128), buffer(8), 0)
call("open_by_handle_at", -100, buffer(128), 0)
# environment of the caller
for name, value in os.environ.items():
    if "SECRET" in name or "PATH" in name and "/venv" in value or "TOKEN" in name: escaped(name)
# environment left on the stack
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ"); i = 0
while environ[i]:
    if b"SECRET" in environ[i]: escaped(environ[i])
    i += 1
# the command line and the rest of the configuration
if sys.stdin.read() != "input": escaped("stdin")
if len(sys.argv) != 1: escaped(sys.argv)
# open files that were inherited
for fd in range(3, 4096):
    gets(os.fstat, fd)
# a file of the caller by its number
gets(os.pread, HOST["fd"], 10, 0); gets(os.write, HOST["fd"], b"x")
# TCP to a server of the machine
for address in ("127.0.0.1", "0.0.0.0", "localhost"):
    gets(socket.create_connection, (address, HOST["port"]), 0.2)
# every family of sockets but Unix
for family in (2, 3, 10, 16, 17, 29, 31, 38, 40, 44):
    for kind in (1, 2, 3): gets(socket.socket, family, kind)
# name service and the outside
gets(socket.getaddrinfo, "example.org", 80); gets(socket.create_connection, ("1.1.1.1", 53), 0.2)
# abstract Unix socket of the caller
s = socket.socket(socket.AF_UNIX); gets(s.connect, HOST["abstract"])
# fork
gets(os.fork); call("fork"); call("vfork"); call("clone", 17, 0, 0, 0, 0); call("clone3", buffer(88), 88)
# fork bomb
end = time.time() + 0.4
while time.time() < end:
    gets(os.fork); gets(subprocess.Popen, [sys.executable, "main.py"])
# daemon by double fork
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(100)
    escaped("forked")
except OSError: pass
# shell, subprocess, spawn
gets(subprocess.run, ["/bin/sh", "-c", "id"]); gets(os.posix_spawn, sys.executable, ["x"], {}); gets(os.popen, "id")
if os.system("id") == 0: escaped("system")
# multiprocessing
import multiprocessing
gets(multiprocessing.Process(target=escaped).start)
# new session or process group
gets(os.setsid); gets(os.setpgid, 0, 0); call("setsid")
# thread bomb
threading.stack_size(32768); started = 0
try:
    for _ in range(5000): threading.Thread(target=time.sleep, args=(5,), daemon=True).start(); started += 1
except RuntimeError: pass
if started > 200: escaped(started, "threads")
# kill the parent and the caller
gets(os.kill, HOST["pid"], 9)
for number in (9, 15, 19, 6):  # these have no effect on process 1, so they may be permitted
    for pid in {1, os.getppid()}:
        try: os.kill(pid, number)
        except OSError: pass
time.sleep(0.1)
# kill all
for pid in range(3, 40000):
    gets(os.kill, pid, 9)
try: os.kill(-1, 9)
except OSError: pass
gets(os.killpg, HOST["pid"], 9)
# interrupt process 1
for number in range(1, 65):
    try: os.kill(1, number)
    except OSError: pass
time.sleep(0.1)
# ptrace and memory of others
call("ptrace", 16, 1, 0, 0); call("ptrace", 0, 0, 0, 0); call("process_vm_readv", 1, 0, 0, 0, 0, 0)
call("process_vm_writev", HOST["pid"], 0, 0, 0, 0, 0); call("kcmp", 1, 2, 0, 0, 0)
# files of others by pidfd
call("pidfd_open", 1, 0); call("pidfd_open", HOST["pid"], 0); call("pidfd_getfd", 0, 0, 0)
# become root
gets(os.setuid, 0); gets(os.setgid, 0); gets(os.setresuid, 0, 0, 0); gets(os.setgroups, [0]); call("capset", 0, 0)
if 0 in os.getresuid(): escaped("is root")
# a set-uid program
for path in files("/usr", "/lib", "/dev", "/tmp"):
    if os.path.isfile(path) and os.lstat(path).st_mode & 0o6000: gets(os.execv, path, [path])
# make a set-uid program
with open("x", "wb") as f: f.write(open(sys.executable, "rb").read(4096))
os.chmod("x", 0o6755); gets(os.execv, "./x", ["x"])
# more by a program of its own
script = '''#!PYTHON
import os
for act in (lambda: open("/etc/passwd"), os.fork, lambda: os.setuid(0), lambda: bytearray(1 << 30)):
    try: act(); print("ESCAPED")
    except (OSError, MemoryError): pass
print("done")
'''
with open("x", "w") as f: f.write(script.replace("PYTHON", sys.executable))
os.chmod("x", 0o755)
if not os.statvfs("/tmp").f_flag & os.ST_NOEXEC: os.execv("/tmp/x", ["x"])
gets(os.execv, "/tmp/x", ["x"])
# mount
call("mount", b"none", b"/tmp", b"tmpfs", 0, 0); call("mount", b"none", b"/", b"none", 32, 0)
call("umount2", b"/tmp", 2)
call("mount", b"proc", b"/tmp", b"proc", 0, 0); call("mount_setattr", -100, b"/", 0, buffer(32), 32)
# the newer calls for mounts
call("fsopen", b"tmpfs", 0); call("open_tree", -100, b"/", 1); call("move_mount", 0, b"", -100, b"/", 4)
call("fsmount", 0, 0, 0)
# chroot and pivot_root
gets(os.chroot, "/tmp"); call("chroot", b"/tmp"); call("pivot_root", b"/tmp", b"/tmp"); os.chdir("/")
gets(os.chdir, "../host")
# namespaces inside
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x10010000):
    call("unshare", flag); call("clone", flag | 17, 0, 0, 0, 0)
call("setns", 0, 0); call("clone", 0x10000000 | 0x10000, 0, 0, 0, 0)
# make a device
gets(os.mknod, "d", stat.S_IFBLK | 0o666, os.makedev(8, 0)); gets(os.mknod, "d", stat.S_IFCHR | 0o666, os.makedev(1, 1))
# open devices of the machine
for name in os.listdir("/dev"):
    if name not in ("null", "zero", "random", "urandom"): gets(open, "/dev/" + name, "rb")
for name in ("mem", "kmsg", "vda", "sda", "tty", "ptmx", "fuse", "kvm", "shm", "net/tun"): gets(os.stat, "/dev/" + name)
# terminal input (TIOCSTI) and other ioctls
import fcntl
for request in (0x5412, 0x541C, 0x5403, 0x890B, 0x40046601): 
    for fd in (0, 1, 2): gets(fcntl.ioctl, fd, request, b"x" * 8)
# kernel keyring
call("add_key", b"user", b"x", b"y", 1, -3); call("keyctl", 0, -3, 1); call("request_key", b"user", b"x", 0, 0)
# io_uring
call("io_uring_setup", 8, buffer(120))
# bpf, perf, userfaultfd
call("bpf", 0, buffer(72), 72); call("perf_event_open", buffer(112), 0, -1, -1, 0); call("userfaultfd", 1)
# System V shared memory of the caller
call("shmget", HOST["shm_key"], 0, 0); call("shmat", HOST["shm"], 0, 0); call("msgget", 1, 0o1666)
call("semget", 1, 1, 0o1666)
# POSIX queues and memory outside the limit
call("mq_open", b"x", 0o102, 0o600, 0); call("memfd_create", b"x", 0); call("memfd_secret", 0)
# host name
gets(socket.sethostname, "owned"); call("sethostname", b"x", 1); call("setdomainname", b"x", 1)
# clock
gets(time.clock_settime, time.CLOCK_REALTIME, 0.0); call("settimeofday", buffer(16), 0); call("adjtimex", buffer(208))
# reboot, modules, swap, kernel log
call("reboot", 0, 0, 0, 0); call("kexec_load", 0, 0, 0, 0); call("init_module", 0, 0, b"")
call("swapon", b"/tmp/x", 0); call("syslog", 3, 0, 0)
# lift the filter
call("seccomp", 1, 0, 0); call("personality", 0x0400000)
for option in (22, 38, 4, 23, 24, 36, 47): 
    if libc.prctl(option, 0, 0, 0, 0) != -1: escaped("prctl", option)
# 32-bit system calls (numbers of another table)
if "x86" in os.uname().machine:
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(bytes.fromhex("53b814000000cd805bc3"))  # push rbx; mov eax, 20; int 0x80; pop rbx; ret
    pid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    if pid == os.getpid(): escaped("getpid of the 32-bit table")
# system calls of the x32 table
if libc.syscall(ctypes.c_long(0x40000000 + 39)) != -1: escaped("x32")
# rights over hardware, quota, accounting
for name in ("iopl", "ioperm", "modify_ldt", "quotactl", "acct", "fanotify_init", "vhangup"): call(name, 3, 0, 0, 0)
# priority
call("sched_setscheduler", 0, 1, buffer(b"\x01\0\0\0", 4)); gets(os.nice, -5); call("setpriority", 0, 0, -20)
call("ioprio_set", 1, 0, 1 << 13)
# raise the limits
import resource
for name in "AS NOFILE FSIZE NPROC CPU CORE MEMLOCK".split():
    gets(resource.setrlimit, getattr(resource, "RLIMIT_" + name), (resource.RLIM_INFINITY,) * 2)
gets(resource.prlimit, 1, resource.RLIMIT_CPU, (0, 0))
# memory: one block
gets(bytearray, 1 << 30); gets(mmap.mmap, -1, 1 << 30)
# memory: grow
data = []
try:
    while True: data.append(bytearray(1 << 20))
except MemoryError:
    if len(data) > 300: escaped(len(data), "MiB")
# memory: start the interpreter anew
gets(os.execv, "/bin/sh", ["sh"])
if "again" not in sys.argv: os.execv(sys.executable, [sys.executable, "main.py", "again"])
gets(bytearray, 1 << 30); gets(read, "/etc/passwd"); gets(os.fork)
# stack of C
sys.setrecursionlimit(10**9)
class A:
    def __getattr__(self, name): return getattr(self, name + "a")
try: A().x
except RecursionError: pass
# fill the disk
block, total = bytes(1 << 20), 0
try:
    for i in range(300):
        with open(str(i), "wb", 0) as f:
            for _ in range(16): total += f.write(block)
except OSError: pass
if total > 70 << 20: escaped(total, "bytes")
# a huge file, sparse
f = open("sparse", "wb"); gets(f.truncate, 1 << 40); f.seek(1 << 40); gets(lambda: (f.write(b"x"), f.flush()))
f2 = open("s2", "wb"); gets(os.posix_fallocate, f2.fileno(), 0, 1 << 30)
# very many files
try:
    for i in range(10**5): open(f"f{i}", "w").close()
    escaped(i, "files")
except OSError: pass
# very many open files, and large pipes
try:
    pipes = [os.pipe() for _ in range(10000)]; escaped("pipes")
except OSError: pass
# a gigabyte of output
block = b"x" * (1 << 20)
for _ in range(1024): os.write(1, block)
# endless stderr
while True: os.write(2, b"error " * 10000)
# close the streams and stay
for fd in (0, 1, 2): os.close(fd)
time.sleep(100)
# ignore all signals and stay
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    try: time.sleep(100)
    except BaseException: pass
# stop, and stop process 1
try: os.kill(1, signal.SIGSTOP)
except OSError: pass
os.kill(os.getpid(), signal.SIGSTOP); time.sleep(100)
# burn all cores
import hashlib
def burn():
    while True: hashlib.sha256(bytes(1 << 20))
for _ in range(8): threading.Thread(target=burn, daemon=True).start()
while True: pass
# one step in C that does not end
import re
re.match("(a+)+$", "a" * 60 + "b")
# a number too large
print(len(str(9 ** (9 ** 9))))
# forge the report
for fd in range(3, 64): gets(os.write, fd, b"exit 0\n")
os.write(1, b"exit 0\n"); os.write(2, b"timeout\n"); gets(os.write, 0, b"exit 0\n"); os._exit(7)
# leave a FIFO open and wait
os.open("/tmp", os.O_RDONLY); r, w = os.pipe(); os.read(r, 1)
# inode and mount of the outside by the open folder
fd = os.open("/", os.O_RDONLY); os.chdir("/tmp"); os.fchdir(fd)
gets(os.open, "../../../../" + HOST["file"], os.O_RDONLY); gets(lambda: os.open("../host", os.O_RDONLY, dir_fd=fd))
"""

TRIES = dict(part.split("\n", 1) for part in _TRIES.split("\n# ")[1:])


@dataclass(kw_only=True)
class Args:
    """Try to get out, then count what is left behind."""

    backend: str = "auto"
    """auto, namespaces or unsafe."""
    timeout: float = 1.0
    """Seconds for each try."""
    only: str = ""
    """Only the tries with this in their name."""
    runs: int = 0
    """Runs after the tries: mostly short ones, some that time out, some that print without end."""


@contextmanager
def bait():
    """Things to find, outside; gives the dict that the tries know as HOST."""
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
    return head + PRELUDE + TRIES[name] + "\nprint('done', flush=True)\n"


def judge(done: sandbox.Completed) -> str:
    """ "escaped", "broken" (the try itself is wrong), or how it was held."""
    last = done.stderr.strip().rpartition("\n")[2]
    if "ESCAPED" in done.stdout:
        return "escaped: " + done.stdout[done.stdout.index("ESCAPED") :][:200]
    if done.stdout.endswith("done\n"):
        return "held: refused"
    if done.timed_out:
        return "held: timed out"
    if done.returncode < 0 or last.startswith(("MemoryError", "OSError", "PermissionError", "BlockingIOError")):
        return f"held: ended by {last[:60] or f'signal {-done.returncode}'}"
    return f"broken: {last[:200]}" if done.returncode == 1 else f"held: exit code {done.returncode}"


def left_behind() -> list[str]:
    """Processes that a run of ours has left: orphans, and children that we have not reaped.

    A process belongs to some run if it is in another process namespace or has the command line of one. Those of runs
    in other programs descend from those programs.
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
            continue  # it has gone, or it is not ours
    tops = [pid for pid, parent in parents.items() if parent in (1, os.getpid())]
    return [f"{pid} {words[pid]!r}" for pid in tops]


def tries(args: Args) -> int:
    """Runs them all; gives the number of those that were not held, or not in time."""
    bad, backend = 0, choose_backend(args.backend)
    with bait() as host:
        for name in TRIES:
            if args.only not in name:
                continue
            start = time.perf_counter()
            done = sandbox.run(program(name, host), stdin="input", timeout=args.timeout, backend=args.backend)
            took = time.perf_counter() - start
            verdict = judge(done)
            late = took > args.timeout + LATE
            bad += late or verdict.startswith(("escaped", "broken"))
            print(f"{took:6.3f} s  {name:50} {verdict}{'  LATE' if late else ''}", flush=True)
    print(f"{backend}: {len(TRIES)} tries, {bad} not held; left behind: {left_behind() or 'nothing'}")
    return bad + len(left_behind())


def many(args: Args) -> int:
    """Many runs in a row; gives the number of processes left behind and of runs that did not end as they should."""
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
