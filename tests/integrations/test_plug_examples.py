"""The examples run as scripts, with their folder first on the path; and each library's tests are run somewhere."""

import ast
from pathlib import Path

import pytest

from benchmarks.plug_matrix import LIBRARIES

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


def test_every_test_of_a_library_is_in_the_matrix():
    texts = {path.name: path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")}
    marked = {name for name, text in texts.items() if "mark.plug" in text} - {Path(__file__).name}
    assert marked == {file for library in LIBRARIES for file in library.tests}
