"""Episodes as `episodes.jsonl` holds them, of scripted agents in real environments."""

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

from agent_envs.utils.scripts import roll_out_many
from trainers.episodes.records import Origin, record_turns
from trainers.factory import make_envs

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    "\x1b[2J\x1b]0;pwned\x07 \u202egnp.exe \x00 {{ 7*7 }} \ud800"
)
SUMMARY = {
    "env": "AgentR1/HotpotQA-v0", "source": "STAND-IN for hotpotqa: miniwiki:validation-0", "score": "em",
    "seed": 3, "episodes": 640,
    "rows": [
        {"name": "Naive RAG", "em": 0.1, "em_interval": [0.05, 0.15], "f1": 0.2, "failed": 0.0, "episodes": 50},
        {"name": "Trained", "em": 0.5, "em_interval": [0.4, 0.6], "f1": 0.6, "failed": 0.1, "episodes": 50},
    ],
    "settings": {"lr": 0.5, "env_kwargs": '{"data": "<b>"}'}, "evaluation": {"eval_every": 2}, "command": "python -m x --a '<i>'",
    "symptoms": [{"update": 7, "name": "entropy collapsed", "message": "0.1 < 0.2", "stop": True}],
    "changed": ["lr"], "date": "2026-11-27 08:30 UTC", "version": "0.1", "hardware": "2 CPU cores",
    "em_cold_start": 0.1, "em_trained": 0.5, "seconds_training": 90.0, "stopped_on_collapse": True,
}  # fmt: skip


def roll_out(env: str, agents: Mapping[str, str], count: int) -> list[dict]:
    """The records of so many instances of an environment: of each the episodes of all ``agents``, scripts by name."""
    envs = make_envs(env, "{}", "validation", count)
    task, records = envs.envs[0], []
    source = task.task.source if hasattr(task, "task") else "generated"
    for name, script in agents.items():
        origin = Origin(
            phase="evaluation", agent=name, name=name, env=env, split="validation", source=source, score=task.PRIMARY_METRIC,
        )  # fmt: skip
        played = roll_out_many(envs, list(range(count)), task.SCRIPTS[script])
        records.append([record_turns(turns, origin, number) for number, turns in enumerate(played)])
    envs.close()
    return [record for about_one in zip(*records, strict=True) for record in about_one]


def tokens_of(record: dict) -> dict:
    """Tokens for a record, a word each: log-probabilities and advantages by chance, for actions alone."""
    rng, names = random.Random(record["key"]), ("ids", "mask", "logprobs", "advantages", "pieces")
    sequence: dict[str, list] = {name: [] for name in names}
    for message in record["messages"]:
        own = message["role"] == "assistant"
        for word in f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n".split(" "):
            numbers = (-rng.expovariate(1.5), rng.gauss(0, 1)) if own else (0.0, 0.0)
            for name, value in zip(names, (rng.randrange(50_000), own, *numbers, f" {word}"), strict=True):
                sequence[name].append(value)
    return {"key": record["key"], "sequences": [sequence]}


def write(folder: Path, records: Iterable[dict], tokens: bool = False) -> Path:
    """Write ``episodes.jsonl``, and with ``tokens`` the side file; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    records = list(records)
    (folder / "episodes.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if tokens:
        lines = (json.dumps(tokens_of(record)) + "\n" for record in records)
        (folder / "episode_tokens.jsonl").write_text("".join(lines))
    return folder
