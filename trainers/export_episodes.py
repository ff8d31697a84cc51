"""Hand episodes to others: conversations for SFT, or preference pairs.

    python -m trainers.export_episodes RUN --out good.jsonl                          # {"messages": […]}, of OpenAI and TRL
    python -m trainers.export_episodes RUN --format completions --out good.jsonl     # TRL's {"prompt": […], "completion": […]}
    python -m trainers.export_episodes RUN --format preferences --out pairs.jsonl    # TRL's {"prompt", "chosen", "rejected"}

RUN is the folder of a run or of an evaluation, or an episodes.jsonl. A run keeps the training episodes that keep_episodes says.
Of evaluations nothing is exported unless --phase says so: who learns from them has no held-out questions left.

- messages: a conversation a line, each once. Messages of the assistant that the agent did not write itself have "weight": 0.
  python -m trainers.sft --messages good.jsonl learns from it.
- completions: a turn a line, and all before it as its prompt, so that nothing but the agent's own words is learned.
- preferences: of each group of attempts at one question, the best against the worst by return, where they differ.

Where the context was rewritten (context="window:2"), each context is a conversation of its own, with the turns written in it;
such episodes make no pairs. Pairs leave out episodes in which a tool failed.
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
    """Write episodes in a format of others."""

    source: Annotated[Path | None, tyro.conf.Positional] = None
    """The folder of a run or of an evaluation, or its episodes.jsonl."""
    out: Path | None = None
    """The file to write; it must not exist."""
    format: Literal["messages", "completions", "preferences"] = "messages"
    """What a line is: a conversation, a turn with all before it, or a pair of attempts."""
    phase: Literal["training", "evaluation", "any"] = "training"
    """Which episodes. Those of evaluations are about held-out questions."""
    agent: str = ""
    """Only episodes of this agent, by its name in the table; "Naive RAG" and scripted agents are in evaluations as well."""
    min_score: float | None = None
    """Only episodes with at least this score; of pairs, the chosen ones. By default 1 for messages and completions, and any score
    else."""

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

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from retrieval_index import durable
from retrieval_index.printable import printable
from trainers.episodes.records import read_episodes, to_line

Message = dict[str, Any]
_Episodes = Iterator[tuple[dict, list[list[Message]]]]  # records, and their conversations


def main(args: Args) -> Path:
    """Write the file; return its path. Raises UserError if ``out`` exists, or there are no such episodes or others' format."""
    args.check_inputs()
    assert args.source is not None and args.out is not None, "`check_inputs` asks for them"
    file, left_out = find_file(args.source), Counter[str]()
    convert, what = {
        "messages": (make_conversations, "conversations"), "completions": (make_completions, "turns"),
        "preferences": (make_pairs, "pairs"),
    }[args.format]  # fmt: skip
    staging, count = args.out.with_name(f".{args.out.name}.staging"), 0
    args.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with staging.open("wb") as lines:
            for line in convert(_readable(_choose(file, args, left_out), file), left_out):
                lines.write(f"{to_line(line)}\n".encode("utf-8", "replace"))
                count += 1
        reasons = ", ".join(f"{number} {reason}" for reason, number in sorted(left_out.items()))
        if not count:
            raise UserError(f"{file} has nothing to export{f': of its episodes {reasons}' if reasons else ''}")
        durable.publish(staging, args.out)
    finally:
        staging.unlink(missing_ok=True)
    print(printable(f"{args.out}: {count} {what}{f'; left out: {reasons}' if reasons else ''}"))
    return args.out


def _choose(file: Path, args: Args, left_out: Counter) -> Iterator[dict]:
    """The episodes that the arguments name; why others are not among them is counted."""
    lowest = args.min_score
    if lowest is None and args.format in ("messages", "completions"):
        lowest = 1.0
    for record in read_episodes(file):
        if args.phase != "any" and record.get("phase") != args.phase:
            left_out[f"of another phase (--phase {args.phase})"] += 1
        elif args.agent and record.get("agent") != args.agent:
            left_out[f"of other agents (--agent {args.agent!r})"] += 1
        elif lowest is not None and args.format != "preferences" and not (record.get("score") or 0) >= lowest:
            left_out[f"with a score below {lowest:g} (--min-score)"] += 1
        else:
            yield record | {"may_be_chosen": lowest is None or (record.get("score") or 0) >= lowest}


def _readable(records: Iterator[dict], file: Path) -> _Episodes:
    """Each record, and its contexts."""
    for record in records:
        try:
            yield record, split_contexts(record)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UserError(f"{file}: {record['key']!r} is no episode as in docs/episodes.md: {error!r}") from None


