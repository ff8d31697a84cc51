"""How pages and options are written: word budgets, short sentences, the glossary's terms, leading zeros, described pictures.

`docs/glossary.md` lists the words that no page uses.
"""

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = {  # words of a page at most, as `wc -w` counts them
    "README.md": 900,
    "CONTRIBUTING.md": 800,
    "CHANGELOG.md": 150,
    "examples/README.md": 350,
    "examples/smollm2-hotpotqa/README.md": 500,
    "examples/smollm2-hotpotqa-sft/README.md": 300,
    "trainers/tiny/miniwiki/README.md": 250,
    "docs/README.md": 150,
    "docs/start.md": 600,
    "docs/installation.md": 350,
    "docs/package_page.md": 300,
    "docs/gallery.md": 400,
    "docs/glossary.md": 300,
    "docs/how_to.md": 900,
    "docs/own_data.md": 1000,
    "docs/evaluation.md": 900,
    "docs/report.md": 600,
    "docs/episodes.md": 900,
    "docs/troubleshooting.md": 600,
    "docs/hyperparameters.md": 400,
    "docs/coming_from.md": 500,
    "docs/agents.md": 600,
    "docs/algorithms.md": 1050,
    "docs/api/README.md": 100,
    "docs/api/environments.md": 690,
    "docs/api/plug.md": 310,
    "docs/api/retrieval.md": 240,
    "docs/api/training.md": 780,
    "docs/architecture.md": 790,
    "docs/invariants.md": 700,
    "docs/models.md": 830,
    "docs/pretrained.md": 1040,
    "docs/one_gpu.md": 500,
    "docs/speed.md": 630,
    "docs/scaling.md": 710,
    "docs/reliability.md": 880,
    "docs/environments.md": 1620,
    "docs/sandbox.md": 690,
    "docs/retrieval.md": 1140,
    "docs/plug.md": 1780,
    "docs/tasks/README.md": 470,
    "docs/tasks/search_benchmarks.md": 640,
    "docs/tasks/MiniWiki.md": 880,
    "docs/tasks/API.md": 660,
    "docs/tasks/Mixed.md": 390,
    "docs/tasks/Sokoban.md": 460,
    "docs/tasks/FrozenLake.md": 440,
    "docs/tasks/Calculator.md": 390,
    "docs/tasks/Python.md": 290,
    "docs/tasks/SQL.md": 320,
    "docs/tasks/Mixture.md": 160,
    "docs/tasks/Bandit.md": 290,
    "docs/tasks/Countdown.md": 340,
    "docs/tasks/ALFWorld.md": 300,
    "docs/tasks/WebShop.md": 300,
}
RESULT, ALL = 250, 30_000  # a page of docs/results/ and all other pages together
BUDGETS |= {page.relative_to(ROOT).as_posix(): RESULT for page in (ROOT / "docs/results").glob("*.md")}
LONG, LONGEST = 25, 35  # words of a sentence: at most one in 20 is longer than the first, none than the second
PICTURE = re.compile(r"!\[([^]]*)\]\(([^)\s]+)\)|<img\b([^>]*)>")


