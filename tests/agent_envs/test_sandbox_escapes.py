"""The tries of `benchmarks.envs.sandbox_escapes`, in the sandbox."""

import importlib.util
import os
import sys
import time
from pathlib import Path

import pytest

from agent_envs import sandbox

PATH = Path(__file__).parent.parent.parent / "benchmarks" / "envs" / "sandbox_escapes.py"
SPEC = importlib.util.spec_from_file_location("sandbox_escapes", PATH)
escapes = importlib.util.module_from_spec(SPEC)
sys.modules["sandbox_escapes"] = escapes
SPEC.loader.exec_module(escapes)


@pytest.fixture(scope="module")
def host():
    if (state := sandbox.available()["namespaces"]) != "ok":
        pytest.skip(f"no isolation here: {state}")
    if not os.access(Path.home(), os.W_OK):
        pytest.skip("no home folder for the bait here")
    with escapes.bait() as host:
        yield host


@pytest.mark.parametrize("name", escapes.TRIES)
def test_held(name, host):
    start = time.monotonic()
    done = sandbox.run(escapes.program(name, host), stdin="input", timeout=1.5)
    took = time.monotonic() - start
    assert escapes.judge(done).startswith("held"), (done.stdout[:1000], done.stderr[-1000:])
    assert took < 10  # it did not wait for what the try left running; the benchmark checks the half second


ESCAPES = (
    *("read a file of the caller", "read system files", "TCP to a server of the machine", "fork"),
    *("abstract Unix socket of the caller", "System V shared memory of the caller", "new session or process group"),
)


@pytest.mark.parametrize("name", ESCAPES)
def test_the_tries_succeed_where_nothing_holds_them(name, host):
    done = sandbox.run(escapes.program(name, host), stdin="input", timeout=5.0, backend="unsafe")
    assert escapes.judge(done).startswith("escaped")


def test_nothing_is_left_behind(host):
    sandbox.run("while True: pass", timeout=0.2)
    assert escapes.left_behind() == []
