"""How a run ends before its last update."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.runtime import signals

ROOT = Path(__file__).resolve().parents[3]


def run_python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)


_TWICE = """
import os, signal, time
from trainers.runtime.signals import deferring, handle_signals
with handle_signals(), deferring():
    os.kill(os.getpid(), signal.SIGTERM)
    print("the update goes on", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""


def test_the_second_signal_ends_a_run_at_once():
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


_COMMAND = """
from trainers.runtime import signals as stopping
from trainers.runtime.errors import UserError
from trainers.config import TrainArgs
from trainers.cli import parse
parse(TrainArgs(env_kwargs='{"entities": 60, "questions": 20}'), "", "mine")
"""


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        ("KeyboardInterrupt", -signal.SIGINT, "python -m trainers.mine: stopped\n"),
        ("stopping.TrainingStopped('no tools')", 1, "python -m trainers.mine: no tools\n"),
        ("UserError('give --model')", 2, "python -m trainers.mine: give --model\n"),
        ("FileNotFoundError('there is no x.jsonl')", 2, "python -m trainers.mine: there is no x.jsonl\n"),
    ],
)
def test_a_command_shows_no_traceback_of_an_end_that_is_no_fault(raised, status, said):
    done = run_python(f"{_COMMAND}raise {raised}")
    assert (done.returncode, done.stderr) == (status, said)


@pytest.mark.parametrize(
    "fault", ["raise ValueError('x')", "import nowhere", "open('/no/such/file')", "raise_key_error()"]
)
def test_a_fault_keeps_its_traceback(fault):
    """Also a ValueError that is no `UserError`."""
    done = run_python(f"import json\n{_COMMAND}raise_key_error = lambda: {{}}['x']\n{fault}")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full")
def test_a_full_disk_is_said_in_one_line():
    done = run_python(f"{_COMMAND}with open('/dev/full', 'w') as file:\n    file.write('x')")
    assert done.returncode == 1
    assert done.stderr == "python -m trainers.mine: [Errno 28] No space left on device\n"


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in signals.SIGNALS]
    with signals.handle_signals():
        assert [signal.getsignal(number) for number in signals.SIGNALS] != before
    assert [signal.getsignal(number) for number in signals.SIGNALS] == before
    assert signals.received() == 0
