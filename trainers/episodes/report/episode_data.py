"""The episodes of report.html: which of them go into the page, and how they are packed.

Those about one question lie side by side, compressed in chunks as base64, where no markup can end early; the script of the
page unpacks the chunk of an episode that is opened. What could move a cursor or turn the order of what is read is shown by
number (`printable`).
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from agent_envs import scoring
from retrieval_index.printable import printable
from trainers.episodes.records import TOKENS_FILE, read_episodes
from trainers.runtime.errors import UserError
from trainers.runtime.progress import to_json_types

_CHUNK = 48  # episodes that are unpacked together when one of them is opened
_LONGEST = 20_000  # characters of a message that are shown
_HEADING = 400  # of a question, in the list
OUTCOMES = ("right", "invalid", "truncated", "failed")  # bits of an episode's ``flags``, from the lowest


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
    something to put beside each other. Where only the ``newest`` bytes are read, the last ones."""
    by_part: list[list[dict]] = []
    for file in files:
        kept = (
            "key", "phase", "step", "agent", "table", "env", "split", "source", "score", "score_name", "metrics", "tool_faults",
            "failed",
        )  # fmt: skip
        by_part.append([])
        for record in read_episodes(file, newest) if file else ():
            by_part[-1].append({name: record.get(name) for name in kept} | {"question": _identity(record)})
    order: list[tuple] = []
    for number, episodes in enumerate(by_part if newest is None else ()):
        behind_table = {episode["key"] for row in _behind_table(episodes).values() for episode in row}
        for episode in episodes:
            question = zlib.crc32(repr(episode["question"]).encode("utf-8", "replace"))  # the same choice each time
            order.append((episode["key"] not in behind_table, question, number, episode["key"]))
    if newest is not None:  # of a run that goes on
        order = [(-i, n, e["key"]) for n, episodes in enumerate(by_part) for i, e in enumerate(episodes)]
    order.sort()
    keys: list[set[str]] = [set() for _ in files]
    for *_, number, key in order[: limit or None]:
        keys[number].add(key)
    return Chosen(files, by_part, keys, newest)


def rows_of(episodes: Sequence[Mapping]) -> list[dict]:
    """The rows of a table by the episodes alone."""
    rows = []
    for agent, played in _behind_table(episodes).items():
        score, by_question = str(played[0]["score_name"]), dict[str, list[float]]()
        for episode in played:
            by_question.setdefault(repr(episode["question"]), []).append(float(episode["score"] or 0))
        scores = [
            sum(own) / len(own) for own in by_question.values()
        ]  # of several attempts the mean: questions are drawn
        found: list[Mapping] = [episode["metrics"] or {} for episode in played]
        also = [name for name in ("f1", "support_recall", "turns", "calls") if all(name in own for own in found)]
        rows.append({
            "name": agent, score: sum(scores) / len(scores), f"{score}_interval": scoring.bootstrap_interval(scores),
            **{name: sum(float(own[name] or 0) for own in found) / len(found) for name in also},
            "failed": sum(bool(episode["failed"] or episode["tool_faults"]) for episode in played) / len(played),
            "episodes": len(played),
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
                    entry, body = _entry(record, number, question), json.dumps(to_json_types(_body(record)))
                except (TypeError, ValueError, AttributeError, LookupError) as error:
                    raise UserError(f"{file}: {record['key']!r} is no episode as we write them: {error!r}") from None
                entry |= {"place": place, "has_tokens": own is not None}
                shown.append((question, number, place, entry, body, own))
    shown.sort(key=lambda item: item[:3])
    for start in range(0, len(shown), _CHUNK):
        _, _, _, entries, bodies, own_tokens = zip(*shown[start : start + _CHUNK], strict=True)
        yield Chunk(list(entries), compress(f"[{','.join(bodies)}]"), _compress_tokens(own_tokens))


def _entry(record: Mapping, part: int, question: int) -> dict:
    """An episode in the list."""
    turns = record.get("turns") or []
    score = float(record.get("score") or 0)
    is_so = (
        score >= 1, any(turn.get("invalid") for turn in turns), bool(record.get("truncated")), bool(record.get("failed"))
    )  # fmt: skip
    kind = {name: value for name, value in (record.get("kind") or {}).items() if value not in (None, "")}
    return clean({
        "key": record["key"], "part": part, "question": question, "text": _shorten(str(record.get("question") or "")),
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
    return clean({name: record.get(name) for name in also} | {"messages": messages, "turns": turns, "metrics": metrics})


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
                raise UserError(f"{path}: {record['key']!r} has no tokens as we write them: {error!r}") from None
            found[record["key"]] = json.dumps(clean(runs))
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


def _shorten(text: str) -> str:
    return text if len(text) <= _HEADING else f"{text[:_HEADING]} …"


def _cut(text: str) -> str:
    """Without the middle of a very long text: what was said in the end is what counts."""
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]} … ({len(text) - 2 * half:,} more characters) … {text[-half:]}"


def clean(value: Any) -> Any:
    """The value with every text in it `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(name)): clean(item) for name, item in value.items()}
    return [clean(item) for item in value] if isinstance(value, list | tuple) else value


def compress(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode()


def _compress_tokens(sequences: Sequence[str | None]) -> str:
    return compress(f"[{','.join(own or '[]' for own in sequences)}]") if any(sequences) else ""
