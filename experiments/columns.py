"""What an agent scores in each column of a comparison's table: played once, question by question, and kept."""

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

from agent_envs.vector import ToolVectorEnv
from experiments.recipe import EnvConfig
from retrieval_index import durable
from trainers.checkpoints import checkpoint, lock
from trainers.engines.transformers_engine import TransformersEngine
from trainers.evaluation import evaluator
from trainers.factory import make_envs
from trainers.models.loading import episodes_at_once
from trainers.models.policy import Policy
from trainers.runtime import retry
from trainers.runtime.progress import to_json_types

Columns = Mapping[str, tuple[EnvConfig, int]]  # by name: what is played, and how many questions of it
Player = Callable[[ToolVectorEnv, list[int]], list[dict]]  # plays numbered questions; one record for each
SCORES = ("em", "f1", "score", "support_recall")  # kept for each question beside the means, where a task has them
_ALSO_KEPT = ("substring_em", "turns", "calls", "prediction", "golds", "tool_faults")  # of a script's episodes


class NotThere(Exception):
    """A result that a report would show has not been made yet; the message says which."""


def evaluate_columns(
    title: str, columns: Columns, max_new_tokens: int, folder: Path, identity: str, player: Callable[[], Player] | None,
    data: Mapping[str, str] | None = None,
) -> dict[str, evaluator.Row]:  # fmt: skip
    """Evaluate an agent on the columns of the table: by column, one row, with the scores of its ``questions``.

    The episodes are kept in ``folder``, and what it holds already is not played again, were it half a column.

    Args:
        columns: what each is played on, and how many questions of it.
        identity: says which agent it is; kept episodes of another are played anew.
        player: called once, where an episode is not there yet. None plays nothing.
        data: `evaluator.data_digest` of each column as it is now. Without a player, episodes of other data don't count.

    Raises:
        NotThere: episodes are missing, and there is no player.
    """
    player, rows = player and functools.cache(player), {}
    for column, (task, questions) in columns.items():
        key = json.dumps([identity, asdict(task), questions, max_new_tokens], sort_keys=True)
        path = folder / f"{_slug(column)}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.jsonl"
        if player is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with lock.wait_for(path, "the same evaluation"):
                header, episodes = _play(task, questions, *_read(path), path, player)
        else:
            header, episodes = _read(path)
            if data and header.get("data", data.get(column)) != data.get(column):
                raise NotThere(f"{title}: {column}, of other data than there is now: run it again")
            if not header or len(episodes) < header["count"]:
                raise NotThere(f"{title}: {column or 'held-out questions'}, {len(episodes)} episodes of it")
        rows[column] = _summarize(title, header, episodes) | {"file": str(path)}
    return rows


def _play(
    task: EnvConfig, questions: int, kept: Mapping, episodes: list[dict], path: Path, player: Callable[[], Player]
) -> tuple[dict, list[dict]]:
    """Play what is missing of a column, in batches, each of which is kept at once, unless tools broke in most of it; and all
    of it where the data were changed since."""
    size = episodes_at_once()
    envs = make_envs(task.env, json.dumps(task.env_kwargs), "validation", min(questions or size, size))
    numbers, asked = evaluator.instances(envs, questions), envs.envs[0].questions
    measure, source = envs.envs[0].PRIMARY_METRIC, evaluator.source_of(envs)
    data = evaluator.data_digest(envs.envs[0])
    header = {"source": source, "measure": measure, "count": len(numbers), "data": data}
    if kept.get("data", data) != data:
        episodes = []
    while len(episodes) < len(numbers):
        batch = numbers[len(episodes) : len(episodes) + envs.num_envs]
        played = retry.retry_on_tool_failure(partial(player(), envs, batch), _failed_share, retry.MINUTES)
        ids = [asked[i].id if asked is not None else i for i in batch]
        episodes = episodes + [to_json_types({"id": id} | own) for id, own in zip(ids, played, strict=True)]
        _write(path, header, episodes)
    return header, episodes


def _failed_share(played: list[dict]) -> float:
    return sum(bool(one.get("tool_faults")) for one in played) / len(played)


