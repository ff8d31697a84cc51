"""The allowed system calls: a classic BPF filter (Linux, ``Documentation/userspace-api/seccomp_filter.rst``).

Calls that are not listed return ENOSYS, so the C library falls back on older ones. fork is not listed: with one process and
its threads, the memory limit is exact and no daemons are possible.
"""

import errno
import platform
import struct
from functools import cache

# Name, number on x86-64, number on AArch64; '-' where the machine has no such call.
_TABLE = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70,
close 3 57, close_range 436 436, lseek 8 62, sendfile 40 71, copy_file_range 326 285,
open 2 -, creat 85 -, openat 257 56, stat 4 -, lstat 6 -, fstat 5 80, newfstatat 262 79, statx 332 291, access 21 -,
faccessat 269 48, faccessat2 439 439, statfs 137 43, fstatfs 138 44, getdents 78 -, getdents64 217 61, getcwd 79 17,
chdir 80 49, fchdir 81 50, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -, unlinkat 263 35, rename 82 -,
renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36, readlink 89 -,
readlinkat 267 78, chmod 90 -, fchmod 91 52, fchmodat 268 53, truncate 76 45, ftruncate 77 46, fallocate 285 47,
fsync 74 82, fdatasync 75 83, flock 73 32, utime 132 -, utimes 235 -, utimensat 280 88, umask 95 166,
listxattr 194 11, llistxattr 195 12, flistxattr 196 13, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10,
dup 32 23, dup2 33 -, dup3 292 24, fcntl 72 25, pipe 22 -, pipe2 293 59, ioctl 16 29, poll 7 -, ppoll 271 73,
select 23 -, pselect6 270 72, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22,
eventfd2 290 19, socket 41 198, socketpair 53 199, bind 49 200, listen 50 201, accept 43 202, accept4 288 242,
connect 42 203, getsockname 51 204, getpeername 52 205, getsockopt 55 209, setsockopt 54 208, sendto 44 206,
recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, shutdown 48 210,
mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, msync 26 227, brk 12 214,
execve 59 221, exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95, clone 56 220, set_tid_address 218 96,
set_robust_list 273 99, rseq 334 293, futex 202 98, sched_yield 24 124, sched_getaffinity 204 123, getcpu 309 168,
arch_prctl 158 -, prctl 157 167, prlimit64 302 261, getrlimit 97 163, setrlimit 160 164, getrusage 98 165,
getpid 39 172, getppid 110 173, gettid 186 178, getpgrp 111 -, getpgid 121 155, getsid 124 156, getuid 102 174,
geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158,
getpriority 140 141, kill 62 129, tkill 200 130, tgkill 234 131, rt_sigaction 13 134, rt_sigprocmask 14 135,
rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigsuspend 130 133, rt_sigtimedwait 128 137, sigaltstack 131 132,
restart_syscall 219 128, pause 34 -, alarm 37 -, setitimer 38 103, getitimer 36 102,
time 201 -, gettimeofday 96 169, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101,
times 100 153, sysinfo 99 179, uname 63 160, getrandom 318 278
"""
_CLONE_THREAD, _CLONE_NEW = 0x10000, 0x7E020080  # every flag that makes a namespace
_AF_UNIX = 1
_PR_SET_NAME, _PR_GET_NAME = 15, 16
_TERMINAL_AND_FLAGS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS TIOCGWINSZ FIONREAD FIONBIO FIO(N)CLEX

# Calls that are allowed only with some arguments: (which argument, mask, allowed values of its low 32 bits).
_ARGUMENTS = {
    "clone": (0, _CLONE_THREAD | _CLONE_NEW, (_CLONE_THREAD,)),
    "socket": (0, 0xFFFFFFFF, (_AF_UNIX,)),
    "socketpair": (0, 0xFFFFFFFF, (_AF_UNIX,)),
    "ioctl": (1, 0xFFFFFFFF, _TERMINAL_AND_FLAGS),
    "prctl": (0, 0xFFFFFFFF, (_PR_SET_NAME, _PR_GET_NAME)),
    "prlimit64": (0, 0xFFFFFFFF, (0,)),  # of the calling process only
}
# System calls that `child.py` makes by number, because the C library has no functions for them, or not in all versions.
_SETUP = {"clone": (56, 220), "pivot_root": (155, 41), "mount_setattr": (442, 442)}
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column in the tables, AUDIT_ARCH_*

_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06  # BPF: LD|W|ABS, ALU|AND|K, JMP|JEQ|K, RET|K
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_ERRNO = 0x00050000  # SECCOMP_RET_ERRNO, with the number in the low bits


def is_supported() -> bool:
    """Whether the numbers of this machine's system calls are known here."""
    return platform.machine() in _MACHINES and struct.calcsize("P") == 8


def setup_numbers() -> dict[str, int]:
    """Numbers of the system calls that build the sandbox."""
    column, _ = _MACHINES[platform.machine()]
    return {name: numbers[column] for name, numbers in _SETUP.items()}


@cache
def program(machine: str | None = None) -> bytes:
    """The filter as an array of ``struct sock_filter``, for `machine` or this one.
    Raises a KeyError if the machine is not `is_supported`."""
    column, architecture = _MACHINES[machine or platform.machine()]
    rows = (row.split() for row in _TABLE.split(","))
    numbers = {row[0]: int(row[1 + column]) for row in rows if row[1 + column] != "-"}
    code = [
        (_LOAD, 0, 0, 4),  # the architecture: a 32-bit call on a 64-bit kernel has other numbers
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # the number of the call
    ]
    for name, number in numbers.items():
        body = _arguments_check(*_ARGUMENTS[name]) if name in _ARGUMENTS else [(_RETURN, 0, 0, _ALLOW)]
        code += [(_EQUAL, 0, len(body), number), *body]
    code.append((_RETURN, 0, 0, _ERRNO | errno.ENOSYS))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _arguments_check(argument: int, mask: int, values: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    code = [(_LOAD, 0, 0, 16 + 8 * argument), (_AND, 0, 0, mask)]
    for value in values:
        code += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    return [*code, (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
