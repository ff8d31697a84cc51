"""report.html: runs and evaluations as one page that needs nothing else, neither a server nor a network.

The page holds the table, the curves, the settings, the monitor's words and the episodes. `write` reads what a folder holds
and fills the template of ``page/``; ``page/report.js`` shows it.

Texts of episodes come from models and tools. They go into the page as compressed JSON in base64, where no markup can end
early, and the script shows them as text, never as markup. What could move a cursor or turn the order of what is read is
shown by number (`printable`). A content security policy lets the page's own scripts run and nothing be fetched.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from agent_envs.tasks.benchmark import STAND_IN
from retrieval_index import durable
from retrieval_index.printable import printable
from trainers.episodes.records import EPISODES_FILE
from trainers.episodes.report import episode_data
from trainers.episodes.report import tables as report
from trainers.runtime.errors import UserError
from trainers.runtime.progress import METRICS_FILE, read_metrics, to_json_types

PAGE_FILE = "report.html"
EPISODES = 5000  # in a page, unless more are asked for
_PAGE = Path(__file__).with_name("page")


def write(
    sources: Sequence[str | Path], out: str | Path, *, episodes: int = EPISODES, summary: Mapping | None = None,
    unfinished: str = "", newest: int | None = None,
) -> Path:  # fmt: skip
    """Write the page of one or several runs, evaluations or files of episodes.

    Args:
        sources: folders of runs or evaluations, or files of episodes or metrics.
        out: the page; a file of that name is replaced in one step.
        episodes: how many at most: those behind the table come first, then those of as many questions as fit, whole. 0 is
            all.
        summary: of a run that has not written its own yet.
        unfinished: how far that run is, such as "12 of 50 updates".
        newest: of each file of episodes, read this many bytes at its end alone.

    Raises:
        ValueError: a source holds neither a table nor metrics nor episodes.
    """
    parts: list[dict] = [read_part(Path(source), summary, unfinished) for source in sources]
    names = _tell_apart([Path(source) for source in sources])
    for part, name in zip(parts, names, strict=True):
        part["name"] = name
    chosen = episode_data.choose([part.pop("episodes_file") for part in parts], episodes, newest)
    for source, part, summaries in zip(sources, parts, chosen.by_part, strict=True):
        if not summaries and not part["metrics"] and not part["rows"]:
            raise UserError(f"{source} holds no episode, no metrics and no table: there is nothing to show")
        if not part["rows"] and (rows := episode_data.rows_of(summaries)):
            part |= {"rows": rows, "score": _score_of(rows, ())}
        for name in ("env", "split", "source") if not part["env"] else ():
            part[name] = ", ".join(dict.fromkeys(str(episode[name]) for episode in summaries if episode[name]))
    page = render(parts, list(episode_data.pack(chosen)), left_out=chosen.left_out)
    durable.write_text(Path(out), page)
    return Path(out)


def read_part(path: Path, summary: Mapping | None = None, unfinished: str = "") -> dict[str, Any]:
    """What a folder or a file says of one run or evaluation, for the page.

    Returns:
        ``rows`` of the table ([] where only the episodes know), ``env``, ``source``, ``score``, ``settings``, ``command``,
        ``symptoms``, ``notes`` (what the reader should know before believing a number), ``metrics`` by column, and
        ``episodes_file`` (None where there is none).

    Raises:
        ValueError: nothing of that is there.
    """
    folder = path.parent if path.is_file() else path
    files = {name: folder / name for name in ("summary.json", "evaluation.json", METRICS_FILE, EPISODES_FILE)}
    if path.is_file():
        known = METRICS_FILE if path.name.startswith("metrics") else EPISODES_FILE
        files = {known: path}
    files = {name: file for name, file in files.items() if file.is_file()}
    if not path.exists():
        raise UserError(f"{path} does not exist: give the folder of a run or an evaluation, or an episodes.jsonl")
    if not files and summary is None:
        raise UserError(
            f"{path} is no folder of a run or an evaluation: it holds no summary.json, evaluation.json, "
            f"{METRICS_FILE} or {EPISODES_FILE}"
        )
    told: Mapping = summary or _read_object(files.get("summary.json") or files.get("evaluation.json"))
    lines = read_metrics(files[METRICS_FILE]) if METRICS_FILE in files else []
    rows = [dict(row) for row in told.get("rows", ())]
    if not unfinished and told.get("api") and not rows:
        unfinished = "some of its episodes"
    if not unfinished and lines and not told and path.is_dir():
        unfinished = f"{int(lines[-1].get('step', 0)):,} updates"
    return {
        "folder": str(folder), "env": told.get("env", ""), "source": told.get("source", ""),
        "split": told.get("split", ""), "rows": rows, "score": told.get("score") or _score_of(rows, lines),
        "settings": {**told.get("settings", {}), **told.get("evaluation", {})}, "command": told.get("command", ""),
        "symptoms": list(told.get("symptoms", ())), "monitored": "symptoms" in told,  # not known of a run that was killed
        "notes": _notes(told, rows, unfinished), "metrics": _columns(lines),
        "facts": _facts(told, lines), "episodes_file": files.get(EPISODES_FILE),
    }  # fmt: skip


def render(parts: Sequence[Mapping], chunks: Sequence[episode_data.Chunk], left_out: int = 0) -> str:
    """The page as text."""
    entries = [entry | {"chunk": i, "at": at} for i, c in enumerate(chunks) for at, entry in enumerate(c.entries)]
    curves = [{"name": part["name"], "score": part["score"], "metrics": part["metrics"]} for part in parts]
    for curve, part in zip(curves, parts, strict=True):
        curve["symptoms"] = [symptom["update"] for symptom in part["symptoms"]]
    data = {"parts": curves, "episodes": entries, "outcomes": episode_data.OUTCOMES}
    scripts = [(_PAGE / name).read_text(encoding="utf-8") for name in ("vendor/uPlot.iife.min.js", "report.js")]
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    styles = [(_PAGE / name).read_text(encoding="utf-8") for name in ("vendor/uPlot.min.css", "report.css")]
    shown = [
        episode_data.clean(to_json_types(dict(part))) | {"table": _table(part), "number": i} for i, part in enumerate(parts)
    ]  # fmt: skip
    return _template().render(
        parts=shown, both=_table(_last_rows(parts)) if len(parts) > 1 else None, title=_title(shown),
        scripts=scripts, styles=styles, hashes=hashes, episodes=len(entries), left_out=left_out,
        data=episode_data.compress(json.dumps(episode_data.clean(to_json_types(data)))),
        chunks=[chunk.bodies for chunk in chunks], tokens=[chunk.tokens for chunk in chunks],
    )  # fmt: skip


@functools.cache  # it is written at each evaluation, and to compile it takes most of that
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PAGE), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    return environment.get_template("report.html.jinja")


def _title(parts: Sequence[Mapping]) -> str:
    envs = list(dict.fromkeys(part["env"] for part in parts if part["env"]))
    names = [part["name"] for part in parts]
    return f"{', '.join(names)} · {', '.join(envs)}" if envs else ", ".join(names)


def _table(part: Mapping) -> dict:
    """The table of a part: headings, and rows with cells; the interval is drawn on a scale that fits all rows. ``kinds`` is a
    second one, of the score by kind of question."""
    rows, score = part["rows"], part["score"]
    every = [key for key in report.columns_of(rows) if key not in ("name", f"{score}_interval")]
    columns, kinds = ([key for key in every if report.is_kind(key) == wanted] for wanted in (False, True))
    bounds = [v for row in rows for v in (row.get(score), *(row.get(f"{score}_interval") or ())) if v is not None]
    low, high = min(0.0, *bounds, 0.0), max(1.0, *bounds, 1.0)  # a return may leave [0, 1]
    lines = []
    for row in rows:
        interval, value = row.get(f"{score}_interval"), row.get(score)
        drawn = None
        if interval and value is not None:
            start, end, middle = ((v - low) / (high - low) for v in (*interval, value))
            drawn = {
                "left": f"{start:.2%}", "width": f"{max(end - start, 0):.2%}", "middle": f"{middle:.2%}",
                "text": f"{interval[0]:.3f} – {interval[1]:.3f}",
            }  # fmt: skip
        cells = report.cells_of(row, columns)
        lines.append({"name": printable(str(row["name"])), "cells": cells, "interval": drawn, "n": row.get("episodes")})
    return {
        "headings": report.headings_of(columns, rows),
        "lines": lines,
        "score": report.heading(score),
        "first": columns[:1] == [score],
        "kinds": {
            "headings": [report.heading(key) for key in kinds],
            "lines": [
                {"name": line["name"], "cells": report.cells_of(row, kinds)}
                for row, line in zip(rows, lines, strict=True)
                if row.get("kinds")
            ],
        },
    }


def _last_rows(parts: Sequence[Mapping]) -> dict:
    """Of several runs, what each of them came to: the last row of its table."""
    rows = [
        part["rows"][-1] | {"name": f"{part['name']}: {part['rows'][-1]['name']}"} for part in parts if part["rows"]
    ]
    return {"rows": rows, "score": next((part["score"] for part in parts if part["rows"]), "em")}


def _columns(lines: Sequence[Mapping]) -> dict[str, list[float | None]]:
    """Metrics by name: a value for each line, None where it has none."""
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: [_short(line.get(name)) for line in lines] for name in names}


def _short(value: Any) -> float | None:
    return float(f"{value:.6g}") if isinstance(value, int | float) and not isinstance(value, bool) else None


def _score_of(rows: Sequence[Mapping], lines: Sequence[Mapping]) -> str:
    """The name of the task's measure, where nobody says it."""
    for row in rows:
        for name in row:
            if name.endswith("_interval"):
                return name.removesuffix("_interval")
    return next(
        (name[5:] for line in lines for name in line if name in ("eval/em", "eval/success", "eval/score")), "em"
    )


