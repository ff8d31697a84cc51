"""Choose and pack the episodes of report.html.

Episodes about one question lie side by side, in compressed chunks. The chunks are base64, which cannot end markup early. The
page's script unpacks a chunk when one of its episodes is opened. Texts are `printable`.
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

from agent_envs.utils.view import say
from retrieval_index.printable import map_texts, printable
from trainers.episodes.records import TOKENS_FILE, read_episodes
from trainers.runtime.errors import UserError
from trainers.runtime.progress import to_json_types

_CHUNK = 48  # episodes that are unpacked together when one of them is opened
_LONGEST = 20_000  # characters shown of a message
_HEADING = 400  # characters shown of a question in the list
OUTCOMES = ("right", "invalid", "truncated", "failed")  # bits of an episode's ``flags``, from the lowest
_SUMMED_UP = (
    "key", "phase", "step", "agent", "table", "env", "split", "source",
)  # fmt: skip
_UNREADABLE = AttributeError, LookupError, TypeError, ValueError  # errors that our code raises on malformed records


@dataclass(frozen=True, slots=True)
class Chosen:
    """The episodes of a page, one entry for each part (a run or an evaluation)."""

    files: Sequence[Path | None]  # the file of its episodes; None if there is none
    by_part: list[list[dict]]  # the fields ``_SUMMED_UP`` and the question of all its episodes
    keys: list[set[str]]  # the keys of its episodes that are in the page
    newest: int | None  # as in `page.write`

    @property
    def left_out(self) -> int:
        """Number of episodes left out of the page."""
        return sum(map(len, self.by_part)) - sum(map(len, self.keys))


def choose(files: Sequence[Path | None], limit: int, newest: int | None = None) -> Chosen:
    """Choose up to ``limit`` episodes of files, by question, those of the table first; with ``newest``, the last ones."""
    by_part: list[list[dict]] = []
    order: list[tuple] = []
    for number, file in enumerate(files):
        records = read_episodes(file, newest) if file else ()
        episodes = [{name: r.get(name) for name in _SUMMED_UP} | {"question": _identify(r)} for r in records]
        behind_table = {episode["key"] for row in _behind_table(episodes).values() for episode in row}
        for place, episode in enumerate(episodes):
            question = zlib.crc32(repr(episode["question"]).encode("utf-8", "replace"))  # a hash, so the choice repeats
            rank = (episode["key"] not in behind_table, question) if newest is None else (-place,)
            order.append((*rank, number, episode["key"]))
        by_part.append(episodes)
    keys: list[set[str]] = [set() for _ in files]
    for *_, number, key in sorted(order)[: limit or None]:
        keys[number].add(key)
    return Chosen(files, by_part, keys, newest)


def _behind_table(episodes: Sequence[Mapping]) -> dict[str, list[Mapping]]:
    """Select the episodes of the closing table or, without one, of the latest evaluation, by agent."""
    agents: dict[str, dict[tuple, list[Mapping]]] = {}
    for episode in episodes:
        if episode["phase"] != "training":
            when = (bool(episode["table"]), episode["step"] or 0)
            agents.setdefault(episode["agent"], {}).setdefault(when, []).append(episode)
    return {agent: by_time[max(by_time)] for agent, by_time in agents.items()}


def _identify(record: Mapping) -> list:
    """Return the identity of a question, equal for all episodes about it."""
    return [record.get("env"), record.get("split"), record.get("instance"), record.get("question")]


# -- how they are packed -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some episodes: their entries in the list, and, compressed, the contents of opened episodes and their tokens."""

    entries: list[dict]
    bodies: str
    tokens: str


def pack(chosen: Chosen) -> Iterator[Chunk]:
    """Pack the episodes for the page; those about one question lie side by side, so shared texts compress well."""
    shown = []
    questions: dict[str, int] = {}
    for number, (file, keys) in enumerate(zip(chosen.files, chosen.keys, strict=True)):
        if not file:
            continue
        tokens = _read_tokens(file.with_name(TOKENS_FILE), keys, chosen.newest)
        for place, record in enumerate(read_episodes(file, chosen.newest)):
            if record["key"] in keys:
                question = questions.setdefault(json.dumps(_identify(record)), len(questions))
                own = tokens.get(record["key"])
                try:
                    entry, body = _make_entry(record, number, question), json.dumps(to_json_types(_make_body(record)))
                except _UNREADABLE as error:
                    raise UserError(f"{file}: {record['key']!r} is not a valid episode record: {error!r}") from None
                shown.append((question, number, place, entry | {"place": place, "has_tokens": bool(own)}, body, own))
    shown.sort(key=lambda item: item[:3])
    for start in range(0, len(shown), _CHUNK):
        _, _, _, entries, bodies, sequences = zip(*shown[start : start + _CHUNK], strict=True)
        packed = compress(f"[{','.join(own or '[]' for own in sequences)}]") if any(sequences) else ""
        yield Chunk(list(entries), compress(f"[{','.join(bodies)}]"), packed)