def _summarize(title: str, header: Mapping, episodes: list[dict]) -> evaluator.Row:
    measure = header["measure"]
    row = evaluator.summarize(title, episodes, measure)
    names = [name for name in dict.fromkeys((*SCORES, measure)) if all(name in e for e in episodes)]
    scores = {name: [e[name] for e in episodes] for name in names}
    if all("invalid" in e for e in episodes):
        row["invalid"] = sum(e["invalid"] for e in episodes) / sum(e["turns"] for e in episodes)
    return to_json_types(
        row
        | {"source": header["source"], "measure": measure, "score": row[measure]}
        | {"questions": {"id": [e["id"] for e in episodes], **scores}}
    )


# -- who plays ---------------------------------------------------------------------------------------------------------


def policy_player(policy: Policy, max_new_tokens: int) -> Player:
    """The policy, greedily."""
    engine_of = functools.cache(lambda stop: TransformersEngine(policy, stop))

    def play(envs: ToolVectorEnv, numbers: list[int]) -> list[dict]:
        engine = engine_of(envs.envs[0].stop)
        infos, transcripts = evaluator.run_policy(envs, policy, engine, numbers, max_new_tokens)
        invalid = [sum(t.error is not None for t in env.history.turns) for env in envs.envs[: len(numbers)]]
        turns = [[{n: t[n] for n in ("observation", "action", "reward")} for t in own] for own in transcripts]
        return [i | {"invalid": bad, "episode": own} for i, bad, own in zip(infos, invalid, turns, strict=True)]

    return play


def naive_rag_player(policy: Policy, max_new_tokens: int) -> Player:
    """The policy, which answers from one search for the question."""
    engine_of = functools.cache(lambda stop: TransformersEngine(policy, stop))

    def play(envs: ToolVectorEnv, numbers: list[int]) -> list[dict]:
        return evaluator.run_naive_rag(envs, policy, engine_of(envs.envs[0].stop), numbers, max_new_tokens)

    return play


def script_player(name: str) -> Player:
    """An agent without a policy: one of the task's scripts."""

    def play(envs: ToolVectorEnv, numbers: list[int]) -> list[dict]:
        script = envs.envs[0].SCRIPTS[name]
        kept = dict.fromkeys((*SCORES, envs.envs[0].PRIMARY_METRIC, *_ALSO_KEPT))
        return [{n: own[n] for n in kept if n in own} for own in evaluator.run_script(envs, numbers, script)]

    return play


# -- on disk -----------------------------------------------------------------------------------------------------------


def digest(folder: Path) -> str:
    """A fingerprint of the weights in a folder: of a checkpoint by its checksums."""
    if not (folder / checkpoint.CHECKSUMS_FILE).exists():  # none of ours
        return fingerprint_weights(str(folder))
    return hashlib.sha256((folder / checkpoint.CHECKSUMS_FILE).read_bytes()).hexdigest()


def fingerprint_weights(model: str) -> str:
    """What tells the weights of a file or a folder from others, wherever they lie; of a hub id, the id."""
    path = Path(model)
    if not path.exists():
        return model
    weights = (".safetensors", ".bin", ".gguf")
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.suffix in weights)
    found = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:  # gigabytes are not read: other weights differ in any part of them
            found.update(content.read(2**20) + str(size := content.seek(0, 2)).encode())
            content.seek(max(0, size - 2**20))
            found.update(content.read())
    return found.hexdigest()


def _slug(column: str) -> str:
    return re.sub(r"\W+", "-", column).strip("-").lower() or "held-out"


def _read(path: Path) -> tuple[dict, list[dict]]:
    if not path.exists():
        return {}, []
    header, *episodes = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return header, episodes


def _write(path: Path, header: Mapping, episodes: Iterable[Mapping]) -> None:
    staging = path.with_suffix(f".{os.getpid()}.staging")  # runs on other GPUs may be at it too
    staging.write_text("".join(json.dumps(line) + "\n" for line in (header, *episodes)), encoding="utf-8")
    durable.publish(staging, path)
