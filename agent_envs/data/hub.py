"""Benchmarks from the Hugging Face hub, downloaded once and kept in the local cache as JSONL."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from agent_envs.data.catalog import CATALOG, parser_of
from agent_envs.data.local import PASSAGES_FILE, NotHere, cache_folder, questions_file
from agent_envs.data.rows import parse_records
from retrieval_index import durable
from retrieval_index.hub import ask_hub

ORIGIN_FILE = "origin.json"


def find_cached(name: str, split: str) -> tuple[Path, str]:
    """The folder of an earlier download and where it came from, as `hub:repository@revision`.
    Raises NotHere: it was not downloaded yet."""
    folder = cache_folder() / f"{name}.{split}"
    if not (folder / ORIGIN_FILE).is_file():
        raise NotHere(f"there is no {folder}")
    return folder, json.loads((folder / ORIGIN_FILE).read_text())["source"]


def download(name: str, split: str) -> tuple[Path, str]:
    """Download a split into the cache; returns what `find_cached` returns.
    Raises NotHere: the hub could not be reached or does not have it. A process tries only once."""
    if reason := _try_download(name, split, cache_folder()):
        raise NotHere(reason)
    return find_cached(name, split)


@lru_cache
def _try_download(name: str, split: str, cache: Path) -> str:
    """Download; return the reason of a failure, or "". Memoised, so that not every environment waits for it again."""
    entry = CATALOG[name]
    try:
        revision = _reachable_revision(entry.repository)
        import datasets  # takes seconds

        theirs = entry.held_out if split == "validation" else split
        rows = datasets.load_dataset(entry.repository, entry.configuration, split=theirs, revision=revision)
    except Exception as error:  # `datasets` and the HTTP library below it raise far more than they document
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    source = f"hub:{entry.repository}" + (f"@{revision[:7]}" if revision else "")
    _publish(datasets.utils.tqdm(rows, desc=f"{name}.{split}", unit=" questions"), name, split, source, cache)
    return ""


def _reachable_revision(repository: str) -> str | None:
    """The hub's commit of a dataset; None in offline mode. Fails fast: `load_dataset` retries for half a minute."""
    from huggingface_hub import constants

    return None if constants.HF_HUB_OFFLINE else ask_hub(repository, "dataset").sha


def _publish(rows: Iterable[Mapping], name: str, split: str, source: str, cache: Path) -> None:
    """Write rows as JSONL to a temporary folder in the cache, and rename it."""
    durable.make_folder(cache)
    destination = cache / f"{name}.{split}"
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{name}.{split}.") as scratch:
        staging = Path(scratch) / "ready"
        staging.mkdir()
        _write_rows(rows, name, split, source, staging)
        try:
            durable.publish(staging, destination)
        except OSError:
            if not (destination / ORIGIN_FILE).is_file():  # no other process was faster
                raise


def _write_rows(rows: Iterable[Mapping], name: str, split: str, source: str, folder: Path) -> None:
    numbered = ((f"{source}: record {number}", row) for number, row in enumerate(rows, start=1))
    seen: set[str] = set()
    with (
        open(folder / questions_file(name, split), "w", encoding="utf-8") as questions,
        open(folder / PASSAGES_FILE, "w", encoding="utf-8") as passages,
    ):
        for _, parsed in parse_records(numbered, parser_of(name, None)):
            if parsed.question:
                questions.write(json.dumps(asdict(parsed.question), ensure_ascii=False) + "\n")
            for passage in parsed.passages:
                if passage.id not in seen:
                    seen.add(passage.id)
                    row = {"id": passage.id, "title": passage.title, "text": passage.text}
                    passages.write(json.dumps(row, ensure_ascii=False) + "\n")
    if not CATALOG[name].own_passages:
        (folder / PASSAGES_FILE).unlink()  # an empty file would count as a corpus
    (folder / ORIGIN_FILE).write_text(json.dumps({"source": source}) + "\n")
