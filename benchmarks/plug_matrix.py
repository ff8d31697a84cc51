"""The adapters against the real libraries: a virtual environment for each, its tests, and a table.

    python -m benchmarks.plug_matrix --dry-run          # what it would run
    python -m benchmarks.plug_matrix --only gem trl
    python -m benchmarks.plug_matrix                    # all: gigabytes, and minutes of installing for each

Environments stay in the folder, and one is made anew where what belongs into it has changed. The folder also gets table.md
and results.json of this run, and a log for each library. Ends with 1 where a library does not install or a test does not pass.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

import tyro

ROOT = Path(__file__).resolve().parents[1]
INSTALLING, TESTING = 3600, 1800  # seconds until it is given up
VERSION = "import sys; from importlib import metadata; print(metadata.version(sys.argv[1]))"


@dataclass(frozen=True, kw_only=True)
class Library:
    """What is installed beside this project, and which tests are run there.

    Attributes:
        package: whose version the table shows.
        tests: files in tests/integrations; ``select`` is pytest's ``-k``.
        requires: installed in one step with the project, ``extra`` is one of the project's own.
        alone: installed behind these without what it asks for: engines that need a GPU.
    """

    name: str
    package: str
    tests: tuple[str, ...]
    select: str = ""
    extra: str = ""
    requires: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()

    def installs(self) -> list[list[str]]:
        """Arguments of pip's calls, in their order. A torch that is not asked for by itself can bring gigabytes of CUDA."""
        project = f".[{self.extra}]" if self.extra else "."
        calls = [["torch"], ["-e", project, "pytest", *self.requires], ["--no-deps", *self.alone]]
        return [["-c", "constraints.txt", *call] for call in calls if call != ["--no-deps"]]


MENU, HOST, HOW_TO = "test_menu_libraries.py", "test_host_libraries.py", "test_how_to.py"
LIBRARIES = [
    Library(name="trl", package="trl", tests=("test_trl.py", HOW_TO), select="trl", extra="trl"),
    Library(name="torchrl", package="torchrl", tests=("test_torchrl.py",), requires=("torchrl==0.14.*",)),
    Library(
        name="gem", package="gem-llm", tests=("test_gem.py", HOST), select="test_gem or Guess",
        requires=("gem-llm==0.1.0",),
    ),
    Library(name="skyrl", package="skyrl-gym", tests=("test_skyrl.py",), requires=("skyrl-gym==0.4.0",)),
    Library(
        name="openrlhf", package="openrlhf", tests=("test_openrlhf.py",), requires=("ray", "aiohttp", "pylatexenc"),
        alone=("openrlhf==0.11.0",),
    ),
    Library(
        name="verl", package="verl", tests=("test_verl.py",), alone=("verl==0.9.0",),
        requires=("hydra-core", "tensordict==0.10.*", "ray", "codetiming", "torchdata", "cachetools", "fastapi", "uvicorn"),
    ),
    Library(
        name="reasoning-gym", package="reasoning-gym", tests=(HOST,), select="Reasoning",
        requires=("reasoning-gym==0.1.25",),
    ),
    Library(name="textarena", package="textarena", tests=(HOST,), select="Arena", requires=("textarena==0.7.4",)),
    Library(name="openenv", package="openenv", tests=("test_openenv.py",), extra="openenv"),
    Library(
        name="verifiers", package="verifiers", tests=("test_verifiers.py",), extra="verifiers",
        requires=("openenv==0.4.1", "fastmcp>=4"),  # of OpenEnv what can be imported beside its pin of mcp
    ),
    Library(
        name="sb3", package="stable-baselines3", tests=(MENU, HOW_TO), select="sb3 or maskable", extra="sb3",
    ),
    Library(name="tianshou", package="tianshou", tests=(MENU,), select="tianshou", requires=("tianshou==2.0.*",)),
    Library(name="rllib", package="ray", tests=(MENU,), select="rllib", requires=("ray[rllib]==2.60.*",)),
    Library(name="cleanrl", package="torch", tests=(MENU,), select="cleanrl"),  # a file of its own over torch
]  # fmt: skip


