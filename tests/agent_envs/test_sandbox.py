import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_envs import sandbox
from agent_envs.sandbox import probe, runner
from agent_envs.sandbox.process import Capture
from agent_envs.tasks.python import PythonTool

ROOT = Path(__file__).parent.parent.parent
linux = pytest.mark.skipif(sys.platform != "linux", reason="backends need Linux")


@pytest.fixture(params=["namespaces", "unsafe"])
def backend(request):
    if (state := sandbox.available()[request.param]) != "ok":
        pytest.skip(f"{request.param}: {state}")
    return request.param


@pytest.fixture
def isolated(backend):
    if backend == "unsafe":
        pytest.skip("unsafe does not isolate")
    return backend


def test_prints_return_code_and_standard_input(backend):
    done = sandbox.run("import sys; print('é', 6 * 7); print('!', file=sys.stderr); exit(3)", backend=backend)
    assert done == sandbox.Completed("é 42\n", "!\n", 3)
    code = "print(input()); import sys; print(len(sys.stdin.read()))"
    assert sandbox.run(code, stdin="a\n" + "b" * 300_000, backend=backend).stdout == "a\n300000\n"


def test_errors_are_the_codes_own_fault(backend):
    done = sandbox.run("x = 0\nprint(1 / x)", backend=backend)
    assert done.returncode == 1 and "print(1 / x)" in done.stderr
    assert "line 2" in done.stderr and "ZeroDivisionError" in done.stderr
    assert "SyntaxError" in sandbox.run("print(", backend=backend).stderr
    assert sandbox.run("", backend=backend) == sandbox.Completed("", "", 0)
    for code in ("\ud800", "print('a\0b')"):
        assert sandbox.run(code, backend=backend).returncode == 1


def test_a_time_out_keeps_what_was_printed_and_signals_are_told_as_subprocess_tells_them(backend):
    done = sandbox.run("print('so far')\nwhile True: pass", timeout=2.0, backend=backend)
    assert done == sandbox.Completed("so far\n", "", -9, timed_out=True)
    assert sandbox.run("import os; os.abort()", backend=backend).returncode == -signal.SIGABRT
    assert sandbox.run("import os; os.kill(os.getpid(), 9)", backend=backend) == sandbox.Completed("", "", -9)


def test_memory_is_limited(backend):
    done = sandbox.run("x = bytearray(200 << 20)", memory_mb=128, backend=backend)
    assert "MemoryError" in done.stderr
    assert sandbox.run("x = bytearray(200 << 20)", memory_mb=400, backend=backend).returncode == 0


def test_what_works_inside(isolated):
    code = """
import asyncio, concurrent.futures, hashlib, json, os, sqlite3, tempfile, zoneinfo
with open("helper.py", "w") as file: file.write("A = 3")
import helper
assert helper.A == 3
with tempfile.NamedTemporaryFile() as file: file.write(b"x")
assert sqlite3.connect(":memory:").execute("select 1").fetchone() == (1,)
with concurrent.futures.ThreadPoolExecutor(8) as pool: assert sum(pool.map(abs, range(100))) == 4950
async def sleep(): await asyncio.sleep(0.001)
asyncio.run(sleep())
assert hashlib.sha256(b"").hexdigest().startswith("e3b0")
import calendar, locale
locale.setlocale(locale.LC_ALL, "")
assert "März" > "Mai" and open("helper.py").encoding == "utf-8"
calendar.LocaleTextCalendar().formatmonth(2024, 1)
print(os.getcwd(), sorted(os.listdir()), os.uname().nodename)
"""
    done = sandbox.run(code, backend=isolated)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == "/tmp ['helper.py', 'main.py'] sandbox\n"


def test_a_batch_keeps_its_order(backend):
    done = sandbox.run_batch([f"print({i}, input())" for i in range(6)], stdin=list("abcdef"), backend=backend)
    assert [d.stdout for d in done] == [f"{i} {c}\n" for i, c in enumerate("abcdef")]
    assert [d.stdout for d in sandbox.run_batch(["print(input())"] * 2, stdin="x", backend=backend)] == ["x\n"] * 2
    assert sandbox.run_batch([], backend=backend) == []


def test_a_program_that_the_sandbox_could_not_run_leaves_the_others(monkeypatch):
    execute = runner.execute

    def fail(backend, code, **limits):
        if code == "print(1)":
            raise BlockingIOError("too many processes")
        return execute(backend, code, **limits)

    monkeypatch.setattr(runner, "execute", fail)
    results = PythonTool(backend="unsafe").execute_batch([{"code": f"print({i})"} for i in range(3)])
    assert [result.text for result in results] == ["0", "python failed: BlockingIOError: too many processes", "2"]
    assert [result.fault for result in results] == [False, True, False]


def test_a_caller_that_ignores_its_children(isolated):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert sandbox.run("print(1)", backend=isolated).stdout == "1\n"
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_no_files_are_left_open(backend):
    sandbox.run("pass", backend=backend)
    before = os.listdir("/proc/self/fd")
    sandbox.run("pass", backend=backend)
    sandbox.run("while True: pass", timeout=0.1, backend=backend)
    assert len(os.listdir("/proc/self/fd")) == len(before)


