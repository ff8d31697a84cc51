"""Imports go one way: experiments -> trainers -> agent_envs -> retrieval_index, in no circle within a package, and from folder
to folder one way; and the lower two do without torch."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "retrieval_index": {"agent_envs", "trainers", "experiments", "torch", "transformers", "gymnasium"},
    "agent_envs": {"trainers", "experiments", "torch", "transformers"},
    "trainers": {"experiments", "benchmarks", "tests"},
}
HEAVY = {"torch", "transformers", "datasets", "faiss", "sklearn", "numba", "bm25s", "matplotlib"}


@cache
def imports_of(path: Path) -> set[str]:
    """The names of everything that a file imports, at any depth of its code: modules, and members that may be modules."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_import_goes_up(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        assert not {name.split(".")[0] for name in imports_of(path)} & FORBIDDEN[package], path


def modules_imported_by(path: Path, modules: set[str]) -> set[str]:
    """Which of ``modules`` a file imports, but for the packages above what it names."""
    names = imports_of(path)
    return {name if name in modules else name.rpartition(".")[0] for name in names} & modules


def find_imports(package: str) -> dict[str, set[str]]:
    """By module, the modules of the same package that it imports. Imports inside functions count too."""
    paths = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: modules_imported_by(path, paths.keys() - {name}) for name, path in paths.items()}


def find_circles(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is in a circle of a graph, or leads to one."""
    while free := {name for name, needed in imports.items() if not needed}:
        imports = {name: needed - free for name, needed in imports.items() if name not in free}
    return imports


PACKAGES = ["retrieval_index", "agent_envs", "trainers", "experiments", "benchmarks"]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_circle(package):
    imports = find_imports(package)
    assert imports
    assert not find_circles(imports)


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_depend_on_folders_one_way(package):
    """Each folder of a package, and each file at its top, stands for itself. What a package's own name brings is not
    counted, nor are its commands' ``__main__``."""

    def room(module: str) -> str:
        return module.split(".")[1]

    rooms: dict[str, set[str]] = {}
    for module, needed in find_imports(package).items():
        if module.count(".") and room(module) != "__main__":
            others = {room(other) for other in needed if other.count(".")}
            rooms.setdefault(room(module), set()).update(others - {room(module)})
    assert not find_circles(rooms)


def test_lower_packages_are_light():
    """Importing them brings nothing heavy, and an episode no torch; `gymnasium.make` imports the package by itself."""
    stages = (
        "import retrieval_index",
        "import agent_envs",
        "import gymnasium; env = gymnasium.make('agent_envs:AgentR1/MiniWiki-Easy-v0', entities=100, questions=5); "
        "env.reset(seed=0); env.step('<search>town</search>'); from agent_envs.integrations import Episode, trl; "
        "episode = Episode('AgentR1/Sokoban-v0'); episode.start(0); episode.step('hm')",
    )
    code = "; ".join(["import sys", *(f"{stage}; print(*sys.modules)" for stage in stages)])
    command = [sys.executable, "-W", "error", "-c", code]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    index, envs, episode = ({name.split(".")[0] for name in line.split()} for line in run.stdout.splitlines())
    extras = set("scipy rank_bm25 rich tyro httpx fastapi uvicorn pydantic agent_envs".split())
    assert not index & (HEAVY | extras | {"trainers"})
    assert not envs & (HEAVY | {"trainers"})
    assert not episode & {"torch", "transformers", "datasets", "faiss", "sklearn", "trl", "trainers"}
