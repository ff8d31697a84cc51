"""Run policies and scripted agents on numbered instances, usually held-out ones, and summarise their episodes."""

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from agent_envs import scoring
from agent_envs.integrations.hosting import HostedEnv
from agent_envs.tasks.mixture import MixtureEnv
from agent_envs.tasks.qa import QAEnv, name_kind
from agent_envs.tool_env import ToolEnv
from agent_envs.utils.scripts import ScriptMaker, roll_out_many
from agent_envs.vector import ToolVectorEnv
from trainers.checkpoints import checkpoint
from trainers.checkpoints.settings import warn_of_other_env_kwargs
from trainers.engines.engine import Engine
from trainers.episodes.records import Recorder, record_turns
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.rollouts.agent_rollout import cause_of_failure, stop_if_all_failed
from trainers.rollouts.rollout import rollout
from trainers.runtime import distributed, integrity
from trainers.runtime.errors import UserError
from trainers.trajectory import Trajectory

Row = dict[str, object]
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object, different in each process
_HASHED = 1_000_000  # the most passages of a corpus that is hashed; larger ones take minutes to read


def summarize(name: str, episodes: list[dict], score: str = "em", samples: int = 1) -> Row:
    """Make one row of the table from the last info of each episode: means, and a 95% CI of ``score``.

    The interval is a bootstrap over questions; ``score`` is the task's primary metric. ``failed`` is the share of episodes that
    are marked as failed, or have ``tool_faults``; ``support_recall`` is the mean over the episodes that have it.

    ``samples``: the number of consecutive rollouts of each question. With several, the score is average@k, and ``pass`` has the
    estimate of pass@k (a score of 1 passes) for k = 1, 2, 4, … and ``samples``.
    """
    if (odd := next((e for e in episodes if score not in e), None)) is not None:
        raise UserError(
            f"an episode ends without the task's PRIMARY_METRIC, {score!r}, in its info, which has {', '.join(odd)}"
        )
    scores = np.array([float(e[score]) for e in episodes]).reshape(-1, samples)
    faults = [int(e.get("tool_faults", 0)) for e in episodes]
    failed = [bool(e.get("failed", count)) for e, count in zip(episodes, faults, strict=True)]
    also = [k for k in ("f1", "substring_em", "turns", "calls") if all(k in e for e in episodes)]
    recalls = [float(e["support_recall"]) for e in episodes if "support_recall" in e]
    return {
        "name": name,
        score: float(scores.mean()),
        f"{score}_interval": scoring.bootstrap_interval(scores.mean(axis=1)),
        **(_estimate_pass(scores) if samples > 1 else {}),
        **{k: float(np.mean([float(e[k]) for e in episodes])) for k in also},
        **({"support_recall": float(np.mean(recalls))} if recalls else {}),
        **_share_invalid(episodes),
        **_score_kinds(scores.mean(axis=1), [str(e.get("kind") or "") for e in episodes[::samples]]),
        "episodes": len(episodes),
        "failed": float(np.mean(failed)),
        "tool_faults": sum(faults),
    }


def _share_invalid(episodes: list[dict]) -> Row:
    """Compute the share of malformed turns, if all episodes count them."""
    if not all("invalid_turns" in e for e in episodes):
        return {}
    return {"invalid": sum(e["invalid_turns"] for e in episodes) / max(1, sum(e["recorded_turns"] for e in episodes))}


def count_invalid(invalid: Sequence[bool]) -> dict[str, int]:
    """Count malformed and all turns for an info, including turns of a program that are not turns of the environment."""
    return {"invalid_turns": sum(invalid), "recorded_turns": len(invalid)}


def drop_recall(info: Mapping, instance: Mapping) -> dict:
    """Return the info, without ``support_recall`` if the episode's question has no gold passages."""
    has_gold = bool(instance.get("supporting"))
    return {name: value for name, value in info.items() if has_gold or name != "support_recall"}


