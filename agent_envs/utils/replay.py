"""Replay of recorded episodes, without a model: the turns of an episodes.jsonl, with the same or other arguments.

With the same arguments nothing may change, which checks determinism. Others show the rewards that they would have given.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_envs.integrations import hosting
from agent_envs.tool_env import ToolEnv
from agent_envs.utils.view import find_file, read_entries

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A replayed episode: its number in the file, its return and score, each as recorded and as replayed, and the changes."""

    number: int
    key: str
    returns: tuple[float, float]
    scores: tuple[float, float]
    changes: tuple[str, ...]


def replay(path: Path, kwargs: Mapping[str, Any]) -> Iterator[Replayed | str]:
    """Replay the episodes of a run, an evaluation or a file; for an episode that cannot be replayed, yield the reason.

    ``kwargs`` are arguments of the environment, which override those of the run or the evaluation.
    """
    file = find_file(path)
    arguments = {**_read_arguments(file.parent), **kwargs}
    made: dict[tuple[str, str], ToolEnv] = {}
    for entry, record in read_entries(file):
        if reason := _why_not(record):
            yield reason
            continue
        where = str(record["env"]), str(record["split"])
        if where not in made:
            made[where] = hosting.make(where[0], **{"split": where[1], **arguments})
        yield _replay_one(made[where], record, entry.number, "format" in kwargs)


def _read_arguments(folder: Path) -> dict[str, Any]:
    """Read the environment's arguments of the run, finished or not, or the evaluation in a folder; empty if it has none."""
    for file in (folder / "summary.json", folder / "evaluation.json", *folder.glob("checkpoint-*/arguments.json")):
        with suppress(OSError, ValueError, LookupError, TypeError):
            found = json.loads(file.read_text(encoding="utf-8"))
            return json.loads(found.get("settings", found)["env_kwargs"])
    return {}


def _why_not(record: Record) -> str:
    if not record["turns"]:
        return "no turns"
    if "edits" in record["metrics"]:
        return "turns of an agent program, not of the environment"
    if not any(turn["reward_terms"] for turn in record["turns"]):
        return "turns without rewards of the environment"
    return "tool failures" if record["failed"] else ""


def _replay_one(env: ToolEnv, record: Record, number: int, has_format: bool) -> Replayed:
    turns = record["turns"]
    _begin(env, record)
    own = env.format.name
    # A model may act in another one than the scripts.
    if not has_format and (format := record.get("format", own)) != own:
        env.active_env.use_format(format)
        _begin(env, record)
    changes: list[str] = []
    total, info, done = 0.0, dict[str, Any](), False
    for place, turn in enumerate(turns, 1):
        if done:
            changes.append(f"it ends after turn {place - 1} of {len(turns)}")
            break
        if place == len(turns) and record["truncated"]:
            env.fits = lambda *_: False  # truncated perhaps by the context length of its model
        observation, reward, terminated, truncated, info = env.step(turn["action"], cut=turn.get("cut", False))
        total, done = total + reward, terminated or truncated
        for name in sorted({**turn["reward_terms"], **info["reward_terms"]}):
            before, now = turn["reward_terms"].get(name, 0.0), info["reward_terms"].get(name, 0.0)
            if _differ(before, now):
                changes.append(f"turn {place}: {name} {before:.3g} -> {now:.3g}")
        if observation != turn["observation"]:
            changes.append(f"turn {place}: another observation")
    if not done:
        changes.append(f"it goes on after turn {len(turns)}")
    for name, before in record["metrics"].items():
        now = info.get(name)
        if isinstance(now, int | float) and not isinstance(now, bool) and _differ(before, float(now)):
            changes.append(f"{name} {before:.3g} -> {now:.3g}")
    score = float(info.get(env.PRIMARY_METRIC, 0.0))
    before = float(record["return"]), float(record["score"])
    return Replayed(
        number=number, key=str(record["key"]), returns=(before[0], total), scores=(before[1], score),
        changes=tuple(changes),
    )  # fmt: skip


def _begin(env: ToolEnv, record: Record) -> None:
    """Start the instance of a record, by its seed, or by the number of its question in an evaluation."""
    number, options = int(record["instance"]), dict[str, Any]()
    if env.TAKES_NOISE_SEED and record["sample"]:
        options["noise_seed"] = int(record["sample"])
    if record["phase"] == "evaluation" and env.questions is not None:
        options["question"] = number
    env.reset(seed=number, options=options)


def _differ(before: float, now: float) -> bool:
    return abs(before - now) > 1e-6


def report(path: Path, kwargs: Mapping[str, Any], write: Callable[[str], None]) -> int:
    """Write the changes of each episode and a summary; returns the number of episodes that changed."""
    replayed, left_out = list[Replayed](), Counter[str]()
    for found in replay(path, kwargs):
        if isinstance(found, str):
            left_out[found] += 1
            continue
        replayed.append(found)
        if found.changes:
            write(f"{found.number} {found.key}: {'; '.join(found.changes)}")
    why = "; ".join(f"{count} cannot be replayed ({reason})" for reason, count in left_out.most_common())
    if not replayed:
        raise ValueError(f"{path}: nothing to replay: {why or 'no episodes'}")
    changed = sum(bool(found.changes) for found in replayed)
    write(f"{changed} of {len(replayed)} episodes changed" + f"; {why}" * bool(why))
    for name in ("returns", "scores"):
        before, now = (sum(getattr(found, name)[i] for found in replayed) / len(replayed) for i in (0, 1))
        write(f"mean {name.removesuffix('s')} {before:.4g} -> {now:.4g}")
    return changed
