"""report.html: runs and evaluations as one page that needs nothing else, neither a server nor a network.

The page holds the table, the curves, the settings, the monitor's words and the episodes. `write` reads what a folder holds
and fills the template of ``page/``; ``page/report.js`` shows it.

Texts of episodes come from models and tools. They go into the page as compressed JSON in base64, where no markup can end
early, and the script shows them as text, never as markup. What could move a cursor or turn the order of what is read is
shown by number (`printable`). A content security policy lets the page's own scripts run and nothing be fetched.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shlex
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2

from agent_envs import scoring
from retrieval_index import durable
from retrieval_index.printable import printable
from trainers.runs import report
from trainers.runs.episodes import EPISODES_FILE, TOKENS_FILE, read_episodes
from trainers.runs.logger import METRICS_FILE, read_metrics, to_json_types

PAGE_FILE = "report.html"
EPISODES = 5000  # in a page, unless more are asked for
_CHUNK = 48  # episodes that are unpacked together when one of them is opened
_LONGEST = 20_000  # characters of a message that are shown
_PAGE = Path(__file__).with_name("page")
_OUTCOMES = ("right", "invalid", "truncated", "failed")  # bits of an episode's ``flags``, from the lowest


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
    chosen = choose([part.pop("episodes_file") for part in parts], episodes, newest)
    for source, part, summaries in zip(sources, parts, chosen.by_part, strict=True):
        if not summaries and not part["metrics"] and not part["rows"]:
            raise ValueError(f"{source} holds no episode, no metrics and no table: there is nothing to show")
        if not part["rows"] and (rows := rows_of(summaries)):
            part |= {"rows": rows, "score": _score_of(rows, ())}
        for name in ("env", "split", "source") if not part["env"] else ():
            part[name] = ", ".join(dict.fromkeys(str(episode[name]) for episode in summaries if episode[name]))
    page = render(parts, list(pack(chosen)), left_out=chosen.left_out)
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
        raise ValueError(f"{path} does not exist: give the folder of a run or an evaluation, or an episodes.jsonl")
    if not files and summary is None:
        raise ValueError(
            f"{path} is no folder of a run or an evaluation: it holds no summary.json, evaluation.json, "
            f"{METRICS_FILE} or {EPISODES_FILE}"
        )
    told: Mapping = summary or _read_object(files.get("summary.json") or files.get("evaluation.json"))
    lines = read_metrics(files[METRICS_FILE]) if METRICS_FILE in files else []
    rows = [dict(row) for row in told.get("rows", ())]
    if not unfinished and lines and not told and path.is_dir():
        unfinished = f"{int(lines[-1].get('step', 0)):,} updates"
    return {
        "folder": str(folder), "env": told.get("env", ""), "source": told.get("source", ""),
        "split": told.get("split", ""), "rows": rows, "score": told.get("score") or _score_of(rows, lines),
        "settings": {**told.get("settings", {}), **told.get("evaluation", {})}, "command": told.get("command", ""),
        "symptoms": list(told.get("symptoms", ())), "monitored": _is_monitored(told, lines),
        "notes": _notes(told, rows, unfinished), "metrics": _columns(lines),
        "facts": _facts(told, lines), "episodes_file": files.get(EPISODES_FILE),
    }  # fmt: skip


# -- which episodes ------------------------------------------------------------------------------------------------


class Chosen:
    """The episodes of a page.

    Attributes:
        files: of each part, where its episodes are; None where it has none.
        keys: of each part, those of its episodes that are in the page.
        by_part: of each part, ``agent``, ``step``, ``phase``, ``score`` and other numbers of all its episodes.
        left_out: how many are not in the page.
        newest: as in `write`.
    """

    def __init__(
        self, files: Sequence[Path | None], by_part: list[list[dict]], keys: list[set[str]], newest: int | None
    ):
        self.files, self.by_part, self.keys, self.newest = files, by_part, keys, newest
        self.left_out = sum(map(len, by_part)) - sum(map(len, keys))


def choose(files: Sequence[Path | None], limit: int, newest: int | None = None) -> Chosen:
    """Which episodes of these files are shown: those of the latest evaluations first, and whole questions, so that there is
    something to put beside each other."""
    by_part: list[list[dict]] = []
    for file in files:
        kept = (
            "key",
            "phase",
            "step",
            "agent",
            "table",
            "env",
            "split",
            "source",
            "score",
            "score_name",
            "metrics",
            "tool_faults",
        )
        by_part.append([])
        for record in read_episodes(file, newest) if file else ():
            by_part[-1].append({name: record.get(name) for name in kept} | {"question": _identity(record)})
    order = []
    for number, episodes in enumerate(by_part):
        behind_table = {episode["key"] for row in _behind_table(episodes).values() for episode in row}
        for episode in episodes:
            question = zlib.crc32(repr(episode["question"]).encode("utf-8", "replace"))  # the same choice each time
            order.append((episode["key"] not in behind_table, question, number, episode["key"]))
    order.sort()
    keys: list[set[str]] = [set() for _ in files]
    for *_, number, key in order[: limit or None]:
        keys[number].add(key)
    return Chosen(files, by_part, keys, newest)


def rows_of(episodes: Sequence[Mapping]) -> list[dict]:
    """The rows of a table by the episodes alone."""
    rows = []
    for agent, played in _behind_table(episodes).items():
        score, scores = str(played[0]["score_name"]), [float(episode["score"] or 0) for episode in played]
        found: list[Mapping] = [episode["metrics"] or {} for episode in played]
        also = [name for name in ("f1", "support_recall", "turns", "calls") if all(name in own for own in found)]
        rows.append({
            "name": agent, score: sum(scores) / len(scores), f"{score}_interval": scoring.bootstrap_interval(scores),
            **{name: sum(float(own[name] or 0) for own in found) / len(found) for name in also},
            "failed": sum(bool(episode["tool_faults"]) for episode in played) / len(played), "episodes": len(played),
        })  # fmt: skip
    return rows


def _behind_table(episodes: Sequence[Mapping]) -> dict[str, list[Mapping]]:
    """By agent, in the order of the file, the episodes of the closing table; where there is none yet, those of the latest
    evaluation."""
    agents: dict[str, dict[tuple, list[Mapping]]] = {}
    for episode in episodes:
        if episode["phase"] != "training":
            when = (bool(episode["table"]), episode["step"] or 0)
            agents.setdefault(episode["agent"], {}).setdefault(when, []).append(episode)
    return {agent: played[max(played)] for agent, played in agents.items()}


def _identity(record: Mapping) -> list:
    """The same for all episodes about one question."""
    return [record.get("env"), record.get("split"), record.get("instance"), record.get("question")]


# -- how they are packed -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some episodes: what the list shows and filters by; compressed, what is shown of opened ones, and their tokens."""

    entries: list[dict]
    bodies: str
    tokens: str


