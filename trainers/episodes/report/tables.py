"""Write the table of evaluations, as Markdown and in the terminal, and summary.json."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from retrieval_index import durable
from retrieval_index.printable import printable
from trainers.runtime.progress import to_json_types

SUMMARY_FILE = "summary.json"
HEADINGS = {
    "name": "Agent", "em": "EM", "em_interval": "95% CI", "success": "Success", "score": "Score",
    "success_interval": "95% CI", "score_interval": "95% CI", "pass_at_k": "pass@k",
    "pass_at_k_interval": "95% CI", "difference": "Difference", "difference_interval": "95% CI", "f1": "F1",
    "support_recall": "Support recall", "turns": "Turns", "calls": "Calls", "invalid": "Invalid turns", "failed": "Failed",
    "prompt_tokens": "Tokens in", "completion_tokens": "Tokens out",
}  # fmt: skip
_INTERVAL = "_interval"
_KINDS = "kinds/"
_DIGITS = {"turns": 2, "calls": 2}  # 3 for anything else
_FAULTS = ("invalid", "failed")  # columns that are left out if all values are 0
_WRAPPED = ("Agent", "Support recall", "Invalid turns")  # columns that may be wrapped in a narrow terminal


def shorten(names: Sequence[str]) -> list[str]:
    """Shorten absolute paths of checkpoints in names to the end of the path; names that would become equal stay unchanged."""

    def cut(found: re.Match) -> str:
        path = Path(found[0])
        return "/".join(path.parts[-2:] if re.fullmatch(r"best|start|checkpoint-\d+", path.name) else path.parts[-1:])

    short = [re.sub(r"(?<![^\s(])/[^\s()]+", cut, name) for name in names]
    return [new if short.count(new) == 1 else name for new, name in zip(short, names, strict=True)]


def table(rows: Sequence[Mapping]) -> str:
    """Format evaluations as a Markdown table of `list_columns`; a value that is missing or None is a dash."""
    rows, columns = _shorten_rows(rows), list_columns(rows)
    lines = [make_headings(columns, rows), ["---"] + ["---:"] * (len(columns) - 1)]
    lines += [[cell.replace("|", r"\|").replace("\n", " ") for cell in make_cells(row, columns)] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _shorten_rows(rows: Sequence[Mapping]) -> list[dict]:
    names = shorten([str(row["name"]) for row in rows])
    return [{**row, "name": name} for row, name in zip(rows, names, strict=True)]


def print_table(rows: Sequence[Mapping], console: Console | None = None) -> None:
    """Print the table in the terminal. Columns that do not fit come in further tables below, which repeat the names."""
    rows, console, columns = _shorten_rows(rows), console or Console(), list_columns(rows)
    headers, cells = (
        make_headings(columns, rows),
        [[printable(cell) for cell in make_cells(row, columns)] for row in rows],
    )
    for block in _fit(columns, headers, cells, console.width):
        grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for i in block:
            wrapped = headers[i] in _WRAPPED
            grid.add_column(headers[i], justify="right" if i else "left", overflow="fold", no_wrap=not wrapped)
        for row in cells:
            grid.add_row(*(Text(row[i]) for i in block))
        console.print(grid)


def _fit(columns: Sequence[str], headers: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Split columns into blocks no wider than ``width``. Each repeats the first column; an interval stays with its value."""

    def measure(i: int) -> int:
        header = max(map(len, headers[i].split())) if headers[i] in _WRAPPED else len(headers[i])
        return 1 + max([header, *(len(row[i]) for row in cells)])

    name = min(measure(0), width // 3)  # longer names are folded
    blocks, left = [[0]], width - name - 2
    for i in range(1, len(columns)):
        if columns[i].endswith("_interval"):
            continue
        group = [i] + [i + 1] * (columns[i + 1 : i + 2] == [f"{columns[i]}_interval"])
        needed = sum(map(measure, group))
        if needed > left and len(blocks[-1]) > 1:
            blocks, left = [*blocks, [0]], width - name - 2
        blocks[-1] += group
        left -= needed
    return blocks


def write_summary(folder: str | Path, summary: Mapping) -> Path:
    """Write `folder/summary.json` atomically; numbers that are not finite become null."""
    path = Path(folder) / SUMMARY_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write_text(path, json.dumps(to_json_types(dict(summary)), indent=2, allow_nan=False) + "\n")
    return path


def list_columns(rows: Sequence[Mapping]) -> list[str]:
    """List the columns for which any row has a value: the name, the task's own measures, `HEADINGS` and "kinds/<kind>"."""
    common = [k for k in HEADINGS if any(row.get(k) is not None and (k not in _FAULTS or row[k]) for row in rows)]
    given = dict.fromkeys(key for row in rows for key in row if row[key] is not None)
    intervals = [key for key in given if key.endswith(_INTERVAL) and key not in HEADINGS]
    own = [key for interval in intervals for key in (interval.removesuffix(_INTERVAL), interval)]
    kinds = dict.fromkeys(f"{_KINDS}{kind}" for row in rows for kind in row.get("kinds") or ())
    rest = [key for key in common[1:] if key not in own]
    return [*common[:1], *own, *rest, *kinds]  # the name comes first


def is_kind(column: str) -> bool:
    """Whether a column holds the score of one kind of question."""
    return column.startswith(_KINDS)


def make_headings(columns: Sequence[str], rows: Sequence[Mapping]) -> list[str]:
    """Make the headings of the columns; with several rollouts per question, the score's heading gets avg@k."""
    samples = max((row.get("samples", 1) for row in rows), default=1)
    means = ("em", "success", "score") if samples > 1 else ()
    return [make_heading(key).replace("@k", f"@{samples}") + f" avg@{samples}" * (key in means) for key in columns]


def make_heading(column: str) -> str:
    """Make the heading of a column; for a kind of questions, its name."""
    if column not in HEADINGS and column.endswith(_INTERVAL):
        return "95% CI"
    kind = column.removeprefix(_KINDS)
    return HEADINGS.get(column) or {"yes or no": "Yes/no"}.get(kind, kind.capitalize())


def make_cells(row: Mapping, columns: Sequence[str]) -> list[str]:
    """Format the cells of a row; a missing value is a dash."""
    flat = {**row, **{f"{_KINDS}{kind}": score for kind, score in (row.get("kinds") or {}).items()}}
    return ["–" if flat.get(key) is None else _cell(flat[key], key) for key in columns]


def _cell(value, key: str) -> str:
    if isinstance(value, str):
        return value
    if key == "difference":
        return f"{value:+.3f}"
    if key == "difference_interval":  # a dash could be read as a minus sign
        return f"{value[0]:+.3f} to {value[1]:+.3f}"
    if key.endswith("_tokens"):
        return f"{value:,}"
    return f"{value[0]:.3f}–{value[1]:.3f}" if isinstance(value, tuple | list) else f"{value:.{_DIGITS.get(key, 3)}f}"
