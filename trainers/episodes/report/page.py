"""Write report.html: runs and evaluations on one page that needs neither a server nor a network.

`write` reads folders and fills the template of ``assets/``; ``assets/report.js`` shows the data. Texts of models and tools go
into the page as compressed JSON in base64 and are shown as text, never as markup. A content security policy allows only the
page's own scripts, and no requests.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from agent_envs.tasks.qa_data import STAND_IN
from retrieval_index import durable
from retrieval_index.printable import map_texts, printable
from trainers.episodes.records import EPISODES_FILE
from trainers.episodes.report import episode_data, headline, tables
from trainers.runtime.errors import UserError
from trainers.runtime.progress import METRICS_FILE, read_metrics, to_json_types

PAGE_FILE = "report.html"
EPISODES = 5000  # at most in a page, by default
_ASSETS = Path(__file__).with_name("assets")


def write(
    sources: Sequence[str | Path], out: str | Path, *, episodes: int = EPISODES, summary: Mapping | None = None,
    unfinished: str = "", newest: int | None = None,
) -> Path:  # fmt: skip
    """Write the page ``out`` of one or several runs, evaluations, or files of episodes or metrics. Raises a UserError for a
    source that holds none of these.

    Args:
        episodes: the most episodes in the page, question by question, those of the table first; 0 for all.
        summary: the summary of a run that has not written one yet; ``unfinished`` is its progress, such as "12 of 50 updates".
        newest: read only this many bytes at the end of each file of episodes.
    """
    paths = [Path(source) for source in sources]
    parts = [
        read_part(path, summary, unfinished) | {"name": name}
        for path, name in zip(paths, _tell_apart(paths), strict=True)
    ]
    chosen = episode_data.choose([part.pop("episodes_file") for part in parts], episodes, newest)
    for source, part, summaries in zip(sources, parts, chosen.by_part, strict=True):
        if not summaries and not part["metrics"] and not part["rows"]:
            raise UserError(f"{source} holds no episode, no metrics and no table: there is nothing to show")
        for name in ("env", "split", "source") if not part["env"] else ():
            part[name] = ", ".join(dict.fromkeys(str(episode[name]) for episode in summaries if episode[name]))
    page = render(parts, list(episode_data.pack(chosen)), left_out=chosen.left_out)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    durable.write_text(Path(out), page)
    return Path(out)


def read_part(path: Path, summary: Mapping | None = None, unfinished: str = "") -> dict[str, Any]:
    """Read what the page shows of one run or evaluation, a folder or a file. Raises UserError if it holds no such data."""
    if not path.exists():
        raise UserError(f"{path} does not exist: give the folder of a run or an evaluation, or an episodes.jsonl")
    folder, names = path, ("summary.json", "evaluation.json", METRICS_FILE, EPISODES_FILE)
    if path.is_file():
        folder, files = path.parent, {METRICS_FILE if path.name.startswith("metrics") else EPISODES_FILE: path}
    else:
        files = {name: path / name for name in names if (path / name).is_file()}
    if not files and summary is None:
        raise UserError(
            f"{path} is no folder of a run or an evaluation: it holds no {', '.join(names[:-1])} or {names[-1]}"
        )
    known: Mapping = summary or _read_object(files.get("summary.json") or files.get("evaluation.json"))
    lines = read_metrics(files[METRICS_FILE]) if METRICS_FILE in files else []
    rows = [dict(row) for row in known.get("rows", ())]
    full = [str(row["name"]) for row in rows]
    short = dict(zip(full, tables.shorten(full), strict=True))
    for row in rows:
        row |= {"name": short[str(row["name"])], "agent": row["name"]}
        if to := row.get("difference_to"):
            row["difference_to"] = short.get(to, to)
    if not unfinished and known.get("api") and not rows:
        unfinished = "some of its episodes"
    if not unfinished and lines and not known and path.is_dir():
        unfinished = f"{int(lines[-1].get('step', 0)):,} updates"
    score = known.get("score") or _find_score(rows, lines)
    changed, settings = _split_settings(known)
    return {
        "folder": str(folder), "env": known.get("env", ""), "source": known.get("source", ""),
        "split": known.get("split", ""), "rows": rows, "score": score,
        "headline": headline.make_headline(known, rows, lines, score),
        "changed": changed, "settings": settings, "command": known.get("command", ""),
        "symptoms": list(known.get("symptoms", ())), "monitored": "symptoms" in known,  # unknown for a run that was killed
        "notes": _make_notes(known, rows, unfinished), "metrics": _columns(lines),
        "facts": _make_facts(known, lines), "episodes_file": files.get(EPISODES_FILE),
    }  # fmt: skip


def render(parts: Sequence[Mapping], chunks: Sequence[episode_data.Chunk], left_out: int = 0) -> str:
    """Return the page as HTML."""
    entries = [entry | {"chunk": i, "at": at} for i, c in enumerate(chunks) for at, entry in enumerate(c.entries)]
    curves = [
        {name: part[name] for name in ("name", "score", "metrics")}
        | {"symptoms": [one["update"] for one in part["symptoms"]]}
        for part in parts
    ]
    data = {"parts": curves, "episodes": entries, "outcomes": episode_data.OUTCOMES}
    scripts = [(_ASSETS / name).read_text(encoding="utf-8") for name in ("vendor/uPlot.iife.min.js", "report.js")]
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    styles = [(_ASSETS / name).read_text(encoding="utf-8") for name in ("vendor/uPlot.min.css", "report.css")]
    cleaned = [map_texts(to_json_types(dict(part)), printable) for part in parts]
    pairs = enumerate(zip(cleaned, parts, strict=True))
    shown = [own | {"table": _table(part), "number": i} for i, (own, part) in pairs]
    return _template().render(
        parts=shown, both=_table(_last_rows(parts)) if len(parts) > 1 else None, title=_title(shown),
        scripts=scripts, styles=styles, hashes=hashes, episodes=len(entries), left_out=left_out,
        data=episode_data.compress(json.dumps(map_texts(to_json_types(data), printable))),
        chunks=[chunk.bodies for chunk in chunks], tokens=[chunk.tokens for chunk in chunks],
    )  # fmt: skip


@functools.cache  # a run writes the page at each evaluation; compiling the template takes most of that time
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    return environment.get_template("report.html.jinja")


def _title(parts: Sequence[Mapping]) -> str:
    envs = list(dict.fromkeys(part["env"] for part in parts if part["env"]))
    names = [part["name"] for part in parts]
    return f"{', '.join(names)} · {', '.join(envs)}" if envs else ", ".join(names)


def _table(part: Mapping) -> dict:
    """Make the table of a part: headings and rows of cells; ``kinds`` is a second table, by kind of question."""
    rows, score = part["rows"], part["score"]
    every = [key for key in tables.list_columns(rows) if key not in ("name", f"{score}_interval")]
    columns, kinds = ([key for key in every if tables.is_kind(key) == wanted] for wanted in (False, True))
    bounds = [v for row in rows for v in (row.get(score), *(row.get(f"{score}_interval") or ())) if v is not None]
    low, high = min(0.0, *bounds, 0.0), max(1.0, *bounds, 1.0)  # a return may leave [0, 1]
    lines, lines_of_kinds = [], []
    for row in rows:
        interval, value, drawn = row.get(f"{score}_interval"), row.get(score), None
        if interval and value is not None:
            start, end, middle = ((v - low) / (high - low) for v in (*interval, value))
            drawn = {
                "left": f"{start:.2%}", "width": f"{max(end - start, 0):.2%}", "middle": f"{middle:.2%}",
                "text": f"{interval[0]:.3f} – {interval[1]:.3f}",
            }  # fmt: skip
        name, cells = printable(str(row["name"])), tables.make_cells(row, columns)
        lines.append({
            "name": name, "agent": printable(str(row.get("agent", row["name"]))), "cells": cells, "interval": drawn,
            "n": row.get("episodes"),
        })  # fmt: skip
        if row.get("kinds"):
            lines_of_kinds.append({"name": name, "cells": tables.make_cells(row, kinds)})
    return {
        "headings": tables.make_headings(columns, rows), "lines": lines, "score": tables.make_heading(score),
        "first": columns[:1] == [score],
        "kinds": {"headings": [tables.make_heading(key) for key in kinds], "lines": lines_of_kinds},
    }  # fmt: skip


def _last_rows(parts: Sequence[Mapping]) -> dict:
    """Make a table of the last row of each run, its final result."""
    own = [part for part in parts if part["rows"]]
    rows = [part["rows"][-1] | {"name": f"{part['name']}: {part['rows'][-1]['name']}"} for part in own]
    return {"rows": rows, "score": own[0]["score"] if own else "em"}


def _columns(lines: Sequence[Mapping]) -> dict[str, list[float | None]]:
    """Return metrics by name: for each line a value of six digits, or None if it has none."""
    names = dict.fromkeys(name for line in lines for name in line)
    values = {name: [line.get(name) for line in lines] for name in names}
    return {
        name: [float(f"{v:.6g}") if isinstance(v, int | float) and not isinstance(v, bool) else None for v in column]
        for name, column in values.items()
    }


def _find_score(rows: Sequence[Mapping], lines: Sequence[Mapping]) -> str:
    """Find the name of the task's primary metric if the summary does not give it."""
    in_rows = (name.removesuffix("_interval") for row in rows for name in row if name.endswith("_interval"))
    in_lines = (name[5:] for line in lines for name in line if name in ("eval/em", "eval/success", "eval/score"))
    return next(itertools.chain(in_rows, in_lines), "em")


