"""Records of episodes: ``episodes.jsonl`` and, beside it, ``episode_tokens.jsonl`` (docs/episodes.md).

`record_trajectory` (for a rollout) or `record_turns` (for an agent without tokens) makes a record, an `EpisodeWriter` writes it
as a line and `read_episodes` reads it. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from retrieval_index import durable
from trainers.runtime.progress import to_json_types

EPISODES_FILE, TOKENS_FILE = "episodes.jsonl", "episode_tokens.jsonl"
_KEY = re.compile(rb'\{"key":"([^"/]*)/(\d+)/')  # the beginning of a line: its kind, and the number of updates
Pieces = Callable[[Sequence[int]], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The common fields of an agent's episodes."""

    phase: str  # "evaluation" or "training"
    agent: str  # the agent's name in the table
    name: str  # the agent's name in keys, without "/"
    env: str
    split: str
    source: str
    score: str  # the name of the primary metric
    step: int = 0  # updates before the episode; in training, the number of the update that learns from it, from 1
    in_table: bool = False  # whether the episodes belong to the closing table


@dataclass(slots=True)
class Recorder:
    """Collects the records of an agent's episodes as JSON lines: pairs of a record and its tokens, or None."""

    origin: Origin
    pieces: Pieces | None = None  # makes the texts of token ids; with None, no tokens are kept
    lines: list[tuple[str, str | None]] = field(default_factory=list)

    def add(self, record: dict, tokens: dict | None = None) -> None:
        """Add a record, and its tokens."""
        self.lines.append((to_line(record), None if tokens is None else to_line(tokens)))

    def add_trajectory(self, trajectory: Any, group: int | None = None) -> None:
        """Add an episode of a rollout. ``group``: by default the number of its question."""
        record = record_trajectory(trajectory, self.origin, group)
        self.add(record, record_tokens(trajectory, record["key"], self.pieces) if self.pieces else None)


class EpisodeWriter(contextlib.AbstractContextManager):
    """Append episodes to the files of a folder.

    If the disk fails, the writer warns once and stops writing. ``resume_from``: the number of updates of a resumed run.
    Incomplete lines, lines of later updates and those of the closing table are then dropped, with ``baselines_again`` also the
    baselines' lines. By default the files begin anew; `math.inf` drops only incomplete lines.
    """

    def __init__(self, folder: Path | str, resume_from: float | None = None, baselines_again: bool = False):
        self._files: list[Any] = []
        self.failed = False  # the disk is full, or something like it
        with self._disk():
            Path(folder).mkdir(parents=True, exist_ok=True)
            for path in (Path(folder) / EPISODES_FILE, Path(folder) / TOKENS_FILE):
                if resume_from is not None and path.exists():
                    _keep_until(path, resume_from, baselines_again)
                self._files.append(path.open("wb" if resume_from is None else "ab"))

    def write(self, records: Iterable[dict | str], tokens: Iterable[dict | str] = ()) -> None:
        """Append records, and their tokens (`record_tokens`); each is a dict, or its line."""
        with self._disk():
            for file, block in zip(self._files, (records, tokens), strict=False):  # no files after the disk has failed
                lines = [each if isinstance(each, str) else to_line(each) for each in block]
                if lines and not file.tell():
                    lines[0] = _with_types(lines[0])
                file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
                file.flush()

    def write_recorded(self, recorder: Recorder) -> None:
        """Append the records of a recorder."""
        tokens = [tokens for _, tokens in recorder.lines if tokens is not None]
        self.write([record for record, _ in recorder.lines], tokens)

    def sync(self) -> None:
        """Wait until all lines are on the disk."""
        with self._disk():
            for file in self._files:
                durable.sync(Path(file.name))

    def close(self) -> None:
        """Close the files."""
        files, self._files = self._files, []
        for file in files:
            with contextlib.suppress(OSError):  # all lines are already flushed
                file.close()

    def __exit__(self, *error) -> None:
        self.close()

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            print(f"Warning: episodes are no longer recorded: {error}", file=sys.stderr, flush=True)
            self.failed = True
            self.close()


