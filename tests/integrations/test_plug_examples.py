"""The examples run as scripts, with their folder first on the path."""

import ast
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "plug").glob("*.py"))
SHARED = {"held_out"}


def imports_of(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_no_file_beside_it_hides_a_library(path):
    assert not imports_of(path) & {other.stem for other in EXAMPLES} - SHARED


def own_lines(path: Path) -> set[int]:
    """The lines that name something of this project: its imports, and where what they bring is used."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imports = [
        node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) and "agent_envs" in ast.unparse(node)
    ]
    names = {alias.asname or alias.name for node in imports for alias in node.names}
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id in names]
    return {node.lineno for node in [*imports, *uses]}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_is_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60
    assert len(own_lines(path)) <= 5
