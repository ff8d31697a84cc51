"""Scores of an agent in each column of a comparison's table. Each question is rolled out once, and its result is kept."""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from agent_envs.utils.scripts import sample_instances
from agent_envs.vector import ToolVectorEnv
from experiments.recipe import EnvConfig
from retrieval_index import durable
from trainers.engines.transformers_engine import TransformersEngine
from trainers.evaluation import evaluator, naive_rag
from trainers.factory import make_envs
from trainers.models.loading import episodes_at_once
from trainers.models.policy import Policy
from trainers.rollouts.formats import choose_format
from trainers.runtime import integrity, retry
from trainers.runtime.progress import to_json_types

Player = Callable[[ToolVectorEnv, list[int]], list[dict]]  # rolls numbered questions out; one record for each
SCORES = ("em", "f1", "score", "support_recall")  # also kept for each question, if the task has them
_ALSO_KEPT = ("kind", "substring_em", "turns", "calls", "prediction", "golds", "tool_faults")  # of a script's episodes


class NotThere(Exception):
    """A result for the report has not been made yet; the message names it."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """The questions of a column."""

    task: EnvConfig
    questions: int  # how many; 0 is all of them
    data: str  # `evaluator.data_digest` of questions and passages: other data make another column


def evaluate(
    title: str, columns: Mapping[str, Column], max_new_tokens: int, folder: Path, identity: str,
    make_player: Callable[[], Player] | None,
) -> dict[str, evaluator.Row]:  # fmt: skip
    """Evaluate an agent; return one row for each column, with the scores of its ``questions``.

    The episodes are kept in ``folder``; those that it already holds are not rolled out again, even if a column is incomplete.
    ``identity`` names the agent; kept episodes of another do not count. ``make_player`` is called at most once, if an episode
    is missing; with None nothing is rolled out, and a missing episode raises `NotThere`.
    """
    make_player, rows = make_player and functools.cache(make_player), {}
    for name, column in columns.items():
        key = json.dumps([identity, max_new_tokens, asdict(column)], sort_keys=True)
        slug = re.sub(r"\W+", "-", name).strip("-").lower()
        path = folder / f"{slug}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.jsonl"
        if make_player:
            _roll_out(column, path, make_player)
        header, episodes = read_episodes(path)
        if not header or len(episodes) < header["count"]:
            raise NotThere(f"{title}: {name}, {len(episodes)} episodes of it")
        rows[name] = _summarize(title, header, episodes) | {"file": str(path)}
    return rows


def read_episodes(path: str | Path) -> tuple[dict, list[dict]]:
    """Read the kept results of a column: its header and its episodes, both empty if there is no file."""
    if not Path(path).exists():
        return {}, []
    header, *episodes = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
    return header, episodes


def _roll_out(column: Column, path: Path, make_player: Callable[[], Player]) -> None:
    """Roll out the missing episodes of a column in batches; keep each batch at once, unless tools failed in most of it."""
    header, episodes = read_episodes(path)
    if header and len(episodes) >= header["count"]:
        return
    size, task = episodes_at_once(), column.task
    envs = make_envs(task.env, json.dumps(task.env_kwargs), "validation", min(column.questions or size, size))
    numbers, questions = sample_instances(envs.envs[0], column.questions), envs.envs[0].questions
    measure, source = envs.envs[0].PRIMARY_METRIC, envs.envs[0].describe_source()
    header = {"source": source, "measure": measure, "count": len(numbers)}
    path.parent.mkdir(parents=True, exist_ok=True)
    while len(episodes) < len(numbers):
        batch = numbers[len(episodes) : len(episodes) + envs.num_envs]
        done = retry.retry_on_tool_failure(
            functools.partial(make_player(), envs, batch),
            lambda all: sum(bool(one.get("tool_faults")) for one in all) / len(all),
            retry.MINUTES,
        )
        ids = [getattr(questions[i], "id", i) if questions is not None else i for i in batch]
        episodes += [to_json_types({"id": id} | own) for id, own in zip(ids, done, strict=True)]
        durable.write_text(path, "".join(json.dumps(line) + "\n" for line in (header, *episodes)))


def _summarize(title: str, header: Mapping, episodes: list[dict]) -> evaluator.Row:
    measure = header["measure"]
    row = evaluator.summarize(title, episodes, measure)
    names = [name for name in dict.fromkeys((*SCORES, measure, "kind")) if all(name in e for e in episodes)]
    questions = {"id": [e["id"] for e in episodes], **{name: [e[name] for e in episodes] for name in names}}
    about = {"source": header["source"], "measure": measure, "score": row[measure], "questions": questions}
    return to_json_types(row | about)


# -- agents ------------------------------------------------------------------------------------------------------------


def policy_player(policy: Policy, model: str, max_new_tokens: int, one_search: bool = False) -> Player:
    """Make an agent of ``policy``, which was loaded from ``model``, with greedy decoding; with ``one_search``, as Naive RAG."""
    engine_of = functools.cache(lambda stop: TransformersEngine(policy, stop))

    def play(envs: ToolVectorEnv, numbers: list[int]) -> list[dict]:
        given = envs.spec.kwargs if envs.spec else {}
        choose_format(policy, model, json.dumps({"format": given["format"]} if "format" in given else {}), envs)
        engine = engine_of(envs.envs[0].stop)
        if one_search:
            return naive_rag.run_naive_rag(envs, policy, engine, numbers, max_new_tokens)
        infos, transcripts = evaluator.run_policy(envs, policy, engine, numbers, max_new_tokens)
        turns = [[{n: t[n] for n in ("observation", "action", "reward")} for t in own] for own in transcripts]
        return [info | {"episode": own} for info, own in zip(infos, turns, strict=True)]

    return play


def script_player(name: str) -> Player:
    """Make an agent without a policy: one of the task's scripts."""

    def play(envs: ToolVectorEnv, numbers: list[int]) -> list[dict]:
        script = envs.envs[0].SCRIPTS[name]
        kept = dict.fromkeys((*SCORES, envs.envs[0].PRIMARY_METRIC, *_ALSO_KEPT))
        return [{n: own[n] for n in kept if n in own} for own in evaluator.run_script(envs, numbers, script)]

    return play


def fingerprint(model: str | Path) -> str:
    """Compute a digest of the weights in a file or a folder, wherever it is; return a hub id, or "", unchanged."""
    path = Path(model)
    if not model or not path.exists():
        return str(model)
    if (path / integrity.CHECKSUMS_FILE).exists():  # a checkpoint of ours
        files = [path / integrity.CHECKSUMS_FILE]
    else:
        weights = (".safetensors", ".bin", ".gguf")
        files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.suffix in weights)
    found = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            found.update(hashlib.file_digest(content, "sha256").digest())
    return found.hexdigest()
