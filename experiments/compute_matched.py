"""Baselines at equal compute, which reinforcement learning must beat: the same seconds from the same start.

They are a longer cold start on the demonstrator, more SFT on the same demonstrations, or rejection sampling, which learns
from the policy's own correct answers.
"""

import copy
import gc
import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from agent_envs.vector import ToolVectorEnv
from retrieval_index import durable
from trainers import sft
from trainers.checkpoints import checkpoint
from trainers.checkpoints.settings import check_settings
from trainers.config import DEMONSTRATOR, Demonstrator
from trainers.engines.transformers_engine import TransformersEngine
from trainers.factory import make_envs
from trainers.imitation.demonstrations import FILE, draw_questions, sample, select, write_demonstrations
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.rollouts.formats import choose_format
from trainers.runtime import integrity
from trainers.runtime.progress import Progress, read_metrics
from trainers.tiny import curriculum
from trainers.tiny.cold_start import fit, start_policy

ROUNDS = 2  # of sampling and learning in rejection sampling
_BATCHES = "batches.jsonl"


def finish(train: Callable[[Any], dict], args: Any, folder: Path) -> dict:
    """Run a command's ``train`` in ``folder``, resume it, or find it finished; return its summary."""
    if not (folder / "summary.json").exists():
        was_interrupted = integrity.latest(folder) is not None
        train(replace(args, resume=folder) if was_interrupted else replace(args, out=folder))
        gc.collect()  # frees memory for the next run
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    check_settings(folder, summary, args)
    return summary


def fine_tune(args: sft.Args, folder: Path) -> dict:
    """Run `trainers.sft` in ``folder``, resume it, or find it finished; return its summary."""
    summary = finish(sft.main, args, folder)
    return summary | {"checkpoint": str(folder.resolve() / sft.BEST)}  # the folder may have been made from another one


def is_imitated(folder: Path, seconds: float, start: str) -> bool:
    """Whether ``folder`` holds the result of `continue_imitation` for this start and ``seconds``."""
    extra = checkpoint.read_extra(folder) if integrity.is_checkpoint(folder) else {}
    return (extra.get("asked"), extra.get("start")) == (seconds, start)


def continue_imitation(
    base: Policy, envs: ToolVectorEnv, seed: int, seconds: float, folder: Path,
    demonstrator: Demonstrator = DEMONSTRATOR, start: str = "",
) -> tuple[Policy, dict]:  # fmt: skip
    """Train ``base``, as its cold start left it, on demonstrations of whole episodes for ``seconds``, over which the learning
    rate falls to zero.

    ``folder`` keeps the result, which a second call for the same seconds and ``start`` finds; ``start`` identifies ``base``.
    Returns the policy, and a dictionary with the seconds ``asked`` for, the ``seconds`` that it took and its ``steps``.
    """
    if is_imitated(folder, seconds, start):
        return load_policy(folder), checkpoint.read_extra(folder)
    policy, rng = copy.deepcopy(base), random.Random(f"more imitation:{seed}")
    # The cold start's last stage, with other draws.
    teacher = curriculum.Teacher(policy, envs, rng, demonstrator)
    tokens, steps = curriculum.choose_curriculum(envs).tokens_per_step, 0
    batches = (("episodes", batch) for batch in curriculum.batch_by_length(teacher.episodes, rng, tokens))
    begin = time.monotonic()
    with Progress(seconds, "s", "more imitation") as progress:

        def report(step: int, kind: str, loss: float) -> None:
            nonlocal steps
            steps = step
            progress.update(min(seconds, time.monotonic() - begin), loss=loss)

        # At least one step, however short the time.
        fit(policy, batches, lambda step: (time.monotonic() - begin) / seconds if step else 0.0, report)
    spent = {"start": start, "asked": seconds, "seconds": time.monotonic() - begin, "steps": steps}
    checkpoint.save(folder, model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=steps, extra=spent)
    return policy, spent


def more_sft(args: sft.Args, demonstrations: Path, seconds: float, folder: Path) -> dict:
    """Fine-tune once more on the same demonstrations, for ``seconds``, with a new schedule.

    Args:
        args: arguments of SFT, with the model to start from.
        demonstrations: folder of the run that holds them; if it does not, they are made again.
    """
    if (demonstrations / FILE).exists():
        args = replace(args, episodes=(str(demonstrations.resolve()),), script=(), messages=(), sample=0)
    return fine_tune(replace(args, max_seconds=seconds, updates=0, patience=0), folder)