def read_episodes(path: str | Path, newest: int | None = None) -> Iterator[dict]:
    """Read the complete records of a file, or the lines of its tokens.

    ``newest``: read only that number of the file's last bytes.
    """
    with open(path, "rb") as lines:
        if newest is not None:
            lines.seek(max(0, lines.seek(0, os.SEEK_END) - newest))
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict) and "key" in record:
                    yield record


def record_trajectory(trajectory: Any, origin: Origin, group: int | None = None) -> dict:
    """Make the record of a `trainers.trajectory.Trajectory`; ``group`` is by default the number of the question."""
    t, rows = trajectory, trajectory.rows
    by_turn: dict[int, list[float]] = {}  # advantages of the turn's sampled tokens
    for row, advantages in zip(rows if t.advantages else (), t.advantages, strict=True):
        for turn, own, advantage in zip(row.turns, row.mask, advantages.tolist(), strict=True):
            if own:
                by_turn.setdefault(turn, []).append(advantage)
    completion = sum(sum(row.mask) for row in rows)
    return make_record(
        origin, t.instance, t.messages,
        [turn | {"advantage": _mean(by_turn.get(number, []))} for number, turn in enumerate(t.turns)], t.info,
        group=group, advantage=_mean([each for own in by_turn.values() for each in own]), truncated=t.truncated,
        failed=t.failed, tool_faults=t.tool_faults, completion_tokens=completion,
        prompt_tokens=sum(len(row.ids) for row in rows) - completion,
    ) | {"return": float(t.episode_return)}  # fmt: skip


def record_turns(turns: Sequence[Mapping[str, Any]], origin: Origin, instance: int) -> dict:
    """Make the record of an agent without tokens, from its turns as `agent_envs.utils.scripts.roll_out_many` returns them."""
    first, last, placed = turns[0], turns[-1], []
    messages = [{"role": "system", "content": first["instructions"]}]
    for turn in turns:
        *read, said = turn["chat"]
        messages += read
        placed.append({**turn, **turn["recorded"], "message": len(messages)})
        messages.append(said)
    faults = sum(int(turn["tool_faults"]) for turn in turns)
    info = {name: value for name, value in last.items() if name != "reward"}
    return make_record(
        origin, {**first["instance"], "instance": instance}, messages, placed, info,
        truncated=not last["terminated"], failed=faults > 0, tool_faults=faults,
    )  # fmt: skip


def make_record(
    origin: Origin, instance: Mapping[str, Any], messages: list[dict[str, str]], turns: Sequence[Mapping[str, Any]],
    info: Mapping[str, Any], *, group: int | None = None, advantage: float | None = None, truncated: bool = False,
    failed: bool = False, tool_faults: int = 0, prompt_tokens: int = 0, completion_tokens: int = 0,
    seconds: float | None = None,
) -> dict:  # fmt: skip
    """Make the record of an episode; every record has the same fields in the same order. ``instance`` and ``turns`` are as in
    `trainers.trajectory.Trajectory`; ``info`` is the environment's last one."""
    number, sample = int(instance["instance"]), int(instance.get("sample", 0))
    share = number if group is None else group
    what, name = "table" if origin.in_table else origin.phase, origin.name
    name += f"-{share}" if origin.phase == "training" else ""
    golds = instance.get("golds") or info.get("golds") or ([info["gold"]] if "gold" in info else [])
    golds = golds if isinstance(golds, list | tuple) else [golds]
    metrics = {name: float(value) for name, value in info.items() if _is_number(value) and name != "tool_faults"}
    return {
        "key": f"{what}/{origin.step}/{name}/{number}/{sample}",
        "phase": origin.phase, "step": origin.step, "agent": origin.agent, "table": origin.in_table,
        "env": origin.env, "split": origin.split, "source": origin.source,
        "instance": number, "sample": sample, "group": share, "id": instance.get("id"),
        "question": instance.get("question", ""), "golds": [str(gold) for gold in golds],
        "kind": dict(instance.get("kind") or {}), "supporting": list(instance.get("supporting") or ()),
        "format": instance.get("format", ""),
        "messages": messages, "turns": [_make_turn(turn) for turn in turns],
        "metrics": metrics, "score_name": origin.score, "score": metrics.get(origin.score, 0.0),
        "return": float(sum(turn["reward"] for turn in turns)), "advantage": advantage,
        "terminated": not truncated, "truncated": truncated, "failed": failed, "tool_faults": tool_faults,
        "prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "seconds": seconds,
    }  # fmt: skip