@dataclass(kw_only=True)
class Args:
    """Test the adapters against the real libraries."""

    only: tuple[str, ...] = ()
    """Names of libraries; all by default."""
    out: Path = Path("runs/plug-matrix")
    """Folder of the environments and results; its environments are used again."""
    dry_run: bool = False
    """Print the commands, and run none."""

    def __post_init__(self):
        if unknown := set(self.only) - {library.name for library in LIBRARIES}:
            known = ", ".join(library.name for library in LIBRARIES)
            raise ValueError(f"unknown libraries {sorted(unknown)}; known are {known}")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the table. ``note`` says why there is no result, or which test failed first; ``seconds`` of the tests."""

    library: str
    version: str = "—"
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    note: str = ""

    @property
    def good(self) -> bool:
        return self.passed > 0 and not self.failed and not self.note


class Stopped(Exception):
    """A command did not do its work; the message is the reason, in one line."""


def commands(library: Library, home: Path) -> tuple[list[list[str]], list[str]]:
    """What makes the environment, and what tests in it."""
    python = str(home / "bin" / "python")
    make = [[sys.executable, "-m", "venv", str(home)]]
    make += [[python, "-m", "pip", "install", "--progress-bar", "off", *call] for call in library.installs()]
    chosen = ["-k", library.select] if library.select else []
    files = [f"tests/integrations/{file}" for file in library.tests]
    report = f"--junitxml={home.with_suffix('.xml')}"
    return make, [python, "-m", "pytest", "-p", "no:cacheprovider", "-m", "plug", report, *chosen, *files]


def run(command: Sequence[str], log: Path, seconds: float) -> int:
    """Run a command in the root of the project, its output in the log; returns its status.

    Raises:
        Stopped: it did not end in so many seconds.
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("a", encoding="utf-8") as file:
        print("$", shlex.join(command), file=file, flush=True)
        process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Stopped(f"{command[2]} did not end in {seconds:.0f} s") from None
        finally:  # with what it may have left running
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def make(library: Library, home: Path, log: Path) -> None:
    """Make the environment, or leave it where it is the one that is wanted."""
    files = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "constraints.txt"))
    wanted = json.dumps([str(ROOT), sys.version, library.installs(), hashlib.sha256(files.encode()).hexdigest()])
    stamp = home / "installed.json"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    shutil.rmtree(home, ignore_errors=True)
    for command in commands(library, home)[0]:
        print(f"  {shlex.join(command[1:])}", flush=True)
        if status := run(command, log, INSTALLING):
            raise Stopped(f"not installed: {reason(log) or f'status {status}'}")
    stamp.write_text(wanted, encoding="utf-8")


def reason(log: Path) -> str:
    """The last line of pip's output that says what went wrong."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    said = [line for line in lines if line and not line.startswith(("$", "[notice]"))]
    errors = [line for line in said if line.startswith("ERROR: ")]
    return (errors or said or [""])[-1].removeprefix("ERROR: ")[:300]


def check(library: Library, out: Path) -> Row:
    """The row of a library; one that cannot be installed or tested has a note that says why."""
    home, log = out / library.name, out / f"{library.name}.log"
    log.write_text("", encoding="utf-8")
    row = Row(library=library.name)
    try:
        make(library, home, log)
        asked = [str(home / "bin" / "python"), "-c", VERSION, library.package]
        version = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
        if not version:
            raise Stopped(f"not installed: there is no package {library.package}")
        row = Row(library=library.name, version=version)
        test, report = commands(library, home)[1], home.with_suffix(".xml")
        print(f"  {library.package} {version}: {shlex.join(test[1:])}", flush=True)
        report.unlink(missing_ok=True)
        begin = time.monotonic()
        status = run(test, log, TESTING)
        if status not in (0, 1, 5) or not report.exists():  # 1: a test failed, 5: none was selected
            raise Stopped(f"pytest ended with status {status}, see {log.name}")
        return read(report, row, time.monotonic() - begin)
    except Stopped as stopped:
        return Row(library=row.library, version=row.version, note=str(stopped))


def read(report: Path, row: Row, seconds: float) -> Row:
    """The row with what pytest's report says."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    ends = [next((part for part in case if part.tag in ("failure", "error", "skipped")), None) for case in cases]
    count = Counter("passed" if end is None else end.tag for end in ends)
    failed, note = count["failure"] + count["error"], ""
    if failed:
        note = next(c.get("name", "") for c, e in zip(cases, ends, strict=True) if e is not None and e.tag != "skipped")
    elif not count["passed"]:
        note = f"no test ran: {_why(ends[0]) if ends else 'none was selected'}"
    return Row(
        library=row.library, version=row.version, passed=count["passed"], failed=failed, skipped=count["skipped"],
        seconds=round(seconds, 1), note=note,
    )  # fmt: skip


def _why(skipped: ElementTree.Element | None) -> str:
    """Why a test was skipped: what stands behind the place, in either of pytest's ways to say it."""
    text = "" if skipped is None else skipped.text or ""
    return re.split(r"Skipped: |\.py:\d+: ", text)[-1].strip("')\n ")


def table(rows: Sequence[Row]) -> str:
    lines = ["| library | version | passed | failed | skipped | seconds | |", "|---|---|---:|---:|---:|---:|---|"]
    for row in rows:
        counts = f"{row.passed} | {row.failed} | {row.skipped} | {row.seconds:.0f}"
        lines.append(f"| {row.library} | {row.version} | {counts} | {row.note.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def main(args: Args) -> list[Row]:
    chosen, out, rows = [one for one in LIBRARIES if not args.only or one.name in args.only], args.out.resolve(), []
    if args.dry_run:
        print(f"cd {shlex.quote(str(ROOT))}\n")
        for library in chosen:
            make, test = commands(library, out / library.name)
            print(f"# {library.name}", *map(shlex.join, [*make, test]), "", sep="\n")
        return []
    out.mkdir(parents=True, exist_ok=True)
    for number, library in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {library.name}", flush=True)
        rows.append(check(library, out))
        print(f"  {rows[-1]}", flush=True)
        (out / "table.md").write_text(table(rows), encoding="utf-8")
        (out / "results.json").write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    print(f"\n{table(rows)}")
    return rows


if __name__ == "__main__":
    sys.exit(not all(row.good for row in main(tyro.cli(Args, description=__doc__))))
