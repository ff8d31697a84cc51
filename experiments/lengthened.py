"""The baselines that reinforcement learning after fine-tuning must beat: as many seconds, spent otherwise from the same
start. More fine-tuning on the same demonstrations; or rejection sampling, which learns from the policy's own right answers.
"""

import json
import time
from dataclasses import replace
from pathlib import Path

import torch

from retrieval_index import durable
from trainers import sft
from trainers.checkpoints import checkpoint, lock
from trainers.checkpoints.settings import check_settings
from trainers.engines.transformers_engine import TransformersEngine
from trainers.factory import make_envs
from trainers.imitation.demonstrations import draw_questions, sample, select, write_demonstrations
from trainers.runtime.progress import read_metrics
from trainers.tiny.cold_start import start_policy

_BATCHES = "batches.jsonl"


def fine_tune(args: sft.Args, folder: Path) -> dict:
    """A run of `trainers.sft` in ``folder``: found there, gone on with, or begun; returns its summary.

    Raises:
        SettingsDiffer: the folder holds a run with other settings.
    """
    if not (folder / "summary.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with lock.wait_for(folder, "the same fine-tuning"):
            if not (folder / "summary.json").exists():
                was_interrupted = checkpoint.latest(folder) is not None
                sft.main(replace(args, resume=folder) if was_interrupted else replace(args, out=folder))
    summary = read_summary(folder)
    check_settings(folder, summary, args)
    return summary | {"checkpoint": str(folder.resolve() / sft.BEST)}  # the folder may have been made from another one


def read_summary(folder: Path) -> dict:
    """What a finished run left in its folder."""
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def more_sft(args: sft.Args, demonstrations: Path | None, seconds: float, folder: Path) -> dict:
    """The same demonstrations once more, for ``seconds``, with a schedule of its own.

    Args:
        args: with the model to start from.
        demonstrations: the run that played them; None to play them again.
    """
    if demonstrations:
        args = replace(args, episodes=(str(demonstrations.resolve()),), script=(), messages=(), sample=0)
    return fine_tune(replace(args, max_seconds=seconds, updates=0, patience=0), folder)


def rejection_sampling(
    args: sft.Args,
    attempts: int,
    seconds: float,
    rounds: int,
    folder: Path,
    at_once: int,
    share: float = 0.5,
) -> dict:
    """Sample answers to training questions, learn from those that are right, and again (expert iteration, Anthony et al. 2017;
    RAFT, Dong et al. 2023): ``rounds`` times within ``seconds``, sampling included. So many more seconds and rounds go on
    with what is in ``folder``.

    The last weights count, as in a run of reinforcement learning: a question held out of one round may have been learned
    in another, and the loss on the policy's own answers is low from the start.

    Args:
        args: with the model to start from; of each question at most ``args.keep`` right episodes of a round are learned from.
        attempts: at each question.
        at_once: questions that are played at once.
        share: of each round, what goes into sampling.

    Returns:
        The summary of the last fine-tuning, with ``seconds`` of everything, and what was ``sampled`` and ``kept``.
    """
    files: list[str] = []
    spent, sampled, summary = 0.0, 0, {"checkpoint": args.model}
    for number in range(rounds):
        left = seconds * (number + 1) / rounds - spent
        here = replace(args, model=summary["checkpoint"], seed=args.seed + 1000 * number)
        if here.model != args.model:
            here = replace(here, lora_rank=0)  # its adapter is trained further
        sampled_in, round_folder = folder / f"sampled-{number}", folder / f"round-{number}"
        if (round_folder / "summary.json").exists():  # learned from: no more is sampled, whatever the budget is now
            records = _read_batches(sampled_in)
        else:
            records = _sample(here, attempts, share * left, sampled_in, at_once)
        files += [str(sampled_in.resolve() / Path(record["file"]).name) for record in records if record["kept"]]
        sampling = sum(record["seconds"] for record in records)
        sampled += sum(record["sampled"] for record in records)
        if not files:  # nothing was right: there is nothing to learn from yet
            spent += sampling
            round_folder.mkdir(parents=True, exist_ok=True)
            durable.write_text(round_folder / "summary.json", json.dumps(summary))
            continue
        learn = replace(
            here, episodes=tuple(files), script=(), messages=(), sample=0, max_seconds=max(1.0, left - sampling), updates=0,
            patience=0, held_out=0.0, seed=args.seed,
        )  # fmt: skip
        summary = fine_tune(learn, round_folder)
        spent += sampling + summary["seconds"]
    return summary | {"seconds": spent, "sampled": sampled, "kept": summary.get("episodes", 0)}


def _read_batches(folder: Path) -> list[dict]:
    """A record for each batch that was sampled into ``folder``."""
    return read_metrics(folder / _BATCHES) if (folder / _BATCHES).exists() else []


def _sample(args: sft.Args, attempts: int, seconds: float, folder: Path, at_once: int) -> list[dict]:
    """Sample for ``seconds`` in batches, each kept in a file: one record for each, with those of an earlier call.

    Questions come in an order drawn by the seed, none twice before each came once.
    """
    log, records = folder / _BATCHES, _read_batches(folder)
    if sum(record["seconds"] for record in records) >= seconds:
        return records
    envs = make_envs(args.env, args.env_kwargs, "train", at_once * attempts)
    policy, _ = start_policy(args, envs, args.seed)
    engine = TransformersEngine(policy, envs.envs[0].stop)
    folder.mkdir(parents=True, exist_ok=True)
    while sum(record["seconds"] for record in records) < seconds:
        begin, done = time.monotonic(), len(records)
        questions = draw_questions(envs, (done + 1) * at_once, args.seed)[done * at_once :]
        torch.manual_seed(args.seed + done)
        played = list(sample(
            envs, policy, engine, questions, attempts=attempts, max_new_tokens=args.max_new_tokens,
            temperature=args.temperature, outage_minutes=args.tool_outage_minutes,
        ))  # fmt: skip
        right, path = select(played, args.only_solved, args.min_reward, args.keep), folder / f"batch-{done}.jsonl"
        took = time.monotonic() - begin
        write_demonstrations(path, right, policy)
        records.append({"file": str(path), "seconds": took, "sampled": len(played), "kept": len(right)})
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(records[-1]) + "\n")
    return records
