"""What training is, whatever the algorithm: environments, a policy, baselines; then episodes, an update, an evaluation,
over and over; then a report. An algorithm is a `Learner`: what it makes of a batch of episodes.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np
import torch

from agent_envs.vector import ToolVectorEnv
from trainers import distributed, evaluate, runs, sft
from trainers.arguments import TrainArgs
from trainers.batches import Batches
from trainers.engine import Engine
from trainers.evaluate import evaluate_policy
from trainers.logger import METRICS_FILE, Logger, Progress, check_sinks, read_metrics
from trainers.memory import recompute_activations
from trainers.policy import Policy
from trainers.rollout import check_formats
from trainers.setup import load_policy, make_engine, make_envs
from trainers.sharding import started
from trainers.trajectory import Trajectory, to_sequences
from trainers.watch import Watch, informed, learned

BEFORE, BEFORE_SAMPLED = "Base Tool Call (before RL)", "Base Tool Call, sampled"  # names of rows


@dataclass(kw_only=True)
class Learner:
    """An algorithm at work on a policy.

    Attributes:
        update: one batch of episodes into gradient steps; returns metrics.
        optimizers: theirs; a checkpoint holds their states.
        modules: what is trained beside the policy, such as a critic, by name; a checkpoint holds their weights.
    """

    update: Callable[[list[Trajectory], np.random.Generator], dict[str, float]]
    optimizers: list[torch.optim.Optimizer]
    modules: dict[str, torch.nn.Module] = field(default_factory=dict)


@distributed.processes()
def train(args: TrainArgs, algorithm: str, title: str, start: Callable[[Policy], Learner]) -> dict:
    """A whole run: returns its summary, which ``summary.json`` in its folder holds as well. Started by torchrun, it is one
    run of all processes, each of which plays its share of the questions.

    Args:
        algorithm: its short name, for the folder of the run.
        title: what the trained policy is called in the table.
        start: makes the learner of a policy.
    """
    check_shares(args)
    torch.manual_seed(args.seed)
    run = runs.choose_folder(args, algorithm)
    check_sinks(args.log)

    # environments
    envs = make_envs(
        args.env, args.env_kwargs, "train", args.questions_per_update // distributed.ranks() * args.group_size
    )
    held_out = make_envs(args.env, args.env_kwargs, "validation", 64)
    check_apart(envs, held_out)
    check_formats(envs)
    final_questions, eval_questions = (
        evaluate.instances(held_out, n) for n in (args.final_questions, args.eval_questions)
    )
    score = held_out.envs[0].SCORE

    # policy
    with distributed.first_before_others():
        policy, seconds_cold_start = starting_policy(args, envs)
    distributed.same_weights(policy.model)
    distributed.reseed(args.seed)
    batches = Batches(args, policy)
    engine = make_engine(args.engine, batches.policy, envs.envs[0].stop, args.vllm_url, args.vllm_kv_gib)
    evaluate_now = partial(
        evaluate_policy, held_out, batches.policy, engine, max_new_tokens=args.max_new_tokens, name=""
    )

    def validated() -> dict[str, float]:
        batches.catch_up()
        # In a random state of its own, so that how often one looks changes nothing.
        with torch.random.fork_rng():
            torch.manual_seed(args.seed + distributed.rank())
            row, _ = evaluate_now(eval_questions, temperature=args.eval_temperature)
        return evaluation_metrics(row, score)

    rows = baselines(held_out, batches.policy, engine, final_questions, args)
    learner = started(start, policy)
    first = runs.resume(run, policy, learner.optimizers, learner.modules) if args.resume else 0
    if first > args.updates:
        raise ValueError(f"{run} has had {first} updates already: updates must be at least as many, got {args.updates}")

    # training
    with (
        distributed.folder_of_records(run) as records,
        Logger(
            records, args.log if records == run else (), asdict(args), resume_from=first + 1 if first else 0
        ) as logger,
        Progress(args.updates, "updates", algorithm, first) as progress,
    ):
        lines = read_metrics(records / METRICS_FILE)
        watch, played = Watch(score, lines), int(lines[-1]["episodes"]) if lines else 0
        if not first:
            metrics = validated() | {"episodes": 0}
            logger.log(0, metrics)
            watch.see(0, metrics, progress)
        done, stopped = first, False
        while done < args.updates and not stopped:
            metrics = one_update(args, envs, batches, engine, policy, learner, done, score)
            done, played = done + 1, played + int(metrics["episodes"])
            metrics["episodes"] = played
            if done % args.eval_every == 0:
                metrics |= validated()
            logger.log(done, metrics)
            progress.update(
                done, reward=metrics["train/return"], turns=metrics["train/turns"],
                tokens_per_s=metrics["tokens/per_second"], **{score: metrics[f"train/{score}"]},
            )  # fmt: skip
            stopped = distributed.agreed(watch.see(done, metrics, progress) and args.stop_on_collapse)
            if done % args.save_every == 0 or done == args.updates or stopped:
                batches.catch_up()
                runs.save(run, policy, learner.optimizers, learner.modules, done, args)

    # report
    batches.catch_up()
    row, transcripts = evaluate_now(final_questions, name=title)
    rows.append(row)
    if distributed.rank():
        return distributed.agreed({})
    reached = {r["name"]: r[score] for r in rows}
    summary = {
        "env": args.env, "source": evaluate.source_of(held_out), "train_source": evaluate.source_of(envs),
        "algorithm": algorithm, "seed": args.seed, "score": score, f"{score}_cold_start": reached[BEFORE],
        f"{score}_cold_start_sampled": reached[BEFORE_SAMPLED], f"{score}_trained": row[score],
        **({"em_naive_rag": reached["Naive RAG"]} if "Naive RAG" in reached else {}),
        "seconds_cold_start": seconds_cold_start, "seconds_training": read_metrics(run / METRICS_FILE)[-1]["seconds"],
        "episodes": played, "stopped_on_collapse": stopped, "symptoms": watch.symptoms,
        "rows": rows, "folder": str(run), "settings": runs.settings(args) | {"updates": args.updates},
        "evaluation": {n: v for n, v in asdict(args).items() if n.startswith("eval_") or n == "final_questions"},
    }  # fmt: skip
    runs.write_report(run, summary, transcripts)
    return distributed.agreed(summary)


def one_update(
    args: TrainArgs, envs: ToolVectorEnv, batches: Batches, engine: Engine, policy: Policy, learner: Learner, number: int,
    score: str,
) -> dict[str, float]:  # fmt: skip
    """Episodes and what is learned from them; update ``number`` draws the same questions in every run of a seed."""
    begin = time.monotonic()
    batch = batches.next(envs, engine, number)
    policy.fed["update"] = 0
    seen = informed(policy, batch.episodes, args)
    metrics = episode_metrics(batch.played, score) | learner.update(batch.episodes, batch.rng) | batch.metrics
    seconds = time.monotonic() - begin
    metrics |= {"time/update": seconds - metrics["time/rollout"], "tokens/fed_update": float(policy.fed["update"])}
    metrics |= {"tokens/per_second": metrics["tokens/all"] / seconds, "episodes": float(len(batch.played))}
    return metrics | seen | learned(metrics)


def evaluation_metrics(row: dict, score: str) -> dict[str, float]:
    return {f"eval/{name}": row[name] for name in (score, "f1", "support_recall", "turns") if name in row}


def episode_metrics(trajectories: list[Trajectory], score: str) -> dict[str, float]:
    """What the episodes of a batch were like."""
    groups = [[t.episode_return for t in trajectories if t.group == g] for g in {t.group for t in trajectories}]
    sequences = [s for t in trajectories for s in to_sequences(t.steps)]
    metrics = {
        "tokens/action": sum(sum(s.mask) for s in sequences),
        "tokens/all": sum(len(s.ids) for s in sequences),
        "train/return": np.mean([t.episode_return for t in trajectories]),
        f"train/{score}": np.mean([t.info[score] for t in trajectories]),
        "train/turns": np.mean([len(t.steps) for t in trajectories]),
        "train/truncated": np.mean([t.truncated for t in trajectories]),
        "train/failed": np.mean([t.failed for t in trajectories]),
        "train/group_std": np.mean([np.std(group) for group in groups]),
        "train/flat_groups": np.mean([np.ptp(group) < 1e-6 for group in groups]),
    }
    for name in dict.fromkeys(name for t in trajectories for name in t.reward_terms):
        metrics[f"reward/{name}"] = np.mean([t.reward_terms.get(name, 0.0) for t in trajectories])
    return {name: float(value) for name, value in metrics.items()}


def starting_policy(args: TrainArgs, envs: ToolVectorEnv) -> tuple[Policy, float]:
    """The policy before reinforcement learning: a given model, or the tiny one after its cold start; and the seconds
    that its cold start took."""
    if args.model != "tiny":
        policy = load_policy(args.model, None, args.dtype, args.lora_rank, args.lora_alpha)
        if args.gradient_checkpointing:
            recompute_activations(policy.model)
        return policy, 0.0
    with Progress(args.cold_start_steps, description="cold start") as progress:
        return sft.cold_start(
            envs, args.seed, args.cold_start_steps, lambda step, lesson, loss: progress.update(step, loss=loss),
            args.cold_start_patience,
        )  # fmt: skip


def check_shares(args: TrainArgs) -> None:
    """What several processes do not share out."""
    if args.ahead and distributed.ranks() > 1:
        raise ValueError("ahead is for one process: several would have to agree in the middle of an update")
    if args.questions_per_update % distributed.ranks():
        raise ValueError(
            f"questions_per_update must be a multiple of the number of processes, {distributed.ranks()}, as each plays "
            f"whole groups; got {args.questions_per_update}"
        )
    if distributed.ranks() > 1 and getattr(args, "share_layers", False):
        raise ValueError("share_layers is for one process: with several the critic needs layers of its own")


def check_apart(envs: ToolVectorEnv, held_out: ToolVectorEnv) -> None:
    """A score on questions that were trained on is no held-out score."""
    if not hasattr(envs.envs[0], "questions"):
        return  # made from seeds; the environment keeps its splits apart
    train = {question.id for question in envs.envs[0].questions}
    if shared := sum(question.id in train for question in held_out.envs[0].questions):
        raise ValueError(f"{shared} held-out questions are training questions too: give data with a split of each")


def baselines(held_out, policy, engine, questions: list[int], args: TrainArgs) -> list[dict]:
    """What the trained policy is compared with: Naive RAG where there are questions to search for, the policy before
    training (greedy, then sampled as in training) and the task's scripted agent."""
    play = partial(evaluate_policy, held_out, policy, engine, questions, args.max_new_tokens)
    rows, scripts = [], held_out.envs[0].SCRIPTS
    if hasattr(held_out.envs[0], "questions"):
        rows.append(evaluate.evaluate_naive_rag(held_out, policy, engine, questions, args.max_new_tokens))
    rows += [play(BEFORE)[0], play(BEFORE_SAMPLED, temperature=args.temperature)[0]]
    if "scripted" in scripts:
        rows.append(evaluate.evaluate_script(held_out, questions, scripts["scripted"], "Scripted agent"))
    return rows