def _score_kinds(scores: np.ndarray, kinds: list[str]) -> Row:
    """Average the scores [questions] by kind of question, if all questions have a kind and there are 2 to 8 kinds."""
    names = sorted(set(kinds))
    if not all(names) or not 2 <= len(names) <= 8:
        return {}
    return {"kinds": {name: float(scores[[kind == name for kind in kinds]].mean()) for name in names}}


def _estimate_pass(scores: np.ndarray) -> Row:
    """Estimate pass@k from scores [questions, samples]."""
    samples, solved = scores.shape[1], (scores >= 1).sum(axis=1)
    sizes = sorted({samples} | {2**i for i in range(samples.bit_length()) if 2**i < samples})
    by_k = {k: [scoring.pass_at_k(samples, int(count), k) for count in solved] for k in sizes}
    return {
        "samples": samples,
        "pass": {str(k): float(np.mean(values)) for k, values in by_k.items()},
        "pass_at_k": float(np.mean(by_k[samples])),
        "pass_at_k_interval": scoring.bootstrap_interval(by_k[samples]),
    }


def run_policy(
    envs: ToolVectorEnv, policy: Policy, engine: Engine, instance_ids: list[int], max_new_tokens: int,
    temperature: float = 0.0, recorder: Recorder | None = None, samples: int = 1,
    show: Callable[[list[Trajectory]], None] | None = None, roll_out: Callable[..., list[Trajectory]] | None = None,
) -> tuple[list[dict], list[list[dict]]]:  # fmt: skip
    """Run a policy on numbered instances; return the last info of each episode, with the ``tool_faults`` of all its turns, and
    the turns of each episode. The ``samples`` rollouts of an instance are consecutive. ``show`` gets the episodes of each batch.
    ``recorder`` collects the records of the episodes, here and below. ``roll_out``: by default `rollout`. Raises ToolsFailed if
    all episodes failed, mostly because of the program (`stop_if_all_failed`)."""
    infos: list[dict] = []
    causes: list[str] = []
    transcripts: list[list[dict]] = []
    own, groups = distributed.shard(instance_ids), envs.num_envs // samples
    if recorder:
        recorder.lines = []  # drop those of a failed try
    for start in range(0, len(own), groups):
        episodes = (roll_out or rollout)(
            envs, policy, engine, questions=own[start : start + groups], group_size=samples,
            max_new_tokens=max_new_tokens, temperature=temperature,
        )  # fmt: skip
        transcripts += [episode.turns for episode in episodes]
        causes += map(cause_of_failure, episodes)
        infos += [
            drop_recall(e.info, e.instance)
            | ({"kind": name_kind(e.instance.get("kind") or {})} if e.failed else {})
            | {"tool_faults": e.tool_faults, "failed": e.failed, **count_invalid([t["invalid"] for t in e.turns])}
            for e in episodes
        ]
        if recorder:
            for episode in episodes:
                recorder.add_trajectory(episode)
        if show:
            show(episodes)
    if recorder:
        recorder.lines = distributed.all_gather(recorder.lines)
    infos = distributed.all_gather(infos)
    infos = complete(infos, [not info["failed"] for info in infos])
    stop_if_all_failed([info["failed"] for info in infos], distributed.all_gather(causes))
    return infos, distributed.all_gather(transcripts)


def run_script(
    envs: ToolVectorEnv, instance_ids: list[int], script: ScriptMaker, recorder: Recorder | None = None
) -> list[dict]:
    """Run a scripted agent; return the last turn of each episode, with the ``tool_faults`` of all its turns."""
    # Only the first process runs the script, so all processes see the same episodes and the same tool failures.
    episodes = distributed.broadcast([] if distributed.rank() else roll_out_many(envs, instance_ids, script))
    if recorder:
        recorder.lines = []
        for turns, number in zip(episodes, instance_ids, strict=True):
            recorder.add(record_turns(turns, recorder.origin, number))
    ended = [bool(turns[-1]["tool_faults"]) for turns in episodes]  # by a tool failure, before there are scores
    infos = complete([turns[-1] for turns in episodes], [not early for early in ended])
    for place, turns in enumerate(episodes):
        if ended[place]:
            nothing = {envs.envs[0].PRIMARY_METRIC: 0.0, "kind": name_kind(turns[0]["instance"].get("kind") or {})}
            infos[place] = nothing | infos[place]
    return [
        drop_recall(info, turns[0]["instance"])
        | {"tool_faults": sum(int(turn["tool_faults"]) for turn in turns)}
        | count_invalid([turn["recorded"]["invalid"] for turn in turns])
        for info, turns in zip(infos, episodes, strict=True)
    ]


