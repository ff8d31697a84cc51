"""Export episodes as conversations for SFT: {"messages": […]}, the form of OpenAI and TRL.

    python -m trainers.export_episodes RUN --out good.jsonl
    python -m trainers.sft --messages good.jsonl             # learns from it

RUN is the folder of a run or of an evaluation, or an episodes.jsonl. A run keeps keep_episodes training episodes of each update.
Episodes of evaluations are exported only with --phase, because training on them leaves no held-out questions.

Each line is a conversation; duplicates and failed episodes are left out. Mistakes, and messages of the assistant that the agent
did not write, have "weight": 0. If the context was rewritten (context="window:2"), each context is a conversation, with the turns
written in it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from agent_envs.utils.view import find_file
from trainers import inputs
from trainers.cli import parse
from trainers.config import Checks
from trainers.runtime.errors import UserError


@dataclass(kw_only=True)
class Args(Checks):
    """Export episodes as conversations for SFT."""

    source: Annotated[Path | None, tyro.conf.Positional] = None
    """Folder of a run or of an evaluation, or its episodes.jsonl."""
    out: Path | None = None
    """File to write; it must not exist."""
    phase: Literal["training", "evaluation", "any"] = "training"
    """Source of the episodes. Those of evaluations are on held-out questions."""
    agent: str = ""
    """Name of one agent in the table, such as "Naive RAG"; by default the episodes of all."""
    min_score: float = 1.0
    """Lowest score of an exported episode."""

    def check_inputs(self) -> None:
        if self.source is None:
            raise UserError("give the folder of a run or of an evaluation, or an episodes.jsonl")
        try:
            find_file(self.source)
        except FileNotFoundError as error:
            raise UserError(str(error)) from None
        if self.out is None:
            raise UserError("give --out: the file to write")
        if self.out.exists():
            raise UserError(f"{self.out} exists already: give another --out")
        inputs.check_out(self.out.parent)


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "export_episodes")

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from retrieval_index import durable
from retrieval_index.printable import printable
from trainers.episodes.records import read_episodes, to_line

Message = dict[str, Any]
_KEPT = ("reasoning_content", "tool_calls", "tool_call_id", "name")


def main(args: Args) -> Path:
    """Write the file; return its path. Raises UserError if ``out`` exists, nothing is exported, or a record is malformed."""
    args.check_inputs()
    assert args.source is not None and args.out is not None, "`check_inputs` asks for them"
    file, left_out = find_file(args.source), Counter[str]()
    staging, count = args.out.with_name(f".{args.out.name}.staging"), 0
    args.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with staging.open("wb") as lines:
            for line in make_conversations(_readable(_choose(file, args, left_out), file), left_out):
                lines.write(f"{to_line(line)}\n".encode("utf-8", "replace"))
                count += 1
        reasons = ", ".join(f"{number} {reason}" for reason, number in sorted(left_out.items()))
        if not count:
            raise UserError(f"{file} has nothing to export{f': of its episodes {reasons}' if reasons else ''}")
        durable.publish(staging, args.out)
    finally:
        staging.unlink(missing_ok=True)
    print(printable(f"{args.out}: {count} conversations{f'; left out: {reasons}' if reasons else ''}"))
    return args.out


def _choose(file: Path, args: Args, left_out: Counter) -> Iterator[dict]:
    """Yield the episodes that the arguments select, and count the others by reason in ``left_out``."""
    for record in read_episodes(file):
        if args.phase != "any" and record.get("phase") != args.phase:
            left_out[f"of another phase (--phase {args.phase})"] += 1
        elif args.agent and record.get("agent") != args.agent:
            left_out[f"of other agents (--agent {args.agent!r})"] += 1
        elif record.get("failed"):
            left_out["that failed"] += 1
        elif not (record.get("score") or 0) >= args.min_score:
            left_out[f"with a score below {args.min_score:g} (--min-score)"] += 1
        else:
            yield record


def _readable(records: Iterator[dict], file: Path) -> Iterator[list[Message]]:
    """Yield the conversations of each record."""
    for record in records:
        try:
            yield from split_contexts(record)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UserError(f"{file}: {record['key']!r} is no episode as in docs/episodes.md: {error!r}") from None


def split_contexts(record: Mapping[str, Any]) -> list[list[Message]]:
    """Split an episode at rewritten contexts into conversations, each up to its last turn. Messages of the assistant that are
    mistakes, or no turn of the agent, have a ``weight`` of 0."""
    own = {turn["message"] for turn in record["turns"] if not _is_mistake(turn)}
    parts: list[list[Message]] = []
    for place, message in enumerate(record["messages"]):
        if not parts or message["role"] == "system":
            parts.append([])
        kept = {name: message[name] for name in _KEPT if message.get(name)}
        copy = {"role": str(message["role"]), "content": str(message["content"] or ""), **kept}
        parts[-1].append(copy | {"weight": 0} if copy["role"] == "assistant" and place not in own else copy)
    marked = record["messages"][0]["role"] != "system"  # then an empty system message only marks where a row begins
    for part in parts:
        if marked and part[0] == {"role": "system", "content": ""}:
            del part[0]
        while part and not _is_own(part[-1]):
            part.pop()
    return [part for part in parts if part]


def _is_mistake(turn: Mapping[str, Any]) -> bool:
    """Whether a turn is malformed or was cut, or one of its calls failed."""
    failed = any(not call["ok"] for call in turn["calls"])
    return bool(turn["invalid"] or turn.get("cut")) or failed


def make_conversations(parts: Iterator[list[Message]], left_out: Counter) -> Iterator[dict]:
    """Yield each conversation once. An empty turn, with no text and no calls, gets a ``weight`` of 0."""
    seen = set()
    for part in parts:
        part = [m | {"weight": 0} if _is_own(m) and not (m["content"] or m.get("tool_calls")) else m for m in part]
        if not any(map(_is_own, part)):
            left_out["without text or calls"] += 1
            continue
        if (line := to_line({"messages": part})) in seen:
            left_out["repeated"] += 1
            continue
        seen.add(line)
        yield {"messages": part}


def _is_own(message: Message) -> bool:
    return message["role"] == "assistant" and "weight" not in message


if __name__ == "__main__":
    main(ARGS)