def without_code(text: str) -> str:
    """The page with each block of code removed, and each `span` as one word."""
    text = re.sub(r"^ *(```+).*?^ *\1|\n\n(?: {4}[^\n]*\n)+(?=\n)", "\n", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(`+)(?:(?!\n\n).)+?\1", "CODE", text, flags=re.DOTALL)


def blocks_of(text: str) -> list[str]:
    """Paragraphs and items of lists as plain text, without headings, tables, pictures and HTML."""
    text = PICTURE.sub("", re.sub(r"<!--.*?-->", "", without_code(text), flags=re.DOTALL))
    text = re.sub(r"<[^>]+>", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text))
    text = re.sub(r"^ *(#|\|).*$", "", text, flags=re.MULTILINE)
    blocks = re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.)\s+", text, flags=re.MULTILINE)
    return [" ".join(block.replace("*", "").split()) for block in blocks if block and block.strip()]


def sentences_of(text: str) -> list[str]:
    """Sentences of the prose; a colon and a semicolon end none."""
    parts = [re.split(r"(?<=[.!?])(?<!\b[a-z]\.)(?<!vs\.)(?<!al\.)\s+", block) for block in blocks_of(text)]
    return [sentence for part in parts for sentence in part]


def length_of(sentence: str) -> int:
    return len(re.findall(r"\S*\w\S*", sentence))


@cache
def banned() -> re.Pattern:
    """Any expression of the last column of the glossary's table."""
    rows = re.findall(r"^\|.*\|$", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    cells = [row.strip("|").split("|")[-1] for row in rows if not re.match(r"\|[-|: ]+\|$", row)]
    words = {word.strip() for cell in cells for word in cell.split(",")} - {"", "not"}
    return re.compile(rf"(?<![\w-])(?:{'|'.join(sorted(map(re.escape, words)))})(?![\w-])", re.IGNORECASE)


def banned_in(text: str) -> list[str]:
    """Words of the "not" column outside of code and quotation."""
    text = re.sub(r"\"[^\"\n]*\"|“[^”]*”", "", re.sub(r"\]\([^)]*\)", "]", without_code(text)))
    return banned().findall(" ".join(text.split()))


def bare_decimals_in(text: str) -> list[str]:
    """Numbers without a leading zero."""
    return re.findall(r"(?<![\w.…)])\.\d\w*", re.sub(r"\]\([^)]*\)", "]", without_code(text)))


def pictures_in(text: str) -> list[tuple[str, str]]:
    """Target and description of each picture."""
    text = re.sub(r"^ *(```+).*?^ *\1", "", text, flags=re.DOTALL | re.MULTILINE)
    found = [(target, words, dict(re.findall(r'(\w+)="([^"]*)"', of))) for words, target, of in PICTURE.findall(text)]
    return [(target or of.get("src", ""), words or of.get("alt", "")) for target, words, of in found]


def faults_of(text: str) -> list[str]:
    """What is wrong with a page's language, one line each."""
    sentences = sentences_of(text)
    long = [sentence for sentence in sentences if length_of(sentence) > LONG]
    faults = [f"{length_of(s)} words: {s}" for s in long if length_of(s) > LONGEST]
    if len(long) > max(1, len(sentences) // 20):
        faults += [f"{len(long)} of {len(sentences)} sentences over {LONG} words: {long}"]
    faults += [f"glossary: not {word!r}" for word in banned_in(text)]
    return faults + [f"no leading zero: {number}" for number in bare_decimals_in(text)]


def read(page: str | Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", BUDGETS)
def test_a_page_keeps_to_its_budget_and_to_the_style(page):
    text = read(page)
    assert len(text.split()) <= BUDGETS[page]
    assert not faults_of(text if page != "docs/glossary.md" else re.sub(r"\|[^|\n]*\|$", "|", text, flags=re.M))


def test_every_page_has_a_budget_and_all_together_are_short_enough():
    pages = {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")} | {"README.md"}
    assert pages <= set(BUDGETS)
    assert all((ROOT / page).is_file() for page in BUDGETS)
    assert sum(len(read(page).split()) for page in pages if not page.startswith("docs/results/")) <= ALL


SAYS = re.compile(r"\b(?:prints?|writes?|output|minutes?|seconds?)\b", re.IGNORECASE)  # what comes, or when


def unexplained_commands(text: str) -> list[str]:
    """First line of each block of commands of which neither itself, the next paragraph nor the page's opening tells more.

    Installers are exempt, as their output is not ours.
    """
    if "## " in text and re.search(r"\bprints\b", text.partition("\n## ")[0]):
        return []
    blocks = re.finditer(r"^```\n((?:python|make) .*?)^```\n\s*(.*?)(?:\n\n|\Z)", text, flags=re.DOTALL | re.MULTILINE)
    return [m[1].splitlines()[0] for m in blocks if not SAYS.search(m[1]) and not SAYS.search(m[2])]


@pytest.mark.parametrize("page", ["README.md", "docs/start.md", "docs/installation.md", "docs/how_to.md"])
def test_a_command_stands_with_what_it_prints_or_how_long_it_takes(page):
    assert not unexplained_commands(read(page))


def test_a_command_without_its_output_is_found():
    text = "# A\n\nIt is so.\n\n## B\n\n```\nmake x\n```\n\nMore.\n\n```\nmake y\n```\n\nIt prints y.\n"
    assert unexplained_commands(text) == ["make x"]


COMMANDS = [*sorted((ROOT / "trainers").glob("*.py")), ROOT / "experiments" / "compare.py"]
PACKAGES = "retrieval_index", "agent_envs", "trainers", "experiments"
PROMPTS = ROOT / "agent_envs" / "tasks"  # where docstrings of tools are what a model reads


def options_of(source: str) -> dict[str, str]:
    """The help of each option: the docstring under each field of a class named Args or …Args, "" without one."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Args"):
            for field, under in pairwise([*node.body, None]):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    is_text = isinstance(under, ast.Expr) and isinstance(under.value, ast.Constant)
                    found[f"{node.name}.{field.target.id}"] = str(under.value.value) if is_text else ""
    return found


def test_the_help_of_an_option_is_short_and_in_the_style():
    options = {name: help for file in COMMANDS for name, help in options_of(read(file)).items()}
    assert len(options) > 100
    for name, help in options.items():
        assert 0 < len(help.split()) <= LONG and not faults_of(help), name


def docstrings_of(source: str) -> list[str]:
    """All docstrings of a file, without the names of arguments; those under fields too."""
    bodies = [getattr(node, "body", []) for node in ast.walk(ast.parse(source))]
    lines = [line for body in bodies if isinstance(body, list) for line in body if isinstance(line, ast.Expr)]
    texts = [line.value.value for line in lines if isinstance(line.value, ast.Constant)]
    return [re.sub(r"^ +\w+:(?= )", "", text, flags=re.M) for text in texts if isinstance(text, str)]


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_keep_to_the_glossary(package):
    for file in (ROOT / package).rglob("*.py"):
        if file.parent != PROMPTS:
            for text in docstrings_of(read(file)):
                assert not [*banned_in(text), *bare_decimals_in(text)], f"{file.relative_to(ROOT)}: {text}"


def test_every_picture_is_described_and_exists_and_none_is_unused():
    shown = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]:
        for target, words in pictures_in(page.read_text(encoding="utf-8")):
            if not re.match(r"https?:", target):
                assert (page.parent / target).is_file(), f"{page.name}: {target} does not exist"
                shown.add((page.parent / target).resolve())
            assert length_of(words) >= 3, f"{page.name}: describe {target} in its alt text"
    files = {p for p in (ROOT / "docs").rglob("*") if p.suffix in (".png", ".svg", ".jpg") and "theme" not in p.parts}
    assert not files - shown


@pytest.mark.parametrize(
    "text, fault",
    [
        ("word " * 36 + ".", "36 words"),
        (f"{'word ' * 26}. {'word ' * 26}.", "2 of 2 sentences"),
        ("It wins in .87 of the games.", "leading zero: .87"),
        ("| a | ±.05 |", "leading zero: .05"),
        ("The agent hardly\nlearns.", "not 'hardly'"),
        ("Code:\n\n    alone\n\nIt hardly learns.\n\nOr so.", "not 'hardly'"),
        ("Two runs, just\nas many steps.", "not 'just as many'"),
    ],
)
def test_a_fault_is_found(text, fault):
    assert any(fault in found for found in faults_of(text))


@pytest.mark.parametrize(
    "text",
    [
        "It prints `hardly .5`.\n\n```\nnobody says .5\n```\n\n    hardly .5\n    alone\n\nOr not.",
        'A "processor" is a CPU. See [it](behind.md#alone), e.g. version 1.2.3 or v0.5.',
        "# Heading of words\n\n"
        + "- an item of a list with ten words in it, all\n" * 4
        + "\n| "
        + "cell " * 40
        + "|\n",
        f"{'word ' * 25}. <!-- {'word ' * 40} -->",
    ],
)
def test_what_is_well_written_passes(text):
    assert not faults_of(text)


def test_pictures_are_found_in_markdown_and_in_html():
    text = '![a b](c.png) <img src="d.svg" width="3" alt="e f"> <img src="g.svg">\n```\n![no](h.png)\n```\n'
    assert pictures_in(text) == [("c.png", "a b"), ("d.svg", "e f"), ("g.svg", "")]