def record_tokens(trajectory: Any, key: str, pieces: Pieces) -> dict:
    """Make the line of an episode's tokens: ids, action mask, log-probabilities when sampled, advantages and texts."""
    rows = []
    for number, row in enumerate(trajectory.rows):
        advantages = trajectory.advantages[number].tolist() if trajectory.advantages else None
        rows.append({
            "ids": row.ids, "mask": [int(own) for own in row.mask],
            "logprobs": [round(value, 4) for value in row.logprobs],
            "advantages": advantages and [round(value, 4) for value in advantages], "pieces": pieces(row.ids),
        })  # fmt: skip
    return {"key": key, "sequences": rows}


def make_pieces(tokenizer: Any) -> Pieces:
    """Return a function that gives each token's text as it reads after the previous token, including a word's leading space."""

    @lru_cache(2**16)
    def piece(before: int | None, id: int) -> str:
        alone = tokenizer.decode([id])
        if before is None:
            return alone
        head, both = tokenizer.decode([before]), tokenizer.decode([before, id])
        return both[len(head) :] if both.startswith(head) and "\ufffd" not in head else alone

    return lambda ids: [piece(before, id) for before, id in zip([None, *ids[:-1]], ids, strict=True)]


def to_line(value: dict) -> str:
    """Convert an object to a JSON line without a newline; numpy numbers become Python's, NaN and infinities become null."""
    options: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    try:
        return json.dumps(value, default=lambda other: other.tolist(), **options)
    except ValueError:
        return json.dumps(to_json_types(value), **options)


def _make_turn(turn: Mapping[str, Any]) -> dict:
    return {
        "message": turn["message"], "action": turn["action"], "calls": turn["calls"],
        "observation": turn["next_observation"], "found": turn["found"], "invalid": turn["invalid"],
        "cut": bool(turn.get("cut")),
        "reward": float(turn["reward"]), "reward_terms": {n: float(v) for n, v in turn["reward_terms"].items()},
        "advantage": turn.get("advantage"),
    }  # fmt: skip


def _is_number(value: Any) -> bool:
    value = value.item() if hasattr(value, "item") else value
    return isinstance(value, int | float) and not isinstance(value, bool)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _with_types(line: str) -> str:
    """Set missing numbers of a file's first line to 0: readers such as `datasets` infer the types from this line."""
    record = json.loads(line)
    for sequence in record.get("sequences", ()):
        sequence["advantages"] = sequence["advantages"] or [0.0] * len(sequence["ids"])
    if "sequences" not in record:
        record["seconds"] = record.get("seconds") or 0.0
        for each in (record, *record.get("turns", ())):
            each["advantage"] = each.get("advantage") or 0.0
    return to_line(record)


def _keep_until(path: Path, step: float, baselines_again: bool) -> None:
    """Drop incomplete lines, and those that a run resumed after ``step`` updates will write again."""
    staging = path.with_name(f".{path.name}.staging")
    with path.open("rb") as lines, staging.open("wb") as kept:
        whole = (line for line in lines if line.endswith(b"}\n") and _is_kept(line, step, baselines_again))
        if (first := next(whole, None)) is not None:
            kept.write(_with_types(first.decode("utf-8")).encode("utf-8", "replace") + b"\n")
        kept.writelines(whole)
    durable.publish(staging, path)


def _is_kept(line: bytes, step: float, baselines_again: bool) -> bool:
    if not (found := _KEY.match(line)):
        return False
    is_in_table, done = found[1] == b"table", int(found[2])
    return step == math.inf or (done <= step and not (is_in_table and (done or baselines_again)))
