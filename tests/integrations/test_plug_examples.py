"""Each library's tests are run somewhere."""

from pathlib import Path

from benchmarks.plug_matrix import LIBRARIES


def test_every_test_of_a_library_is_in_the_matrix():
    texts = {path.name: path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")}
    marked = {name for name, text in texts.items() if "mark.plug" in text} - {Path(__file__).name}
    assert marked == {file for library in LIBRARIES for file in library.tests}
