"""Test whether the tests detect faults: prints a table, and exits with 1 if a fault of `benchmarks.faults` survived.

    python -m benchmarks.deliberate_faults                                           # an hour on one core
    python -m benchmarks.deliberate_faults --only ppo-whitens-failed --tests tests/trainers

Each fault changes one text of one file, in a copy of the tree. The tests of the fault then run until one fails.
"""

import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import tyro

from benchmarks.faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = "retrieval_index", "agent_envs", "trainers", "experiments", "tests"


@dataclass(kw_only=True)
class Args:
    """Insert faults, one at a time, and find the test that fails."""

    only: tuple[str, ...] = ()
    """Names of faults; all by default."""
    tests: tuple[str, ...] = ()
    """Test files to run instead of those of the fault."""


def put_in(fault: Fault, tree: Path, dry: bool = False) -> None:
    """Insert a fault into its file; if ``dry``, only check it. Raises ValueError if its text is not found exactly once."""
    path = tree / fault.file
    text = path.read_text()
    if (count := text.count(fault.old)) != 1:
        raise ValueError(f"{fault.name}: its text is in {fault.file} {count} times instead of once: {fault.old!r}")
    if not dry:
        path.write_text(text.replace(fault.old, fault.new))


def copy_tree(to: Path) -> None:
    for name in FOLDERS:
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("*.pyc"))  # keeps what numba compiled
    shutil.copy(ROOT / "pyproject.toml", to)


@dataclass(eq=False)
class First:
    """Pytest plugin that records which test failed first, and which were run."""

    failed: str = ""
    run: set[str] = field(default_factory=set)

    def pytest_runtest_logreport(self, report):
        self.run.add(report.nodeid)
        if report.failed and not self.failed:
            self.failed = report.nodeid.split("::")[-1]

    def pytest_collectreport(self, report):
        if report.failed and not self.failed:
            self.failed = f"collecting {report.nodeid}"


def killed_by(fault: Fault, args: Args) -> str:
    """Return the first test that fails with this fault, or "" if none does. The tests run in a fork of this process, which
    has already imported the slow modules."""
    with tempfile.TemporaryDirectory() as folder:
        tree, said = Path(folder) / "tree", Path(folder) / "said"
        copy_tree(tree)
        put_in(fault, tree)
        child = os.fork()
        if not child:
            try:
                said.write_text(first_failure(fault, args, tree))
                os._exit(0)
            except BaseException as error:
                said.write_text(repr(error))
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"{fault.name}: the tests could not be run: {said.read_text()}")
        return said.read_text()


def first_failure(fault: Fault, args: Args, tree: Path) -> str:
    import pytest

    os.chdir(tree)
    sys.path[:] = [str(tree), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
    os.environ["PYTHONPATH"] = str(tree)
    with open("log", "w") as log:  # output of pytest
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    first = First()
    options = ["-x", "-q", "-p", "no:cacheprovider"]
    if fault.within and not args.tests:
        options += ["-k", fault.within]
    pytest.main([*options, *(args.tests or fault.tests.split())], plugins=[first])
    if not first.run and not first.failed:
        raise ValueError(f"no test was run: {Path('log').read_text()[-2000:]}")
    return first.failed


def main(args: Args) -> int:
    chosen = [fault for fault in FAULTS if not args.only or fault.name in args.only]
    if unknown := set(args.only) - {fault.name for fault in FAULTS}:
        raise ValueError(f"unknown faults {sorted(unknown)}: their names are in benchmarks/faults.py")
    for fault in chosen:
        put_in(fault, ROOT, dry=True)  # checks all faults before minutes are spent
    import faiss  # noqa: F401  (imported here once, and not by every child)
    import numba  # noqa: F401
    import pytest  # noqa: F401
    import transformers  # noqa: F401
    from transformers import Qwen2ForCausalLM  # noqa: F401

    survived = 0
    print("| fault | killed by | seconds |\n|---|---|---|")
    for fault in chosen:
        begin = time.monotonic()
        test = killed_by(fault, args)
        survived += not test
        print(f"| {fault.name} | {test or 'SURVIVED'} | {time.monotonic() - begin:.1f} |", flush=True)
    print(f"\n{len(chosen) - survived} of {len(chosen)} killed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))