def _make_entry(record: Mapping, part: int, question: int) -> dict:
    """Make the entry of an episode in the list."""
    turns, text = record.get("turns") or [], str(record.get("question") or "")
    score, kind = float(record.get("score") or 0), record.get("kind") or {}
    is_so = score >= 1, any(turn.get("invalid") for turn in turns), record.get("truncated"), record.get("failed")
    also = "key", "step", "phase", "env", "split", "instance", "sample", "id", "score_name", "return"
    return map_texts({
        **{name: record.get(name) for name in also}, "part": part, "question": question, "score": score,
        "text": text if len(text) <= _HEADING else f"{text[:_HEADING]} …", "agent": record.get("agent") or "",
        "table": bool(record.get("table")), "golds": [str(gold) for gold in record.get("golds") or []][:20],
        "kind": {name: str(value) for name, value in kind.items() if value not in (None, "")},
        "turns": len(turns), "flags": sum(1 << bit for bit, so in enumerate(is_so) if so),
    }, printable)  # fmt: skip


def _make_body(record: Mapping) -> dict:
    """Make the content of an opened episode. A turn's text and results are in the messages and not repeated in the turn."""
    kept = record.get("messages") or []
    messages = [{"role": each.get("role"), "text": _cut(say(each))} for each in kept]
    turns = []
    for turn in record.get("turns") or []:
        calls = [{name: call.get(name) for name in ("tool", "arguments", "fault")} for call in turn.get("calls") or []]
        terms = {name: round(value, 5) for name, value in (turn.get("reward_terms") or {}).items() if value is not None}
        kept = {name: turn.get(name) for name in ("message", "found", "invalid", "advantage")}
        reward, where = round(float(turn.get("reward") or 0), 5), turn.get("message")
        turns.append({**kept, "calls": calls, "reward": reward, "terms": terms})
        if where is not None and where + 1 >= len(messages) and turn.get("observation"):
            turns[-1]["last"] = _cut(str(turn["observation"]))  # the observation after the last turn
    metrics = {k: round(v, 5) for k, v in (record.get("metrics") or {}).items() if isinstance(v, int | float)}
    also = ("supporting", "advantage", "prompt_tokens", "completion_tokens", "seconds", "tool_faults")
    body = {name: record.get(name) for name in also} | {"messages": messages, "turns": turns, "metrics": metrics}
    return map_texts(body, printable)


def _read_tokens(path: Path, keys: set[str], newest: int | None) -> dict[str, str]:
    """Read the token sequences of the episodes that have any, as JSON by key."""
    found = {}
    for record in read_episodes(path, newest) if path.is_file() else ():
        if record["key"] in keys:
            try:
                sequences = [_make_runs(each) for each in record.get("sequences") or []]
                found[record["key"]] = json.dumps(map_texts(sequences, printable))
            except _UNREADABLE as error:
                raise UserError(f"{path}: {record['key']!r} has invalid tokens: {error!r}") from None
    return found


def _make_runs(sequence: Mapping) -> list[list]:
    """Convert a sequence to runs: [0, shortened text, number of tokens] of tokens that the policy read, and [1, pieces, ids,
    log-probabilities, advantages] of tokens that it sampled, with None for unknown values."""
    own, pieces = [bool(value) for value in sequence["mask"]], sequence["pieces"]
    edges = [0, *(i for i in range(1, len(own)) if own[i] != own[i - 1]), len(own)]
    runs: list[list] = []
    for low, high in pairwise(edges):
        if high > low and own[low]:
            numbers = ((sequence.get(name) or [])[low:high] for name in ("logprobs", "advantages"))
            rounded = ([None if x is None else round(x, 3) for x in values] or None for values in numbers)
            runs.append([1, pieces[low:high], sequence["ids"][low:high], *rounded])
        elif high > low:
            text = "".join(pieces[low:high])
            runs.append([0, text if len(text) < 400 else f"{text[:180]} … {text[-180:]}", high - low])
    return runs


def _cut(text: str) -> str:
    """Leave out the middle of a very long text, as its end matters most."""
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]} … ({len(text) - 2 * half:,} more characters) … {text[-half:]}"


def compress(text: str) -> str:
    """Compress a text with gzip to base64, which the page's script unpacks."""
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode()
