"""The matrix of libraries, without a network: pip and venv are stand-ins, pytest's reports are its own."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks import plug_matrix
from benchmarks.plug_matrix import LIBRARIES, ROOT, Args, Library, Row, Stopped

SUITES = {
    "mixed": "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\ndef test_c(): pytest.skip('no')\ndef test_d(): pass",
    "broken": "import pytest\n@pytest.fixture\ndef f(): assert 0\ndef test_a(f): pass",
    "absent": "import pytest\npytest.importorskip('no_such_library', reason='pip install it')\ndef test_a(): pass",
    "skipped": "import pytest\n@pytest.fixture\ndef f(): pytest.skip('needs it')\ndef test_a(f): pass",
    "empty": "",
    "ends": "import pytest\ndef test_a(): pass\ndef test_b(): pytest.exit('out of memory', returncode=4)",
}
GOOD = '<testsuites><testsuite><testcase name="test_a"/></testsuite></testsuites>'


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Stands in for `run`: notes commands, makes an interpreter that has every version, writes a good report."""

    class Machine:
        failing, suite = "", ""

    Machine.ran = []

    def run(command, log, seconds):
        name, joined = log.stem, " ".join(command)
        Machine.ran.append((name, joined))
        if command[2] == "venv":
            home = Path(command[3])
            (home / "bin").mkdir(parents=True)
            (home / "bin" / "python").write_text("#!/bin/sh\necho 1.2.3\n")
            (home / "bin" / "python").chmod(0o755)
        if command[2] == "pytest":
            report = next(part for part in command if part.startswith("--junitxml="))
            if Machine.suite:
                return pytest_itself(tmp_path, Machine.suite, report)
            Path(report.partition("=")[2]).write_text(GOOD)
        if name == Machine.failing and command[2] == "pip":
            log.write_text("$ pip\nCollecting x\nERROR: no such x\nERROR: it conflicts\n[notice] a new pip\n")
            return 1
        return 0

    monkeypatch.setattr(plug_matrix, "run", run)
    return Machine


def pytest_itself(folder, suite, report):
    (folder / "test_suite.py").write_text(SUITES[suite])
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", report, "test_suite.py"]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, capture_output=True, cwd=folder, env=environ).returncode


def test_an_environment_is_made_tested_and_used_again(machine, tmp_path, monkeypatch):
    args = Args(only=("trl",), out=tmp_path / "out")
    (row,) = plug_matrix.main(args)
    assert (row.library, row.version, row.passed, row.good) == ("trl", "1.2.3", 1, True)
    made = [command for _, command in machine.ran]
    assert "-m venv" in made[0] and made[1].endswith("-c constraints.txt torch")
    assert (
        made[2].endswith("-e .[trl] pytest")
        and made[3].endswith("tests/integrations/test_how_to.py")
        and "-m plug" in made[3]
    )
    assert json.loads((args.out / "results.json").read_text())[0]["passed"] == 1
    assert "| trl | 1.2.3 | 1 | 0 | 0 |" in (args.out / "table.md").read_text()
    plug_matrix.main(args)
    assert [command for _, command in machine.ran[4:]] == made[3:]
    newer = [replace(library, requires=("x==2",)) for library in LIBRARIES]
    monkeypatch.setattr(plug_matrix, "LIBRARIES", newer)
    plug_matrix.main(args)
    assert len(machine.ran) == 9 and machine.ran[7][1].endswith("pytest x==2")


def test_one_that_does_not_install_is_a_row_that_says_why(machine, tmp_path):
    machine.failing = "gem"
    args = Args(only=("gem", "verl"), out=tmp_path / "out")
    gem, verl = plug_matrix.main(args)
    assert gem == Row(library="gem", note="not installed: it conflicts") and not gem.good and verl.good
    assert "| gem | — | 0 | 0 | 0 | 0 | not installed: it conflicts |" in (args.out / "table.md").read_text()
    machine.failing = ""
    assert plug_matrix.main(args)[0].good  # what was half made is made anew
    (args.out / "gem" / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    assert plug_matrix.main(args)[0].note == "not installed: there is no package gem-llm"
    alone = [command for name, command in machine.ran if name == "verl" and "--no-deps" in command]
    assert alone[0].endswith("--no-deps verl==0.9.0")


@pytest.mark.parametrize(
    ("suite", "expected"),
    [
        ("mixed", (2, 1, 1, "test_b")),
        ("broken", (0, 1, 0, "test_a")),
        ("absent", (0, 0, 1, "no test ran: pip install it")),
        ("skipped", (0, 0, 1, "no test ran: needs it")),
        ("empty", (0, 0, 0, "no test ran: none was selected")),
        ("ends", (0, 0, 0, "pytest ended with status 4, see sb3.log")),
    ],
)
def test_what_pytest_reports_is_counted(machine, tmp_path, suite, expected):
    machine.suite = suite
    (row,) = plug_matrix.main(Args(only=("sb3",), out=tmp_path / "out"))
    assert (row.passed, row.failed, row.skipped, row.note) == expected and not row.good


def test_a_dry_run_runs_nothing(machine, tmp_path, capsys):
    assert plug_matrix.main(Args(out=tmp_path / "out", dry_run=True)) == []
    said = capsys.readouterr().out
    assert not machine.ran and not (tmp_path / "out").exists()
    assert all(f"# {library.name}\n" in said for library in LIBRARIES) and "-k 'sb3 or maskable'" in said


def test_commands_have_a_log_and_no_path_of_ours_and_leave_nothing_running(tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    leaves = "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    says = "print(child.pid, os.getcwd(), os.environ.get('PYTHONPATH')); sys.exit(3)"
    assert plug_matrix.run([sys.executable, "-c", f"import os, subprocess, sys; {leaves}; {says}"], log, 600) == 3
    pid, said = log.read_text().splitlines()[-1].split(maxsplit=1)
    assert said == f"{ROOT} None" and ended(int(pid))
    with pytest.raises(Stopped, match="did not end in 0 s"):
        plug_matrix.run([sys.executable, "-c", "import time; time.sleep(600)"], log, 0.1)


def ended(pid: int) -> bool:
    for _ in range(1000):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def test_every_test_of_a_library_is_in_the_matrix():
    folder = ROOT / "tests" / "plug"
    marked = {path.name for path in folder.glob("test_*.py") if "pytest.mark.plug" in path.read_text(encoding="utf-8")}
    assert marked == {file for library in LIBRARIES for file in library.tests}
    assert len({library.name for library in LIBRARIES}) == len(LIBRARIES)


def test_an_unknown_library_is_refused():
    with pytest.raises(ValueError, match=r"unknown libraries \['jax'\]; known are trl, "):
        Args(only=("jax",))


def test_pip_is_asked_for_torch_first():
    for library in [*LIBRARIES, Library(name="x", package="x", tests=())]:
        assert library.installs()[0] == ["-c", "constraints.txt", "torch"]
