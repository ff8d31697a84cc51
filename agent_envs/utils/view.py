"""Episodes in a terminal: ``python -m agent_envs view RUN`` reads the episodes.jsonl of a run or of an evaluation.

It prints the list, or one episode as a conversation. All text comes from models and tools, so it passes through `printable`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from retrieval_index.printable import printable

EPISODES_FILE = "episodes.jsonl"
FOLDED_LINES, FOLDED_CHARACTERS = 3, 240  # what is shown of a long result


@dataclass(frozen=True, slots=True)
class Entry:
    """An episode in the list: its number in the file, from 1, and what the list shows of it."""

    number: int
    key: str
    title: str
    outcomes: frozenset[str]
    score: float
    turns: int


def find_file(path: Path) -> Path:
    """Find the file of episodes: the path itself, or the one in a folder. Raises FileNotFoundError if there is none."""
    file = path / EPISODES_FILE if path.is_dir() else path
    if file.is_file():
        return file
    runs = sorted(str(found.parent) for found in path.glob(f"*/{EPISODES_FILE}")) if path.is_dir() else []
    several = f": give one of {', '.join(runs[:8])}" if runs else ": give the folder of a run or of an evaluation"
    raise FileNotFoundError(f"there is no {file}{several}")


def read_entries(file: Path, outcome: str = "all", text: str = "") -> Iterator[tuple[Entry, dict[str, Any]]]:
    """Yield the episodes of a file with this outcome that contain ``text``, in either case, each with its record. Lines that a
    killed run left incomplete are skipped."""
    number = 0
    with file.open("rb") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and "key" in record:
                number += 1
                entry = _entry(record, number)
                if outcome in entry.outcomes and (not text or _holds(record, text.lower())):
                    yield entry, record


def view(path: Path, episode: str = "", outcome: str = "all", text: str = "", unfold: bool = False) -> None:
    """Print the list of the episodes of a file or a folder, or one episode, by its number in the file or its key.

    Only episodes with this ``outcome`` ("all", "right", "wrong", "invalid", "truncated", "failed") that contain ``text`` count.

    Raises:
        OSError: if there is no such file.
        ValueError: if the file holds no episode, or not the requested one.
    """
    file, console, count = find_file(path), Console(highlight=False), 0
    for entry, record in read_entries(file, outcome, text):
        count += 1
        if not episode:
            console.print(_row(entry), soft_wrap=True)
        elif episode in (entry.key, str(entry.number)):
            console.print(show_episode(record, entry, unfold))
            return
    if not count and outcome == "all" and not text:
        raise ValueError(f"{file} holds no episode: give the folder of a run, or its episodes.jsonl")
    if episode:
        raise ValueError(f"{file} has no episode {episode!r} among the {count} looked at: give its number or key")
    if not count:
        print(f"{file} holds no such episode", file=sys.stderr)


def show_episode(record: Mapping[str, Any], entry: Entry, unfold: bool = False) -> RenderableType:
    """An episode as a conversation: what the agent read and wrote, and under each turn its calls, evidence and reward."""
    try:
        return Group(*_header(record, entry), show_conversation(record, unfold))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{entry.key!r} is not an episode in the format of docs/episodes.md: {error!r}") from error


def _header(record: Mapping[str, Any], entry: Entry) -> Iterator[RenderableType]:
    place = [_clean(record.get("env")), _clean(record.get("agent")), f"step {record.get('step')}", _clean(entry.key)]
    yield Rule(Text(f"Episode {entry.number}", "bold"), style="cyan")
    yield Text(" · ".join(place), "dim")
    score = f"{_clean(record.get('score_name'))} {entry.score:.3g} · return {_number(record.get('return'))}"
    yield Text.assemble(_mark(entry), f" {score}")
    if golds := record.get("golds"):
        yield Text.assemble(("gold ", "dim"), _clean(" | ".join(map(str, golds))))
    if supporting := record.get("supporting"):
        turns = enumerate(record.get("turns") or (), 1)
        found = {title: number for number, turn in turns for title in turn.get("found") or ()}
        words = [f"✓ {name} (turn {found[name]})" if name in found else f"✗ {name}" for name in map(str, supporting)]
        yield Text.assemble(("evidence ", "dim"), _clean(" · ".join(words)))


def show_conversation(record: Mapping[str, Any], unfold: bool = False) -> Group:
    """Show an episode as a conversation, with the reward of each turn."""
    return Group(*_list_messages(record, unfold))


def _list_messages(record: Mapping[str, Any], unfold: bool) -> Iterator[RenderableType]:
    messages = list(record.get("messages") or ())
    numbered = enumerate(record.get("turns") or (), 1)
    turns: dict[Any, tuple[int, Mapping[str, Any]]] = {turn.get("message"): (number, turn) for number, turn in numbered}
    first_turn = min((place for place in turns if place is not None), default=len(messages))
    for place, message in enumerate(messages):
        role, content = str(message.get("role")), str(message.get("content") or "")
        if role == "assistant":
            number, turn = turns.get(place, (0, {}))
            name = f"Turn {number}" if number else "Assistant"
            yield Text(f"\n{name}", "bold magenta" if number else "bold")
            yield Padding(Text(_clean(say(message))), (0, 0, 0, 2))
            yield from _annotations(turn)
            if place + 1 >= len(messages) and turn.get("observation"):
                yield Text("\nReturned after the last turn", "bold")
                yield _folded(str(turn["observation"]), unfold)
        else:
            name = "Returned" if place > first_turn and role in ("user", "tool") else _clean(role).capitalize()
            if role == "system" and place:
                name += ": the context was rewritten, the model saw only what follows"
            yield Text(f"\n{name}", "bold blue")
            yield _folded(content, unfold or (role == "user" and place < first_turn))


def _annotations(turn: Mapping[str, Any]) -> Iterator[Text]:
    for call in turn.get("calls") or ():
        fault = ("  the tool failed", "bold red") if call.get("fault") else ""
        yield Text.assemble(("  → ", "cyan"), (_clean(f"{call.get('tool')} {call.get('arguments')}"), "cyan"), fault)
    if turn.get("invalid"):
        yield Text("  ✗ malformed turn", "red")
    for title in turn.get("found") or ():
        yield Text(f"  ✓ evidence: {_clean(title)}", "green")
    if turn:
        paid = (turn.get("reward_terms") or {}).items()
        terms = ", ".join(f"{_clean(name)} {value:+.3g}" for name, value in paid if value)
        advantage = "" if turn.get("advantage") is None else f" · advantage {turn['advantage']:+.3g}"
        yield Text(f"  reward {_number(turn.get('reward'))}{f' ({terms})' if terms else ''}{advantage}", "yellow")


def _folded(content: str, unfold: bool) -> RenderableType:
    text = _clean(content)
    shown = "\n".join(text.split("\n")[:FOLDED_LINES])[:FOLDED_CHARACTERS]
    left = len(text) - len(shown)
    if unfold or left < FOLDED_CHARACTERS // 4:  # the note about hidden text takes space as well
        return Padding(Text(text), (0, 0, 0, 2))
    return Padding(Text.assemble(shown, (f"… {left:,} more characters", "dim italic")), (0, 0, 0, 2))


def say(message: Mapping[str, Any]) -> str:
    """A message as one text: its reasoning, its content and its calls."""
    thought = f"<think>{message['reasoning_content']}</think>" if message.get("reasoning_content") else ""
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [f"{function['name']} {function['arguments']}" for function in functions]
    return "\n".join(filter(None, [thought, str(message.get("content") or ""), *calls]))


def _row(entry: Entry) -> Text:
    word, style = _mark(entry)
    turns = f"{entry.turns} turn{'s' * (entry.turns != 1)}"
    rest = f" {entry.score:5.2f} {turns:>8}  {entry.title}"
    return Text.assemble((f"{entry.number:6} ", "dim"), (f"{word:17}", style), rest)


def _mark(entry: Entry) -> tuple[str, str]:
    rest = [name for name in ("failed", "invalid", "truncated") if name in entry.outcomes]
    word, style = ("right", "green") if "right" in entry.outcomes else ("wrong", "red")
    return f"{'✓' if word == 'right' else '✗'} {' '.join([word, *rest])}", style


def _entry(record: Mapping[str, Any], number: int) -> Entry:
    turns = record.get("turns") if isinstance(record.get("turns"), list) else []
    score = record.get("score") if isinstance(record.get("score"), int | float) else 0.0
    invalid = any(isinstance(turn, dict) and turn.get("invalid") for turn in turns)  # type: ignore[union-attr]
    is_so = {"invalid": invalid, "truncated": record.get("truncated"), "failed": record.get("failed")}
    outcomes = {"all", "right" if score >= 1 else "wrong", *(name for name, so in is_so.items() if so)}  # type: ignore
    question = " ".join(_clean(record.get("question")).split())
    title = f"{question[:200]} ({_clean(record.get('agent'))}, step {_clean(record.get('step'))})"
    return Entry(number, str(record["key"]), title, frozenset(outcomes), float(score), len(turns))  # type: ignore


def _holds(value: Any, text: str) -> bool:
    if isinstance(value, Mapping):
        return any(_holds(item, text) for item in value.values())
    if isinstance(value, list):
        return any(_holds(item, text) for item in value)
    return isinstance(value, str) and text in value.lower()


def _clean(value: Any) -> str:
    return printable("" if value is None else str(value)).expandtabs(4)


def _number(value: Any) -> str:
    return f"{float(value or 0):+.3g}"