def _notes(told: Mapping, rows: Sequence[Mapping], unfinished: str) -> list[str]:
    """What to know before believing a number of this run."""
    notes = [f"Unfinished, after {unfinished}."] if unfinished else []
    if told.get("stopped_on_collapse"):
        notes.append("Training was stopped because it had collapsed.")
    env, source = str(told.get("env", "")), str(told.get("source", ""))
    if STAND_IN in source:
        notes.append(f"The questions are those of MiniWiki, a stand-in: a score on it is not a score on {env}.")
    notes += [
        f"{'A tool broke, or the API gave no answer,' if row.get('problems') else 'A tool broke'} in {row['failed']:.1%} of the "
        f"episodes of {row['name']}."
        for row in rows
        if row.get("failed")
    ]
    notes += [
        f"{row['name']}: {printable(str(problem))} ({times:,} times)."
        for row in rows
        for problem, times in (row.get("problems") or {}).items()
    ]
    return notes


def _facts(told: Mapping, lines: Sequence[Mapping]) -> list[tuple[str, str]]:
    """A few figures of a run for its head."""
    facts = []
    if lines:
        facts.append(("updates", f"{int(lines[-1].get('step') or 0):,}"))
    if isinstance(told.get("episodes"), int):
        facts.append(("training episodes", f"{told['episodes']:,}"))
    for name, label in (
        ("seconds_cold_start", "cold start"),
        ("seconds_training", "training"),
        ("seconds", "training"),
    ):
        if isinstance(told.get(name), int | float) and told[name]:
            facts.append((label, _duration(float(told[name]))))
    return [*facts, *([("seed", str(told["seed"]))] if "seed" in told else [])]


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _read_object(path: Path | None) -> dict:
    if path is None:
        return {}
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(told, dict):
        raise UserError(f"{path} is damaged: it holds no object")
    return told


def _tell_apart(paths: Sequence[Path]) -> list[str]:
    """A name for each source: the end of its path, as much of it as tells them apart."""
    folders = [(path.parent if path.is_file() else path).resolve() for path in paths]
    for depth in (1, 2, 3):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]


def typed_command() -> str:
    """What was typed to start this process, without what looks like a secret."""
    words, hidden = ["python", *sys.orig_argv[1:]], False
    for i, word in enumerate(words):
        name, given, _ = word.partition("=")
        words[i], hidden = ("..." if hidden else word), False
        if re.fullmatch(r"--?[\w-]*(key|token|secret|password)", name, re.IGNORECASE):
            words[i], hidden = (f"{name}=..." if given else word), not given
    return shlex.join(words)


def write_beside(folder: Path, sources: Sequence[Path] = (), **options: Any) -> None:
    """Write ``folder/report.html``, by default of the folder itself; what goes wrong is said, and ends no run."""
    try:
        write(sources or [folder], folder / PAGE_FILE, **options)
    except Exception as error:  # whatever it is: what was learned is worth more than its picture
        print(f"Warning: {folder / PAGE_FILE} was not written: {error}", file=sys.stderr)