# -- the formats -----------------------------------------------------------------------------------------------------


def split_contexts(record: Mapping[str, Any]) -> list[list[Message]]:
    """Split an episode at rewritten contexts into conversations, each up to its last turn.

    Messages of the assistant that are no turn of the agent have a ``weight`` of 0; calls of an API are ``tool_calls`` again.
    """
    own = {turn["message"] for turn in record["turns"]}
    parts: list[list[Message]] = []
    for place, message in enumerate(record["messages"]):
        if not parts or message["role"] == "system":
            parts.append([])
        part, copy = parts[-1], {"role": str(message["role"]), "content": str(message["content"] or "")}
        if copy["role"] == "assistant":
            copy = _with_calls(copy["content"]) or copy
            part.append(copy if place in own else copy | {"weight": 0})
        elif copy["role"] == "tool":
            part.append(copy | _answered_call(part))
        else:
            part.append(copy)
    for part in parts:
        while part and not _is_own(part[-1]):
            part.pop()
    return [part for part in parts if part]


def make_conversations(episodes: _Episodes, left_out: Counter) -> Iterator[dict]:
    """Each conversation once. A turn of no words, such as an end of turn alone, is none to be taught."""
    seen = set()
    for part in itertools.chain.from_iterable(parts for _, parts in episodes):
        part = [m | {"weight": 0} if _is_own(m) and not (m["content"] or m.get("tool_calls")) else m for m in part]
        if not any(map(_is_own, part)):
            left_out["without a word"] += 1
            continue
        if (line := to_line({"messages": part})) in seen:
            left_out["alike"] += 1
            continue
        seen.add(line)
        yield {"messages": part}


def make_completions(episodes: _Episodes, left_out: Counter) -> Iterator[dict]:
    """Each turn of each conversation, behind what the agent had read."""
    for line in make_conversations(episodes, left_out):
        part = line["messages"]
        plain = [{name: value for name, value in message.items() if name != "weight"} for message in part]
        for place, message in enumerate(part):
            if _is_own(message):
                yield {"prompt": plain[:place], "completion": [plain[place]]}


def make_pairs(episodes: _Episodes, left_out: Counter) -> Iterator[dict]:
    """Of each group the attempt with the highest return, and that with the lowest."""
    groups: dict[tuple, list[tuple[float, bool, list[Message]]]] = {}
    for record, parts in episodes:
        if record.get("failed"):
            left_out["in which a tool failed"] += 1
        elif len(parts) != 1:
            left_out["whose context was rewritten"] += 1
        else:
            name = tuple(record.get(part) for part in ("phase", "table", "step", "agent", "env", "group"))
            groups.setdefault(name, []).append((float(record["return"]), record["may_be_chosen"], parts[0]))
    for group in groups.values():
        chosen = max((attempt for attempt in group if attempt[1]), key=lambda attempt: attempt[0], default=None)
        rejected = min(group, key=lambda attempt: attempt[0])
        if chosen is None or chosen[0] <= rejected[0]:
            left_out["in groups without a better and a worse attempt"] += len(group)
            continue
        better, worse = chosen[2], rejected[2]
        begin = next(place for place, message in enumerate(better) if _is_own(message))
        if better[:begin] != worse[:begin]:
            left_out["in groups whose questions differ"] += len(group)
            continue
        yield {"prompt": better[:begin], "chosen": better[begin:], "rejected": worse[begin:]}


def _is_own(message: Message) -> bool:
    return message["role"] == "assistant" and "weight" not in message


def _with_calls(content: str) -> Message | None:
    """A message of an API that was kept as JSON, for its calls. What a model wrote may look like one and be none."""
    with contextlib.suppress(ValueError, RecursionError, LookupError, TypeError, AttributeError):
        message = json.loads(content)
        calls, words = message["tool_calls"], message.get("content") or ""
        texts = [text for c in calls for text in (c["id"], c["function"]["name"], c["function"]["arguments"])]
        if message["role"] == "assistant" and texts and all(isinstance(text, str) for text in (words, *texts)):
            return {"role": "assistant", "content": words, "tool_calls": calls}
    return None


def _answered_call(before: list[Message]) -> Message:
    """The id of the call that the next result answers: results follow in the order of the calls."""
    results = list(itertools.takewhile(lambda message: message["role"] == "tool", reversed(before)))
    caller = before[-1 - len(results)] if len(results) < len(before) else {}
    calls = caller.get("tool_calls") or []
    return {"tool_call_id": calls[len(results)]["id"]} if len(results) < len(calls) else {}


if __name__ == "__main__":
    main(ARGS)