def _make_notes(known: Mapping, rows: Sequence[Mapping], unfinished: str) -> list[str]:
    """List the caveats of a run's numbers."""
    notes = [f"Unfinished, after {unfinished}."] if unfinished else []
    if known.get("stopped_on_collapse"):
        notes.append("Training was stopped because it had collapsed.")
    if STAND_IN in str(known.get("source", "")):
        notes.append(
            f"The questions are those of MiniWiki, a stand-in: a score on it is not a score on {known.get('env', '')}."
        )
    for row in rows:
        if row.get("failed"):
            what = "A tool failed, or the API gave no answer," if row.get("problems") else "A tool failed"
            notes.append(f"{what} in {row['failed']:.1%} of the episodes of {row['name']}.")
    for row in rows:
        for problem, times in (row.get("problems") or {}).items():
            notes.append(f"{row['name']}: {printable(str(problem))} ({times:,} times).")
    return notes


def _make_facts(known: Mapping, lines: Sequence[Mapping]) -> list[tuple[str, str]]:
    """List a few facts of a run for the head of its part."""
    facts = [("updates", f"{int(lines[-1].get('step') or 0):,}")] if lines else []
    if isinstance(known.get("episodes"), int):
        facts.append(("training episodes", f"{known['episodes']:,}"))
    for name in ("seconds_cold_start", "seconds_training", "seconds"):
        if isinstance(known.get(name), int | float) and (seconds := float(known[name])):
            facts.append(("cold start" if "cold" in name else "training", headline.format_duration(seconds)))
    return [*facts, *((name, str(known[name])) for name in ("seed", "date", "version", "hardware") if name in known)]


def _split_settings(known: Mapping) -> tuple[dict, dict]:
    """Return the settings that differ from their defaults, and the others."""
    settings = {**known.get("settings", {}), **known.get("evaluation", {})}
    changed = known.get("changed", settings)  # an evaluation does not distinguish them
    return tuple({n: v for n, v in settings.items() if (n in changed) == is_so} for is_so in (True, False))  # type: ignore[return-value]


def _read_object(path: Path | None) -> dict:
    if path is None:
        return {}
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(known, dict):
        raise UserError(f"{path} is damaged: it holds no object")
    return known


def _tell_apart(paths: Sequence[Path]) -> list[str]:
    """Name each source by the end of its path, with enough folders to distinguish the sources."""
    folders = [(path.parent if path.is_file() else path).resolve() for path in paths]
    for depth in (1, 2, 3):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]


def write_beside(folder: Path, sources: Sequence[Path] = (), **options: Any) -> None:
    """Write ``folder/report.html``, by default of the folder itself; an error is only printed and does not end the run."""
    try:
        write(sources or [folder], folder / PAGE_FILE, **options)
    except Exception as error:  # no error of the report may end a training run
        print(f"Warning: {folder / PAGE_FILE} was not written: {error}", file=sys.stderr)
