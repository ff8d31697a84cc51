"""Imports go one way: trainers -> agent_envs -> retrieval_index, and in no circle within a package; and the lower two do
without torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "retrieval_index": {"agent_envs", "trainers", "torch", "transformers", "gymnasium"},
    "agent_envs": {"trainers", "torch", "transformers"},
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


@pytest.mark.parametrize("package", ["retrieval_index", "agent_envs", "trainers", "benchmarks"])
def test_no_import_circle(package):
    """Imports inside functions count too: they are how a circle hides."""
    paths = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    imports = {name: modules_imported_by(path, paths.keys() - {name}) for name, path in paths.items()}
    assert imports
    while free := {name for name, needed in imports.items() if not needed}:
        imports = {name: needed - free for name, needed in imports.items() if name not in free}
    assert not imports, f"in a circle, or on the way to one: {imports}"


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