@linux
def test_unsafe_ends_daemons_and_returns_in_time():
    mark = f"daemon-{os.getpid()}"
    code = f"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)", "{mark}"])
    os._exit(0)
time.sleep(0.5)
print("parent done")
"""
    assert sandbox.run(code, backend="unsafe").stdout == "parent done\n"
    assert mark not in running()


def test_runs_die_with_their_caller(isolated):
    mark = f"orphan-{os.getpid()}"
    sleep = f"[sys.executable, '-c', 'import time; time.sleep(60)', '{mark}']"
    code = f"import os, sys, time; os.execv(sys.executable, {sleep})"
    line = f"from agent_envs import sandbox; sandbox.run({code!r}, timeout=60, backend={isolated!r})"
    caller = subprocess.Popen([sys.executable, "-c", line], cwd=ROOT)
    wait_until(lambda: f"time.sleep(60)\0{mark}" in running())
    caller.kill()
    caller.wait()
    wait_until(lambda: mark not in running())


def running() -> str:
    """The command lines of all processes."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return "\n".join(lines)


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def fresh_probe():
    probe._state.cache_clear()
    yield
    probe._state.cache_clear()


def test_bad_arguments():
    wrong = {"stdin": None, "timeout": 0, "memory_mb": 8, "max_output": -1, "backend": "docker"}
    wrong = [{"code": "pass", name: value} for name, value in [*wrong.items(), ("timeout", float("nan"))]]
    for arguments in (*wrong, {"code": b"pass"}, {"code": "#" * 2_000_000}):
        with pytest.raises(ValueError, match=[*arguments][-1]):
            sandbox.run(**arguments)
    with pytest.raises(ValueError, match="sequence of programs"):
        sandbox.run_batch("print(1)")
    with pytest.raises(ValueError, match="one stdin for each"):
        sandbox.run_batch(["pass"], stdin=["a", "b"])


def test_auto_never_means_unsafe(monkeypatch, fresh_probe):
    monkeypatch.setattr(probe, "execute", lambda *_, **__: sandbox.Completed("", "fork was not blocked", 1))
    with pytest.raises(sandbox.SandboxError, match="'namespaces' does not work here: the probe failed"):
        sandbox.run("print(1)")


def test_a_backend_that_failed_once_is_tried_again(monkeypatch, fresh_probe):
    with monkeypatch.context() as patch:
        patch.setattr(probe, "execute", lambda *_, **__: sandbox.Completed("", "Too many open files", 1))
        with pytest.raises(sandbox.SandboxError, match="Too many open files"):
            probe.choose_backend("auto")
    monkeypatch.setattr(probe, "execute", lambda *_, **__: sandbox.Completed("isolated\n", "", 0))
    assert probe.choose_backend("auto") == "namespaces"


def test_elsewhere_than_linux_it_says_so(monkeypatch, fresh_probe):
    monkeypatch.setattr(probe.sys, "platform", "darwin")
    assert set(sandbox.available().values()) == {"needs Linux, this is darwin"}
    with pytest.raises(RuntimeError, match="needs Linux"):
        sandbox.run("print(1)", backend="unsafe")
    for name in [name for name in sys.modules if name.startswith("agent_envs.sandbox")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("resource", "fcntl"):  # importing it needs nothing of Linux
        monkeypatch.setitem(sys.modules, name, None)
    assert importlib.import_module("agent_envs.sandbox") is not sandbox


def test_a_caller_with_limits_of_its_own(isolated):
    line = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50)); from agent_envs import sandbox; "
        f"print(sandbox.run('import resource; print(resource.getrlimit(7))', backend={isolated!r}))"
    )
    run = subprocess.run([sys.executable, "-c", line], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "(50, 50)" in run.stdout


@pytest.mark.parametrize(
    ("first", "printed", "says"),
    [
        ("echo 0 > /proc/sys/user/max_user_namespaces", "sandbox.available()['namespaces']", "namespaces are refused"),
        ("true", "sandbox.run('import os; print(os.getuid())', backend='namespaces')", "65534"),
    ],
)
def test_in_a_namespace_whose_root_is_the_only_user(first, printed, says):
    line = f"from agent_envs import sandbox; print({printed})"
    command = ["unshare", "-Ur", "sh", "-c", f'{first} && exec "$0" -c "$1"', sys.executable, line]
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("the program unshare is not installed")
    if run.returncode:
        pytest.skip(f"unshare does not work here: {run.stderr[-300:]}")
    assert says in run.stdout


@pytest.mark.parametrize("limit", [0, 1, 7, 100])
@pytest.mark.parametrize("total", [0, 1, 7, 8, 200_000])
def test_capture(limit, total):
    data = bytes(i % 251 % 128 for i in range(total))
    for size in (1 if total < 100 else 1000, 7919):
        capture = Capture(limit)
        for start in range(0, total, size):
            capture.add(data[start : start + size])
        text = capture.text().encode()
        assert capture.truncated == (total > limit)
        if not capture.truncated:
            assert text == data
        else:
            assert text.startswith(data[: limit - limit // 2] + b"\n[...")
            assert text.endswith(b"...]\n" + data[total - limit // 2 :])
            assert f"[... {total - limit} bytes left out" in text.decode()