def pack(chosen: Chosen) -> Iterator[Chunk]:
    """The episodes as they go into the page. Those about one question lie side by side, which is where compression finds
    what they share."""
    shown = []
    questions: dict[str, int] = {}
    for number, (file, keys) in enumerate(zip(chosen.files, chosen.keys, strict=True)):
        if not file:
            continue
        tokens = _tokens(file.with_name(TOKENS_FILE), keys, chosen.newest)
        for place, record in enumerate(read_episodes(file, chosen.newest)):
            if record["key"] in keys:
                question = questions.setdefault(json.dumps(_identity(record)), len(questions))
                own = tokens.get(record["key"])
                try:
                    entry, body = _entry(record, number, question), json.dumps(_body(record))
                except (TypeError, ValueError, AttributeError, LookupError) as error:
                    raise ValueError(f"{file}: {record['key']!r} is no episode as we write them: {error!r}") from None
                entry |= {"place": place, "has_tokens": own is not None}
                shown.append((question, number, place, entry, body, own))
    shown.sort(key=lambda item: item[:3])
    for start in range(0, len(shown), _CHUNK):
        _, _, _, entries, bodies, own_tokens = zip(*shown[start : start + _CHUNK], strict=True)
        yield Chunk(list(entries), _compress(f"[{','.join(bodies)}]"), _compress_tokens(own_tokens))


def _entry(record: Mapping, part: int, question: int) -> dict:
    """An episode in the list."""
    turns = record.get("turns") or []
    score = float(record.get("score") or 0)
    is_so = (
        score >= 1, any(turn.get("invalid") for turn in turns), bool(record.get("truncated")), bool(record.get("failed"))
    )  # fmt: skip
    kind = {name: value for name, value in (record.get("kind") or {}).items() if value not in (None, "")}
    return _clean({
        "key": record["key"], "part": part, "question": question, "text": str(record.get("question") or "")[:400],
        "agent": record.get("agent") or "", "table": bool(record.get("table")), "step": record.get("step"),
        "phase": record.get("phase"),
        "env": record.get("env"), "split": record.get("split"), "instance": record.get("instance"),
        "sample": record.get("sample"), "id": record.get("id"), "golds": [str(g) for g in record.get("golds") or []][:20],
        "kind": {name: str(value) for name, value in kind.items()}, "score": score, "score_name": record.get("score_name"),
        "return": record.get("return"), "turns": len(turns), "flags": sum(1 << bit for bit, so in enumerate(is_so) if so),
    })  # fmt: skip


def _body(record: Mapping) -> dict:
    """What is shown of an opened episode. A turn's text and results stand in the messages and are not held twice."""
    messages = [
        {"role": message.get("role"), "text": _cut(str(message.get("content") or ""))}
        for message in record.get("messages") or []
    ]
    turns = []
    for turn in record.get("turns") or []:
        calls = [{name: call.get(name) for name in ("tool", "arguments", "fault")} for call in turn.get("calls") or []]
        terms = {name: round(value, 5) for name, value in (turn.get("reward_terms") or {}).items() if value is not None}
        kept = {name: turn.get(name) for name in ("message", "found", "invalid", "advantage")}
        reward = round(float(turn.get("reward") or 0), 5)
        turns.append({**kept, "calls": calls, "reward": reward, "terms": terms})
        where = turn.get("message")
        if where is not None and where + 1 >= len(messages) and turn.get("observation"):
            turns[-1]["last"] = _cut(str(turn["observation"]))  # what came back after the model's last words
    metrics = {k: round(v, 5) for k, v in (record.get("metrics") or {}).items() if isinstance(v, int | float)}
    also = ("supporting", "advantage", "prompt_tokens", "completion_tokens", "seconds", "tool_faults")
    return _clean(
        {name: record.get(name) for name in also} | {"messages": messages, "turns": turns, "metrics": metrics}
    )


