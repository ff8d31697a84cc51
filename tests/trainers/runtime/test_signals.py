"""How a run ends before its last update."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.cli import parse
from trainers.config import TrainArgs
from trainers.runtime import signals
from trainers.runtime.errors import UserError
from trainers.runtime.signals import TrainingStopped

ROOT = Path(__file__).resolve().parents[3]


def run_python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50)


_TWICE = """
import os, signal, subprocess, time
from trainers.runtime.signals import deferring, groups, handle_signals
with handle_signals(), deferring():
    groups.add(subprocess.Popen(["sleep", "60"], start_new_session=True).pid)  # it has the output open
    os.kill(os.getpid(), signal.SIGTERM)
    print("the update goes on", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""


def test_the_second_signal_ends_a_run_and_its_programs_at_once():
    done = run_python(_TWICE)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stdout == "the update goes on\n"
    assert "SIGTERM: the update in hand is finished" in done.stderr and "Traceback" not in done.stderr


_OUTSIDE = """
import os, signal
from trainers.runtime.signals import handle_signals
from agent_envs.tools import run_calls
from agent_envs.tools.function import FunctionTool
from agent_envs.types import ToolCall
def interrupt() -> str:
    "Ends us."
    os.kill(os.getpid(), signal.SIGTERM)
    return "came back"
tool = FunctionTool(interrupt)
with handle_signals():
    print(run_calls([({"interrupt": tool}, ToolCall("interrupt", {}))]))
"""


def test_outside_of_an_update_a_signal_ends_a_run_at_once_also_in_a_tool():
    """What tools raise is caught, and made the result of their call."""
    done = run_python(_OUTSIDE)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "")
    assert done.stderr == "Stopped by SIGTERM\n"


_CLOSED = """
import fcntl, os, signal, sys, termios, time
from trainers.runtime.signals import deferring, handle_signals, received
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # perhaps these tests run under nohup
with handle_signals(), deferring():
    print("begun", flush=True)
    while not received():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGHUP)  # of the shell, when it ends
    print("the update goes on", flush=True)
    open(sys.argv[1], "w").write("saved")
"""


def test_a_run_is_saved_when_its_terminal_is_closed(tmp_path):
    """As when ssh loses its connection; what is then printed to the terminal would raise OSError."""
    ours, terminal = os.openpty()
    command = [sys.executable, "-c", _CLOSED, tmp_path / "checkpoint"]
    run = subprocess.Popen(command, cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
    os.close(terminal)
    assert os.read(ours, 5) == b"begun"
    os.close(ours)
    assert run.wait(50) == 128 + signal.SIGHUP
    assert (tmp_path / "checkpoint").read_text() == "saved"


def test_nohup_holds():
    code = "from trainers.runtime.signals import *\nwith handle_signals(): os.kill(os.getpid(), signal.SIGHUP)\nprint('on')"
    done = subprocess.run(["nohup", sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (0, "on\n")


@pytest.fixture
def report(monkeypatch, capsys):
    """``report(error)``: the status and stderr of the command "mine" that ends with this error."""
    monkeypatch.setattr(sys, "excepthook", None)
    monkeypatch.setattr(sys, "argv", ["mine"])
    parse(TrainArgs(env_kwargs='{"entities": 60, "questions": 20}'), "", "mine")

    def end(error):
        status = 1  # Python's own, after a hook that returns
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except SystemExit as stopped:
            status = stopped.code
        return status, capsys.readouterr().err

    return end


def full_disk():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 1, "stopped"),
        (TrainingStopped("no tools"), 1, "no tools"),
        (UserError("give --model"), 2, "give --model"),
        (FileNotFoundError("there is no x.jsonl"), 2, "there is no x.jsonl"),
        (full_disk(), 1, "[Errno 28] No space left on device"),
    ],
)
def test_a_command_shows_no_traceback_of_an_end_that_is_no_fault(report, error, status, said):
    assert report(error) == (status, f"python -m trainers.mine: {said}\n")


@pytest.mark.parametrize(
    "error", [ValueError("x"), ImportError(name="nowhere"), FileNotFoundError(2, "no", "/no/such")]
)
def test_a_fault_keeps_its_traceback(report, error):
    status, said = report(error)
    assert status == 1 and type(error).__name__ in said and "python -m" not in said


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in signals.SIGNALS]
    with signals.handle_signals():
        assert [signal.getsignal(number) for number in signals.SIGNALS] != before
    assert [signal.getsignal(number) for number in signals.SIGNALS] == before
    assert signals.received() == 0
