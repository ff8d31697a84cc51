"""Imports go one way: experiments -> trainers -> agent_envs -> retrieval_index, in no circle within a package, and from folder
to folder one way; and the lower two do without torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "retrieval_index": {"agent_envs", "trainers", "experiments", "torch", "transformers", "gymnasium"},
    "agent_envs": {"trainers", "experiments", "torch", "transformers"},
    "trainers": {"experiments", "benchmarks", "tests"},
}
HEAVY = {"torch", "transformers", "datasets", "faiss", "sklearn", "numba", "bm25s", "matplotlib"}


def imports_of(path: Path) -> set[str]:
    """Top-level names of everything that a file imports, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_import_goes_up(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        assert not imports_of(path) & FORBIDDEN[package], path


def modules_imported_by(path: Path, modules: set[str]) -> set[str]:
    """Which of `modules` a file imports, at any depth of its code, but for the packages above what it names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= members & modules
            if members - modules:
                found.add(node.module)
    return found & modules


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


def loaded_by(code: str) -> set[str]:
    code += "; import sys; print(*{name.split('.')[0] for name in sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_agent_envs_is_light():
    assert not loaded_by("import agent_envs") & (HEAVY | {"trainers"})


def test_an_episode_needs_no_torch():
    code = (
        "import gymnasium, agent_envs; env = gymnasium.make('AgentR1/MiniWiki-Easy-v0', entities=100, questions=5); "
        "env.reset(seed=0); env.step('<search>town</search>')"
    )
    assert not loaded_by(code) & {"torch", "transformers", "datasets", "faiss", "sklearn", "trainers"}
