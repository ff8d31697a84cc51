"""Hooks for MkDocs: pages for files outside of `docs/`, so that every link works offline and on GitHub.

- A link from a page to a file or folder of the repository leads to a page under `source/` that shows it.
- `CONTRIBUTING.md` and `CHANGELOG.md` of the repository are pages; a link to its `README.md` leads to the site's home.
- In `docs/api/`, a line "- [`public.name`](../../file.py): …" becomes the reference of that name, from its docstring.
  `python docs/theme/hooks.py` writes the first lines of the docstrings into these pages.
- Headings have the same anchors as on GitHub.
"""

import ast
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(```.*?```|`[^`\n]*`)|\]\(([^)\s]+)\)", re.DOTALL)  # the first group is code, which is skipped
API = re.compile(r"^- \[`([\w.]+)`\]\(([^)]+)\.py\).*(?:\n  .*)*$", re.MULTILINE)
TWINS = {"README.md": "README.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
DEFINITION = ast.ClassDef | ast.FunctionDef
_origin: dict[str, str] = {}  # from each page that is made here to its path in the repository


def slugify(heading: str, separator: str = "-") -> str:
    """Return the anchor that GitHub gives a heading: letters, digits, hyphens and underscores are kept."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def origin_of(page: str) -> str:
    """Return the path in the repository of a page of the site."""
    return _origin.get(page, f"docs/{page}")


def page_of(path: str) -> str:
    """Return the page, or the file, of the site that shows a path of the repository."""
    if path in TWINS:
        return TWINS[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"


def resolve(page: str, link: str) -> str | None:
    """Return the repository path of a relative link of a page (for a folder, its README); None for links to elsewhere."""
    target = link.partition("#")[0]
    if not target or re.match(r"[a-z]+:", target):  # an anchor of the page itself; a URL
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin_of(page)), target))
    return f"{path}/README.md" if (ROOT / path / "README.md").is_file() and path != "." else path


def outside(page: str, text: str) -> Iterator[str]:
    """Yield the files and folders of the repository outside of `docs/` that a page links to."""
    for code, link in LINK.findall(text):
        path = None if code else resolve(page, link)
        if path and page_of(path).startswith("source/") and (ROOT / path).exists():
            yield path


def show(path: str) -> str:
    """Write a page that shows a file or a folder outside of `docs/`."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(child.name for child in file.iterdir() if child.is_file())
        return "\n".join([f"# {path}\n", *(f"- [`{name}`]({file.name}/{name})" for name in names)]) + "\n"
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        return f"# {path}\n\n" + "\n\n".join(show_cells(json.loads(text)["cells"]))
    return text if file.suffix == ".md" else f"# {path}\n\n{fence(text, file.suffix[1:])}"


def show_cells(cells: list[dict]) -> Iterator[str]:
    """Yield the cells of a notebook as Markdown, with their output."""
    for cell in cells:
        source = "".join(cell["source"])
        yield (
            re.sub(r"^#", "##", source, flags=re.MULTILINE) if cell["cell_type"] == "markdown" else fence(source, "py")
        )
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                yield f"![output](data:image/png;base64,{''.join(data['image/png']).strip()})"
            elif text := "".join(data.get("text/plain", "")).strip():
                yield fence(re.sub(r"\x1b\[[\d;]*m", "", text), "text")


def fence(text: str, language: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"


def with_summaries(page: Path) -> str:
    """Return a page of `docs/api/` with the first line of each docstring after its name."""

    def summarize(found: re.Match) -> str:
        file = (page.parent / f"{found[2]}.py").resolve()
        named = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, DEFINITION)]
        docs = {node.name: ast.get_docstring(node) or "" for node in named}
        summary = docs[found[1].rpartition(".")[2]].partition("\n")[0].replace("``", "`")
        return f"- [`{found[1]}`]({found[2]}.py): {summary}"

    return API.sub(summarize, page.read_text(encoding="utf-8"))


# ---- called by MkDocs ----


def on_config(config):
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify
    return config


def on_files(files, config):
    from mkdocs.structure.files import File, InclusionLevel

    _origin.clear()
    for path, page in TWINS.items():
        if path != "README.md":
            _origin[page] = path
            files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    waiting = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    while waiting:
        page, text = waiting.pop()
        for path in outside(page, text):
            shown = page_of(path)
            if shown not in _origin:
                _origin[shown] = path
                made = File.generated(config, shown, content=show(path), inclusion=InclusionLevel.NOT_IN_NAV)
                files.append(made)
                waiting.append((shown, made.content_string))
    return files


def on_page_markdown(markdown, page, config, files):
    here = page.file.src_uri
    if here.startswith("api/"):
        markdown = API.sub(lambda found: reference(here, found[1], found[2]), markdown)

    def relink(found: re.Match) -> str:
        path = None if found[1] else resolve(here, found[2])
        if path is None:
            return found[0]
        target = posixpath.relpath(page_of(path), posixpath.dirname(here) or ".")
        return f"]({target}{''.join(found[2].partition('#')[1:])})"

    return LINK.sub(relink, markdown)


def reference(page: str, name: str, file: str) -> str:
    """Write the block for mkdocstrings: the module that defines a name, and its public name as heading."""
    module = str(resolve(page, file)).replace("/", ".").removesuffix(".__init__")
    last = name.rpartition(".")[2]
    return f"::: {module}.{last}\n    options:\n      heading: {name}\n      toc_label: {last}"


if __name__ == "__main__":
    for api_page in sorted((ROOT / "docs" / "api").glob("*.md")):
        api_page.write_text(with_summaries(api_page), encoding="utf-8")
