"""What an evaluation leaves in its folder: the table as evaluation.md and evaluation.json, and episodes.jsonl.

The answers of an API cost money and time. They are kept as they come, and the same command again asks for the rest alone.
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval_index import durable
from trainers.episodes.records import EPISODES_FILE, TOKENS_FILE, read_episodes, to_line
from trainers.episodes.report import page as html_report
from trainers.episodes.report import tables as report
from trainers.runtime.errors import UserError
from trainers.runtime.progress import to_json_types

API_NAME = "api-"  # how the names in the keys of their episodes begin


def take_up(folder: Path, settings: Mapping[str, Any]) -> tuple[list[dict], list[dict]]:
    """The episodes that an API has been asked for in this folder: those that did not fail, and those that did. Where there are
    any of the first, nothing else stays in its file: everything else is played again.

    Args:
        settings: what decides about these episodes, by the names of the options; empty where no API is asked.

    Raises:
        ValueError: they were played under other settings.
    """
    file, tokens = folder / EPISODES_FILE, folder / TOKENS_FILE
    earlier = _read_settings(folder)
    answers = [r for r in read_episodes(file) if _is_answer(r)] if earlier and file.exists() else []
    kept = [r for r in answers if not r["failed"]]
    if kept:
        for name in sorted({*settings, *earlier} - {"data"}):
            if (before := earlier.get(name)) != (now := settings.get(name)):
                raise UserError(
                    f"{folder} holds {len(kept)} answers of an API to other questions or settings ({name} was {before!r}, "
                    f"and is {now!r}): give another --out, or the settings of then to go on"
                )
        if "data" in earlier and earlier["data"] != settings.get("data"):  # an earlier version kept none
            raise UserError(
                f"{folder} holds {len(kept)} answers of an API to other questions: their file was changed. Give another --out"
            )
        durable.write_text(file, "".join(f"{to_line(record)}\n" for record in kept))
        tokens.unlink(missing_ok=True)
    return kept, [r for r in answers if r["failed"]]


def write(folder: Path, header: str, result: Mapping[str, Any]) -> None:
    """Write the table, below ``header``, and ``result`` with its ``rows``."""
    rows: Sequence[Mapping[str, Any]] = result["rows"]
    table = f"{header}\n\n{report.table(rows)}" if rows else f"{header}\n"
    durable.write_text(folder / "evaluation.md", table)
    durable.write_text(
        folder / "evaluation.json", json.dumps(to_json_types(result), indent=2, ensure_ascii=False) + "\n"
    )


def has_table(folder: Path) -> bool:
    """Whether an evaluation has come to its end in this folder."""
    try:
        return bool(json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))["rows"])
    except (OSError, ValueError, LookupError, TypeError):  # none, or one that has begun
        return False


def unfinished(folder: Path) -> Path:
    """Where the episodes are until an evaluation has come to its end, beside those of an earlier one."""
    return folder / ".unfinished"


def publish_records(folder: Path) -> None:
    """Let the episodes of `unfinished` take the place of those in the folder."""
    for name in (EPISODES_FILE, TOKENS_FILE):
        if (written := unfinished(folder) / name).exists():  # not where the disk was full
            durable.publish(written, folder / name)
    clear_unfinished(folder)


def clear_unfinished(folder: Path) -> None:
    """Remove the episodes of an evaluation that has not come to its end."""
    shutil.rmtree(unfinished(folder), ignore_errors=True)


def set_aside(folder: Path) -> None:
    """Give what an earlier evaluation left other names, and say so."""
    if not has_table(folder):
        return
    for name in ("evaluation.json", "evaluation.md", EPISODES_FILE, TOKENS_FILE, html_report.PAGE_FILE):
        if (path := folder / name).exists():
            print(
                f"{path} of an earlier evaluation is kept as {durable.set_aside(path, 'earlier').name}", file=sys.stderr
            )


def _read_settings(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))["api"])
    except (OSError, ValueError, LookupError, TypeError):  # none, or of an evaluation that asked no API
        return {}


def _is_answer(record: Mapping[str, Any]) -> bool:
    return record["key"].split("/")[2].startswith(API_NAME)
