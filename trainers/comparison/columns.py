"""What a policy scores in each column of a comparison's table, played once and kept."""

import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from trainers import evaluate
from trainers.comparison.recipe import BASELINES, EnvConfig
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models.policy import Policy
from trainers.runs import checkpoint
from trainers.runs.logger import to_json_types
from trainers.runs.setup import make_envs

Columns = Mapping[str, tuple[EnvConfig, int]]  # by name: what is played, and how many questions of it


def evaluate_columns(
    title: str, columns: Columns, max_new_tokens: int, folder: Path, identity: str,
    load: Callable[[], Policy],
) -> dict[str, evaluate.Row]:  # fmt: skip
    """Evaluate a policy on the columns of the table, and keep the rows in ``folder``: by column, one row.

    Args:
        columns: what each is played on, and how many questions of it.
        identity: says which policy it is; kept rows of another are played anew.
        load: called once, where a row is not there yet.
    """
    kept, rows, load = folder / "columns.json", {}, functools.cache(load)
    known = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for column, (task, questions) in columns.items():
        key = json.dumps([identity, asdict(task), questions, max_new_tokens], sort_keys=True)
        if key not in known:
            envs = make_envs(task.env, json.dumps(task.env_kwargs), "validation", min(questions or 64, 64))
            policy, numbers = load(), evaluate.instances(envs, questions)
            common = (envs, policy, TransformersEngine(policy, envs.envs[0].stop), numbers, max_new_tokens, title)
            naive = title == BASELINES["naive-rag"]
            row = evaluate.evaluate_naive_rag(*common) if naive else evaluate.evaluate_policy(*common)[0]
            measure = envs.envs[0].PRIMARY_METRIC
            known[key] = to_json_types(
                row | {"source": evaluate.source_of(envs), "measure": measure, "score": row[measure]}
            )
            folder.mkdir(parents=True, exist_ok=True)
            staging = kept.with_suffix(f".{os.getpid()}.staging")  # runs on other GPUs may be at it too
            staging.write_text(json.dumps(known) + "\n", encoding="utf-8")
            staging.replace(kept)
        rows[column] = known[key]
    return rows


def digest(folder: Path) -> str:
    """A fingerprint of the weights that a checkpoint holds."""
    return hashlib.sha256((folder / checkpoint.CHECKSUMS_FILE).read_bytes()).hexdigest()