def _tokens(path: Path, keys: set[str], newest: int | None) -> dict[str, str]:
    """By key, the token sequences of those episodes that have any, as JSON."""
    if not path.is_file():
        return {}
    found = {}
    for record in read_episodes(path, newest):
        if record["key"] in keys:
            try:
                runs = [_runs(sequence) for sequence in record.get("sequences") or []]
            except (TypeError, ValueError, AttributeError, LookupError) as error:
                raise ValueError(f"{path}: {record['key']!r} has no tokens as we write them: {error!r}") from None
            found[record["key"]] = json.dumps(_clean(runs))
    return found


def _runs(sequence: Mapping) -> list[list]:
    """A sequence as the page shows it: [0, text, number of tokens] of what the policy read, the middle of a long text left
    out, and [1, pieces, ids, log-probabilities, advantages] of what it sampled, None for what is not known."""
    own, pieces = [bool(value) for value in sequence["mask"]], sequence["pieces"]
    edges = [0, *(i for i in range(1, len(own)) if own[i] != own[i - 1]), len(own)]
    runs: list[list] = []
    for low, high in pairwise(edges):
        if high > low and own[low]:
            numbers = (_rounded((sequence.get(name) or [])[low:high]) for name in ("logprobs", "advantages"))
            runs.append([1, pieces[low:high], sequence["ids"][low:high], *numbers])
        elif high > low:
            text = "".join(pieces[low:high])
            runs.append([0, text if len(text) < 400 else f"{text[:180]} … {text[-180:]}", high - low])
    return runs


def _rounded(values: Sequence[float | None]) -> list[float | None] | None:
    return [None if value is None else round(value, 3) for value in values] or None


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text) - _LONGEST:,} more characters)"


def _clean(value: Any) -> Any:
    """The value with every text in it `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(name)): _clean(item) for name, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list | tuple) else value


# -- the page ------------------------------------------------------------------------------------------------------


def render(parts: Sequence[Mapping], chunks: Sequence[Chunk], left_out: int = 0) -> str:
    """The page as text."""
    entries = [entry | {"chunk": i, "at": at} for i, c in enumerate(chunks) for at, entry in enumerate(c.entries)]
    curves = [{"name": part["name"], "score": part["score"], "metrics": part["metrics"]} for part in parts]
    for curve, part in zip(curves, parts, strict=True):
        curve["symptoms"] = [symptom["update"] for symptom in part["symptoms"]]
    data = {"parts": curves, "episodes": entries, "outcomes": _OUTCOMES}
    scripts = [(_PAGE / name).read_text(encoding="utf-8") for name in ("vendor/uPlot.iife.min.js", "report.js")]
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    styles = [(_PAGE / name).read_text(encoding="utf-8") for name in ("vendor/uPlot.min.css", "report.css")]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PAGE), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    shown = [
        _clean(to_json_types(dict(part))) | {"table": _table(part), "number": i} for i, part in enumerate(parts)
    ]  # fmt: skip
    return environment.get_template("report.html.jinja").render(
        parts=shown, both=_table(_last_rows(parts)) if len(parts) > 1 else None, title=_title(shown),
        scripts=scripts, styles=styles, hashes=hashes, episodes=len(entries), left_out=left_out,
        data=_compress(json.dumps(_clean(to_json_types(data)))),
        chunks=[chunk.bodies for chunk in chunks], tokens=[chunk.tokens for chunk in chunks],
    )  # fmt: skip


def _compress(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode()


def _compress_tokens(sequences: Sequence[str | None]) -> str:
    return _compress(f"[{','.join(own or '[]' for own in sequences)}]") if any(sequences) else ""


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
    headings = [report.heading(key) for key in columns]
    return {
        "headings": headings,
        "lines": lines,
        "score": report.HEADINGS.get(score, score),
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
    if source.startswith("miniwiki") and env and "MiniWiki" not in env:
        notes.append(f"The questions are those of MiniWiki: a score on the stand-in is not a score on {env}.")
    notes += [
        f"A tool broke in {row['failed']:.1%} of the episodes of {row['name']}." for row in rows if row.get("failed")
    ]
    return notes


def _is_monitored(told: Mapping, lines: Sequence[Mapping]) -> bool:
    return "symptoms" in told or any(name.startswith("monitor/") for line in lines for name in line)


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
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(told, dict):
        raise ValueError(f"{path} is damaged: it holds no object")
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
