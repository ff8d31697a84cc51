"""Build a search index over passages, search it, and look inside it.

Examples:

    python -m retrieval_index build --corpus passages.jsonl --out my-index
    python -m retrieval_index search --index my-index "Who founded the band Toto?" -k 5
    python -m retrieval_index info --index my-index
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from retrieval_index import store
from retrieval_index.build import Backend, build_folder, load
from retrieval_index.tokenizer import tokenize

console = Console()
app = tyro.extras.SubcommandApp()


@app.command
def build(corpus: Path, out: Path, backend: Backend = "bm25") -> None:
    """Build an index folder from a file of passages.

    Args:
        corpus: JSONL file, one passage a line: {"id": "1", "title": "Toto", "text": "Toto is a rock band ..."}.
            Other fields are ignored.
        out: Folder to write. An index already there is replaced only when the new one is complete.
        backend: bm25: words in common, fast and hard to beat without a trained model. rank-bm25: the slow reference
            of the same formula. dense: vectors (TF-IDF and SVD) in FAISS, which needs no download.
    """
    started = time.perf_counter()
    build_folder(corpus, out, backend, progress=True)
    console.print(f"Built in {time.perf_counter() - started:.1f} s.")
    info(out)
    console.print(
        f'Try it: python -m retrieval_index search --index {escape(str(out))} "your question" -k 5', soft_wrap=True
    )


@app.command
def search(
    query: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="QUERY")],
    /,
    index: Path,
    k: Annotated[int, tyro.conf.arg(aliases=["-k"])] = 5,
) -> None:
    """Search an index and print the best passages.

    Args:
        query: What to search for, in plain words; put it in quotes.
        index: Folder that `build` wrote.
        k: How many passages to print.
    """
    passages = load(index).search([query], k)[0]
    if not passages:
        console.print("No passage shares a word with the query (stop words do not count).")
    for rank, passage in enumerate(passages, start=1):
        heading = Text.assemble(
            (f"{rank}. ", "bold"),
            (passage.title, "bold cyan"),
            (f"  score {passage.score:.3f}, id {passage.id}", "dim"),
        )
        console.print(heading)
        console.print(_highlighted(passage.text, query), "\n", sep="")


@app.command
def info(index: Path) -> None:
    """Show what an index holds, after checking every file of it.

    Args:
        index: Folder that `build` wrote.
    """
    manifest = store.verify(index)
    title = f"{index}: {manifest['backend']}, format version {manifest['format_version']}"
    table = Table("file", "size", "sha256", title=escape(title))
    for name, file in manifest["files"].items():
        table.add_row(name, f"{file['bytes'] / 1e6:,.1f} MB", file["sha256"][:16])
    console.print(table)
    corpus = manifest["corpus"]
    console.print(f"{corpus['passages']:,} passages, fingerprint {corpus['fingerprint'][:16]}; all files intact.")
    parameters = ", ".join(f"{name} {value}" for name, value in manifest["parameters"].items())
    console.print(f"parameters: {escape(parameters)}")


def _highlighted(text: str, query: str) -> Text:
    """The passage with the words of the query in bold."""
    result = Text(text)
    if words := tokenize(query):
        result.highlight_regex(rf"(?i)\b(?:{'|'.join(map(re.escape, words))})\b", "bold")
    return result


def main() -> int:
    """Run the command line; errors that a user can act on are one line, not a traceback."""
    try:
        app.cli(prog="python -m retrieval_index", description=__doc__)
    except (ValueError, OSError) as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
