"""Test the adapters against the real libraries, each in its own virtual environment, and write a table.

    python -m benchmarks.plug_matrix --only gem trl
    python -m benchmarks.plug_matrix                    # all: gigabytes, and minutes of installing for each

Virtual environments stay in the folder and are reused: delete one to make it again. The folder also gets table.md and a log for
each library. Exits with 1 if a library does not install, a test fails, or a library has no test that passes.
"""

import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import tyro

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 3600  # seconds of an installation or a test run
VERSION = "import sys; from importlib import metadata; print(metadata.version(sys.argv[1]))"


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library: what is installed beside this project, and which tests are run there.

    Attributes:
        package: package whose version the table shows.
        tests: test files in tests/integrations; ``select`` is pytest's ``-k`` expression.
        requires: packages installed in one step with this project; ``extra`` is an extra of this project.
        alone: packages installed after these, without their dependencies (engines that need a GPU).
    """

    name: str
    package: str
    tests: tuple[str, ...]
    select: str = ""
    extra: str = ""
    requires: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()

    def installs(self) -> list[list[str]]:
        """Return the arguments of pip's calls. torch has its own call: as a dependency it can bring gigabytes of CUDA."""
        project = f".[{self.extra}]" if self.extra else "."
        calls = [["torch"], ["-e", project, "pytest", *self.requires], ["--no-deps", *self.alone]]
        return [["-c", "constraints.txt", *call] for call in calls if call != ["--no-deps"]]


CONTRACT, MENU, HOST, HOW_TO = "test_contract.py", "test_menu_libraries.py", "test_host_libraries.py", "test_how_to.py"
LIBRARIES = [
    Library(name="trl", package="trl", tests=("test_trl.py", HOW_TO), select="trl", extra="trl"),
    Library(name="torchrl", package="torchrl", tests=("test_torchrl.py",), requires=("torchrl==0.14.*",)),
    Library(
        name="gem", package="gem-llm", tests=(CONTRACT, "test_gem.py", HOST), select="gem or Guess",
        requires=("gem-llm==0.1.0",),
    ),
    Library(
        name="skyrl", package="skyrl-gym", tests=(CONTRACT, "test_skyrl.py"), select="skyrl", requires=("skyrl-gym==0.4.0",),
    ),
    Library(
        name="openrlhf", package="openrlhf", tests=(CONTRACT, "test_openrlhf.py"), select="openrlhf",
        requires=("ray", "aiohttp", "pylatexenc"), alone=("openrlhf==0.11.0",),
    ),
    Library(
        name="verl", package="verl", tests=(CONTRACT, "test_verl.py"), select="verl", alone=("verl==0.9.0",),
        requires=("hydra-core", "tensordict==0.10.*", "ray", "codetiming", "torchdata", "cachetools", "fastapi", "uvicorn"),
    ),
    Library(
        name="reasoning-gym", package="reasoning-gym", tests=(HOST,), select="Reasoning",
        requires=("reasoning-gym==0.1.25",),
    ),
    Library(name="textarena", package="textarena", tests=(HOST,), select="Arena", requires=("textarena==0.7.4",)),
    Library(name="openenv", package="openenv", tests=(CONTRACT, "test_openenv.py"), select="openenv", extra="openenv"),
    Library(
        name="verifiers", package="verifiers", tests=("test_verifiers.py",), extra="verifiers",
    ),
    Library(
        name="sb3", package="stable-baselines3", tests=(MENU, HOW_TO), select="sb3 or maskable", extra="sb3",
    ),
    Library(name="tianshou", package="tianshou", tests=(MENU,), select="tianshou", requires=("tianshou==2.0.*",)),
    Library(name="rllib", package="ray", tests=(MENU,), select="rllib", requires=("ray[rllib]==2.60.*",)),
    Library(name="frameworks", package="openai-agents", tests=("test_agent_frameworks.py",), extra="frameworks"),
    Library(name="cleanrl", package="torch", tests=(MENU,), select="cleanrl"),  # one file that needs only torch
]  # fmt: skip


@dataclass(kw_only=True)
class Args:
    """Test the adapters against the real libraries."""

    only: tuple[str, ...] = ()
    """Names of libraries; all by default."""
    out: Path = Path("runs/plug-matrix")
    """Folder of the virtual environments, which are reused, and of the results."""

    def __post_init__(self):
        if unknown := set(self.only) - {library.name for library in LIBRARIES}:
            known = ", ".join(library.name for library in LIBRARIES)
            raise ValueError(f"unknown libraries {sorted(unknown)}; known are {known}")


def check(library: Library, out: Path) -> tuple[str, bool]:
    """Install a library and run its tests; returns its line of the table, and whether all went well."""
    home, log = out / library.name, out / f"{library.name}.log"
    python, report = str(home / "bin" / "python"), home.with_suffix(".xml")
    report.unlink(missing_ok=True)
    make = [[sys.executable, "-m", "venv", str(home)]]
    make += [[python, "-m", "pip", "install", "--progress-bar", "off", *call] for call in library.installs()]
    chosen = ["-k", library.select] if library.select else []
    files = [f"tests/integrations/{file}" for file in library.tests]
    test = [python, "-m", "pytest", "-p", "no:cacheprovider", "-m", "plug", f"--junitxml={report}", *chosen, *files]
    with log.open("w", encoding="utf-8") as output:
        for command in [*([] if home.exists() else make), test]:
            status = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, timeout=LIMIT).returncode
            if status and command is not test:
                shutil.rmtree(home)
                return f"| {library.name} | — | — | — | — | not installed: see {log.name} |", False
    asked = subprocess.run([python, "-c", VERSION, library.package], capture_output=True, text=True)
    counts = count_results(report)
    note = "" if counts["passed"] else f"no test ran: see {log.name}"
    numbers = " | ".join(str(counts[kind]) for kind in ("passed", "failed", "skipped"))
    good = not counts["failed"] and not note
    return f"| {library.name} | {asked.stdout.strip() or '—'} | {numbers} | {note} |", good


def count_results(report: Path) -> Counter:
    """Count the tests that passed, failed and were skipped."""
    if not report.exists():
        return Counter()
    kinds = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    cases = ElementTree.parse(report).iter("testcase")
    return Counter(next((kinds[part.tag] for part in case if part.tag in kinds), "passed") for case in cases)


def main(args: Args) -> bool:
    """Test the chosen libraries; returns whether all went well."""
    out, lines, good = args.out.resolve(), [], True
    out.mkdir(parents=True, exist_ok=True)
    for library in LIBRARIES:
        if not args.only or library.name in args.only:
            line, well = check(library, out)
            good &= well
            print(line, flush=True)
            lines.append(line)
    head = ["| library | version | passed | failed | skipped | |", "|---|---|---:|---:|---:|---|"]
    (out / "table.md").write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    return good


if __name__ == "__main__":
    sys.exit(not main(tyro.cli(Args, description=__doc__)))