def rejection_sampling(args: sft.Args, folder: Path, *, seconds: float, attempts: int, questions: int) -> dict:
    """Sample answers to training questions and learn from the correct ones, in ``ROUNDS`` rounds (expert iteration, Anthony
    et al. 2017; RAFT, Dong et al. 2023). Sampling takes half of the time of each round.

    No episode is held out, and the last weights are the result: one held out of a round may have been learned in another.

    Args:
        args: arguments of SFT, with the model to start from; a round keeps at most ``args.keep`` correct episodes a question.
        seconds: time of all rounds together, sampling included.
        attempts: number of rollouts of each question.
        questions: number of questions in one batch of sampling.

    Returns:
        The summary of the last fine-tuning, with the ``seconds`` of all rounds, and the episodes ``sampled`` and ``kept``.
    """
    files: list[str] = []
    spent, sampled, summary = 0.0, 0, {"checkpoint": args.model}
    for number in range(ROUNDS):
        left = seconds * (number + 1) / ROUNDS - spent
        here = replace(args, model=summary["checkpoint"], seed=args.seed + 1000 * number)
        if number and here.model != args.model:
            here = replace(here, lora_rank=0)  # trains its adapter further
        sampled_in, learned_in = folder / f"sampled-{number}", folder / f"round-{number}"
        if (learned_in / "summary.json").exists():  # nothing more is sampled, even if the budget has changed
            records = _read_batches(sampled_in)
        else:
            records = _sample(here, attempts, left / 2, sampled_in, questions)
        files += [str(sampled_in.resolve() / record["file"]) for record in records if record["kept"]]
        took = sum(record["seconds"] for record in records)
        sampled += sum(record["sampled"] for record in records)
        if files:
            learn = replace(
                here, episodes=tuple(files), script=(), messages=(), sample=0, max_seconds=max(1.0, left - took), updates=0,
                patience=0, held_out=0.0, seed=args.seed,
            )  # fmt: skip
            summary = fine_tune(learn, learned_in)
            took += summary["seconds"]
        else:  # no episode was correct: there is nothing to learn from yet
            learned_in.mkdir(parents=True, exist_ok=True)
            durable.write_text(learned_in / "summary.json", json.dumps(summary))
        spent += took
    return summary | {"seconds": spent, "sampled": sampled, "kept": summary.get("episodes", 0)}


def _read_batches(folder: Path) -> list[dict]:
    """Read the records of the batches that were sampled into ``folder``."""
    return read_metrics(folder / _BATCHES) if (folder / _BATCHES).exists() else []


def _sample(args: sft.Args, attempts: int, seconds: float, folder: Path, at_once: int) -> list[dict]:
    """Sample for ``seconds`` in batches, each kept in a file; return one record for each, including those of earlier calls.

    The seed draws the order of the questions; none comes twice before all have come once.
    """
    records = _read_batches(folder)
    if sum(record["seconds"] for record in records) >= seconds:
        return records
    envs = make_envs(args.env, args.env_kwargs, "train", at_once * attempts)
    policy, _ = start_policy(args, envs)
    choose_format(policy, args.model, args.env_kwargs, envs)
    engine = TransformersEngine(policy, envs.envs[0].stop)
    folder.mkdir(parents=True, exist_ok=True)
    while sum(record["seconds"] for record in records) < seconds:
        begin, done = time.monotonic(), len(records)
        questions = draw_questions(envs, (done + 1) * at_once, args.seed)[done * at_once :]
        torch.manual_seed(args.seed + done)
        episodes = list(sample(
            envs, policy, engine, questions, attempts=attempts, max_new_tokens=args.max_new_tokens,
            temperature=args.temperature, outage_minutes=args.tool_outage_minutes,
        ))  # fmt: skip
        right, file = select(episodes, args.only_solved, args.min_reward, args.keep), f"batch-{done}.jsonl"
        took = time.monotonic() - begin
        write_demonstrations(folder / file, right, policy)
        records.append({"file": file, "seconds": took, "sampled": len(episodes), "kept": len(right)})
        with (folder / _BATCHES).open("a", encoding="utf-8") as log:
            log.write(json.dumps(records[-1]) + "\n")
    return records