def complete(infos: list[dict], finished: Sequence[bool]) -> list[dict]:
    """Give episodes that failed 0 for what all finished ones report as a number."""
    names = [{name for name, value in info.items() if isinstance(value, int | float | np.number)} for info in infos]
    common = [own for own, done in zip(names, finished, strict=True) if done]
    nothing = dict.fromkeys(sorted(set.intersection(*common)) if common else (), 0.0)
    return [info if done else nothing | info for info, done in zip(infos, finished, strict=True)]


def data_digest(env: ToolEnv) -> str:
    """Return a fingerprint of a split's questions, of the corpus (unless it is too large or on a server), and of the files of a
    task, format, context and reward from outside of this suite; "" if there is none of them."""
    if isinstance(env, MixtureEnv):
        return "".join(map(data_digest, env.tasks.values()))
    code, task = b"", env.hosted.unwrapped if isinstance(env, HostedEnv) else env
    for part in (task, env.format, env.context, getattr(env, "scorer", None)):
        kind = part if inspect.isroutine(part) else type(part)
        if not kind.__module__.startswith(("agent_envs.", "trainers.", "functools", "builtins")):
            with suppress(TypeError, OSError):  # it was typed into a shell
                code += Path(inspect.getfile(kind)).read_bytes()
    if env.questions is None and not code:
        return ""
    found = hashlib.sha256(code + _ADDRESS.sub("", repr(env.questions)).encode())
    corpus = getattr(env.task.searcher, "corpus", None) if isinstance(env, QAEnv) else None  # None for a server
    if corpus is not None and len(corpus) <= _HASHED:
        found.update(corpus.fingerprint.encode())
    return found.hexdigest()


def load_agent(
    folder: str | Path, base_model: str = "", dtype: str | None = None, max_new_tokens: int | None = None, env: str = "",
    env_kwargs: str = "{}", chat_template: str = "", thinking: str | None = None,
) -> tuple[Policy, int]:  # fmt: skip
    """Load a model or a checkpoint; return its policy, and the longest turn in tokens.

    Args:
        base_model: the base model of an adapter, instead of the one that the adapter names.
        dtype: by default that of its training, or float32 for a model that our trainers did not write.
        chat_template: a file with a chat template, instead of the model's own.
        thinking: as for `Policy`; by default that of its training, or "auto" for other models.
        max_new_tokens: by default that of its training (512 if unknown) or the length of the longest taught turn, if larger.
        env, env_kwargs: the environment; warns if the model was trained with other arguments.
    """
    saved = checkpoint.read_extra(folder) if integrity.is_written_here(folder) else {}
    if env:
        warn_of_other_env_kwargs(str(folder), saved, env, env_kwargs)
    dtype = dtype or saved.get("dtype", "float32")
    policy = load_policy(
        folder, dtype=dtype, base_model=base_model or None, chat_template=chat_template,
        thinking=thinking or saved.get("thinking", "auto"),
    )  # fmt: skip
    policy.stop = tuple(saved.get("stop", ()))
    policy.check_turn_length(max_new_tokens or 0)
    longest = max_new_tokens or max(saved.get("max_new_tokens", 512), saved.get("longest_turn", 0))
    if (budget := policy.thought_tokens or 0) >= longest:
        raise UserError(
            f"no action fits in a turn of {longest} tokens after thoughts of {budget}: raise max_new_tokens"
        )
    return policy, longest
