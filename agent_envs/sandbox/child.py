"""The processes between the caller and the code. `process` starts them; no module imports this file.

    caller ── monitor ──namespaces── confine ── the code

`monitor`, outside the sandbox, keeps the time. `confine`, the first process inside, waits for the code and reports how it
ended; the code cannot write that report. Each reads its configuration from the start of standard input. `run_next` reads
the next configuration and runs its function.
"""

import ctypes
import os
import resource
import select
import time

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 36, 38
SECCOMP_MODE_FILTER = 2
SIGINT, SIGKILL, SIGCHLD = 2, 9, 17  # the signal module takes 6 ms to import
SIG_DFL = None
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
NAMESPACES = 0x7E020000  # new user, pid, mount, net, ipc, uts and cgroup namespaces

libc = ctypes.CDLL(None, use_errno=True)


class Program(ctypes.Structure):
    """``struct sock_fprog``"""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def call(function: str, *arguments):
    """Call a function of the C library, with integers as longs, as the kernel reads them. Raises OSError: it returned -1."""
    wide = (ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
    if (result := getattr(libc, function)(*wide)) == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{function}{arguments[:3]}: {os.strerror(error)}")
    return result


def report(fd: int, text: str) -> None:
    """Write a line, of 4,000 bytes at most, to the pipe that the caller reads."""
    os.write(fd, text.encode("utf-8", "replace")[:4000] + b"\n")


def monitor(config: dict, run_next) -> None:
    """Start the sandbox, kill it when its time is over, and exit after its last process has ended."""
    call("prctl", PR_SET_PDEATHSIG, SIGKILL)  # when the caller's thread dies, which waits for this process
    if os.getppid() != config["parent"]:
        os._exit(1)  # the caller died before that call
    call("prctl", PR_SET_CHILD_SUBREAPER, 1)
    call("signal", SIGCHLD, SIG_DFL)  # an ignored SIGCHLD is inherited, and children would not wait to be reaped
    try:
        child = clone_namespaces(config, run_next) if config["namespaces"] else spawn(config, run_next)
        poll = select.poll()
        poll.register(os.pidfd_open(child), select.POLLIN)
        if not poll.poll(max(0.0, config["deadline"] - time.monotonic()) * 1000):
            report(config["report"], "timeout")
        os.kill(child, SIGKILL)  # harmless if it has ended: it is not yet reaped, the number is still its own
        kill_children()
    except BaseException as error:
        report(config["report"], f"error {type(error).__name__}: {error}")
    os._exit(0)


def kill_children() -> None:
    """Kill and reap every descendant. Orphans become children of this process, so repeat until there are none."""
    me = os.getpid()
    while True:
        with open(f"/proc/{me}/task/{me}/children") as file:
            children = file.read().split()
        if not children:
            return
        for pid in children:
            os.kill(int(pid), SIGKILL)
        for _ in children:
            os.waitpid(-1, 0)


def spawn(config: dict, run_next) -> int:
    """Start the process of a run without a sandbox (backend "unsafe")."""
    if child := os.fork():
        return child
    try:
        call("prctl", PR_SET_PDEATHSIG, SIGKILL)
        run_next()
    except BaseException as error:
        report(config["report"], f"error {type(error).__name__}: {error}")
    os._exit(1)


def clone_namespaces(config: dict, run_next) -> int:
    """Start the first process of the sandbox, which is process 1 of its namespace."""
    wait, go = os.pipe()
    try:
        child = call("syscall", config["calls"]["clone"], NAMESPACES | SIGCHLD, 0, 0, 0, 0)
    except OSError as error:
        raise OSError(error.errno, f"new namespaces are refused here: {error.strerror}") from None
    if child == 0:
        try:
            call("prctl", PR_SET_PDEATHSIG, SIGKILL)
            os.close(go)
            if os.read(wait, 1):  # else the monitor has died
                os.close(wait)
                build_root(config)
                call("sethostname", b"sandbox", 7)
                run_next()
        except BaseException as error:
            report(config["report"], f"error {type(error).__name__}: {error}")
        os._exit(1)
    try:
        map_identities(child, config["uid"])
        os.write(go, b"1")
    except BaseException:
        os.kill(child, SIGKILL)
        raise
    return child


def map_identities(pid: int, nobody: int) -> None:
    """Map user ids into the user namespace: the caller as ``nobody``; if the caller is root, root and ``nobody`` as themselves.
    Root builds the sandbox as root, since its files may be under /root; `exec_code` then changes to ``nobody``."""
    as_root = os.geteuid() == 0 and is_mapped(nobody)
    if not as_root:
        write(f"/proc/{pid}/setgroups", "deny")
    for name, own in (("uid_map", os.geteuid()), ("gid_map", os.getegid())):
        write(f"/proc/{pid}/{name}", f"0 0 1\n{nobody} {nobody} 1" if as_root else f"{nobody} {own} 1")


def is_mapped(user: int) -> bool:
    """Whether our user namespace knows this user id."""
    with open("/proc/self/uid_map") as file:
        ranges = [[int(number) for number in line.split()] for line in file]
    return any(first <= user < first + count for first, _, count in ranges)


def write(path: str, text: str) -> None:
    """Write a text to a file that exists, in one call."""
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, text.encode())  # the kernel accepts a map only once
    os.close(fd)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2) with text arguments."""
    call("mount", source.encode(), target.encode(), kind.encode(), flags, options.encode())


def restrict(number: int, path: str, attributes: int, recursive: int = AT_RECURSIVE) -> None:
    """mount_setattr(2): unlike a remount, it also reaches mounts below, and keeps flags that must not be cleared."""
    value = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    call("syscall", number, AT_FDCWD, path.encode(), recursive, value, ctypes.sizeof(value))


def build_root(config: dict) -> None:
    """Build a root directory in memory with the interpreter, its libraries, four devices and a scratch folder."""
    mount_setattr = config["calls"]["mount_setattr"]
    mount("none", "/", "none", MS_REC | MS_PRIVATE)
    mount("none", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
    os.mkdir("/tmp/host")
    call("syscall", config["calls"]["pivot_root"], b"/tmp", b"/tmp/host")
    os.chdir("/")
    os.mkdir("/tmp")
    options = f"size={config['scratch']},nr_inodes=4096,mode=0700,uid={config['uid']},gid={config['uid']}"
    mount("none", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)
    for path, source, attributes in [
        *((path, source, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV) for path, source in config["readonly"].items()),
        *((path, path, ATTR_RDONLY | ATTR_NOSUID | ATTR_NOEXEC) for path in config["devices"]),
    ]:
        if os.path.isdir("/host" + source):
            os.makedirs(path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_CREAT, 0o444))
        mount("/host" + source, path, "none", MS_BIND | MS_REC)
        restrict(mount_setattr, path, attributes)
    for path in config["hidden"]:
        mount("none", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,mode=0555")
    call("umount2", b"/host", MNT_DETACH)
    os.rmdir("/host")
    restrict(mount_setattr, "/", ATTR_RDONLY | ATTR_NOSUID, 0)


def confine(config: dict, _) -> None:
    """Run the code in a process under all limits, wait for it, and report how it ended."""
    os.set_inheritable(config["report"], False)
    call("signal", SIGINT, SIG_DFL)  # Python has a handler; without one, signals from inside do not reach process 1
    child = os.fork()
    if child == 0:
        try:
            exec_code(config)
        except BaseException as error:
            report(config["report"], f"error {type(error).__name__}: {error}")
        os._exit(1)
    while (ended := os.waitpid(-1, 0))[0] != child:
        pass
    report(config["report"], f"exit {os.waitstatus_to_exitcode(ended[1])}")
    os._exit(0)


def exec_code(config: dict) -> None:
    """Drop every right that the code must not have, set its limits, and execute it. Does not return."""
    capability = 0
    while config["filter"] and libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    if os.geteuid() == 0 and config["filter"]:  # root of our own namespace
        os.setgroups([])
        os.setresgid(*[config["uid"]] * 3)
        os.setresuid(*[config["uid"]] * 3)
    os.chdir(config["cwd"])
    with open("main.py", "wb") as file:
        file.write(config["code"])
    for name, value in config["limits"].items():
        _, hard = resource.getrlimit(getattr(resource, name))
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(getattr(resource, name), (value, value))
    if config["filter"]:
        call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        filter = Program(len(config["filter"]) // 8, config["filter"])
        call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter), 0, 0)
    os.execve(config["python"][0], config["python"], config["environment"])
