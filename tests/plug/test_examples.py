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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_is_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60
