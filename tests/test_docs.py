"""The pages: every one is in the navigation, links and anchors lead somewhere, the API reference names what exists, and the
site needs no network."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
PACKAGE_PAGE = ROOT / tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["readme"]
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")  # of Markdown, or of HTML inside it

_spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "theme" / "hooks.py")
hooks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hooks)


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[str]:
    """Targets of all links and pictures outside of code."""
    found = LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page)))
    return [markdown or html for markdown, html in found]


def anchors(page: Path) -> list[str]:
    """Those that GitHub and the site give the headings of a page."""
    headings = re.findall(r"^#+ +(.*)$", prose(page), flags=re.MULTILINE)
    return [hooks.slugify(re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", heading)) for heading in headings]


def entries(part) -> list[str]:
    """The pages that a part of the navigation names."""
    if isinstance(part, str):
        return [part]
    return [page for inner in (part.values() if isinstance(part, dict) else part) for page in entries(inner)]


def test_every_page_is_in_the_navigation_once_and_the_package_page_stands_alone():
    of_docs = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    made = {hooks.TWINS[name] for name in ("CONTRIBUTING.md", "CHANGELOG.md")}
    assert sorted(entries(SITE["nav"])) == sorted(of_docs - set(SITE["exclude_docs"].split()) | made)
    assert links(PACKAGE_PAGE) and all(link.startswith("https://") for link in links(PACKAGE_PAGE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_to_files_and_headings(page):
    for link in links(page):
        file, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = page.parent / file if file else page
        assert target.exists(), link
        if anchor:
            assert anchors(target).count(anchor) == 1, f"{link}: that heading is not there, or there twice"


def reference() -> list[tuple[Path, str, str]]:
    """What the API pages list: page, public name, file."""
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    return [(page, *found) for page in pages for found in hooks.API.findall(page.read_text(encoding="utf-8"))]


def definitions(file: Path) -> dict[str, ast.AST]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


def test_what_the_reference_lists_is_defined_documented_and_imported_by_that_name():
    for package in ("agent_envs", "agent_envs/integrations", "retrieval_index", "trainers"):
        assert any(file.startswith(f"../../{package}") for _, _, file in reference())
    for page, name, link in reference():
        file = (page.parent / f"{link}.py").resolve()
        node = definitions(file).get(name.rpartition(".")[2])
        assert node, f"{page.name}: {name} is not in {file.name}"
        assert ast.get_docstring(node), f"{name} has no docstring"
        module = ROOT / name.rpartition(".")[0].replace(".", "/")
        if module.with_suffix(".py") != file and module / "__init__.py" != file:  # a shorter name than that of its file
            exported = (module / "__init__.py").read_text(encoding="utf-8").partition("__all__")[2]
            assert name.rpartition(".")[2] in exported


def test_the_reference_has_the_first_lines_of_the_docstrings():
    for page in {page for page, _, _ in reference()}:
        assert page.read_text(encoding="utf-8") == hooks.with_summaries(page), "run python docs/theme/hooks.py"


def test_links_out_of_docs_lead_to_pages_that_show_the_file():
    assert hooks.resolve("plug.md", "../examples/plug/host.py#L3") == "examples/plug/host.py"
    assert hooks.resolve("api/training.md", "../../trainers/grpo.py") == "trainers/grpo.py"
    assert hooks.resolve("plug.md", "https://x.org/a.py") is hooks.resolve("plug.md", "#menu") is None
    assert hooks.resolve("README.md", "tasks") == hooks.resolve("api/README.md", "../tasks/") == "docs/tasks/README.md"
    assert hooks.page_of("docs/tasks/README.md") == "tasks/README.md"
    assert hooks.page_of("CONTRIBUTING.md") == "contributing.md"
    assert hooks.page_of("trainers/grpo.py") == "source/trainers/grpo.py.md"
    text = (
        "[a](../trainers/grpo.py) `[b](../trainers/ppo.py)` [c](games.md) [d](../README.md)\n```\n[e](../Makefile)\n```"
    )
    assert list(hooks.outside("plug.md", text)) == ["trainers/grpo.py"]
    assert hooks.show("trainers/grpo.py").startswith("# trainers/grpo.py\n\n````py\n")
    assert "(plug/host.py)" in hooks.show("examples/plug")


def test_the_episode_of_the_readme_prints_what_it_shows(capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code, shown = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", text, flags=re.DOTALL)[0]
    exec(code, {})
    assert capsys.readouterr().out == shown


def test_a_notebook_is_shown_with_what_it_printed_and_drew():
    text = hooks.show("notebooks/quickstart.ipynb")
    notebook = json.loads((ROOT / "notebooks" / "quickstart.ipynb").read_text(encoding="utf-8"))
    assert text.count("data:image/png;base64,") == 2
    assert text.count("````py\n") == sum(cell["cell_type"] == "code" for cell in notebook["cells"])
    assert "exact match: 1.0" in text and "\x1b" not in text


@pytest.mark.slow
def test_the_site_is_built_and_asks_the_network_for_nothing(tmp_path):
    pytest.importorskip("mkdocstrings_handlers.python", reason="pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for file in [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")]:
        text = file.read_text(encoding="utf-8")
        remote = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?https?:[^>]*>", text)
        remote += re.findall(r"<link[^>]*href=\"?https?:[^>]*>|url\([\"']?https?:[^)]*\)", text)
        assert not [tag for tag in remote if 'rel="canonical"' not in tag], file
    assert "agent_envs.tool_env.ToolEnv" in (tmp_path / "api" / "environments.html").read_text(encoding="utf-8")
    assert (tmp_path / "source" / "trainers" / "grpo.py.html").exists()
    assert "potential-based" in (tmp_path / "search" / "search_index.js").read_text(encoding="utf-8")
