"""What training is, whatever the algorithm: environments, a policy, baselines; then episodes, an update, an evaluation,
over and over; then a report. An algorithm is a `Learner`: what it makes of a batch of episodes.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np
import torch

from agent_envs.vector import ToolVectorEnv
from trainers import distributed, evaluate
from trainers.collector import Batches
from trainers.engines.engine import Engine
from trainers.models.fsdp import started
from trainers.models.policy import Policy
from trainers.runs import folder as runs
from trainers.runs.arguments import TrainArgs
from trainers.runs.logger import METRICS_FILE, Logger, Progress, read_metrics
from trainers.runs.monitoring import CollapseTracker, mutual_information_statistics, update_statistics
from trainers.runs.start import BEFORE, BEFORE_SAMPLED, Run, baselines, prepared
from trainers.trajectory import Trajectory, to_sequences


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
    run = prepared(args, algorithm)
    rows = baselines(run)
    learner = started(start, run.policy)
    learned_from, watch, stopped = learning(run, learner, algorithm)
    row, transcripts = run.evaluated(args.final_questions, title)
    if distributed.rank():
        return distributed.agreed({})
    seconds = read_metrics(run.folder / METRICS_FILE)[-1]["seconds"]
    summary = summary_of(run, [*rows, row]) | {
        "algorithm": algorithm, "seconds_training": seconds, "episodes": learned_from, "stopped_on_collapse": stopped,
        "symptoms": watch.symptoms,
    }  # fmt: skip
    runs.write_report(run.folder, summary, transcripts)
    return distributed.agreed(summary)


def learning(run: Run, learner: Learner, algorithm: str) -> tuple[int, CollapseTracker, bool]:
    """Updates, evaluations and checkpoints; returns how many episodes were played, what the monitor saw, and whether it
    stopped the run."""
    args = run.args
    first = runs.resume(run.folder, run.policy, learner.optimizers, learner.modules) if args.resume else 0
    if first > args.updates:
        raise ValueError(
            f"{run.folder} has had {first} updates already: updates must be at least as many, got {args.updates}"
        )
    with (
        distributed.folder_of_records(run.folder) as records,
        Logger(
            records, args.log if records == run.folder else (), asdict(args), resume_from=first + 1 if first else 0
        ) as logger,
        Progress(args.updates, "updates", algorithm, first) as progress,
    ):
        lines = read_metrics(records / METRICS_FILE)
        watch, played = CollapseTracker(run.score, lines), int(lines[-1]["episodes"]) if lines else 0
        if not first:
            metrics = run.validated() | {"episodes": 0}
            logger.log(0, metrics)
            watch.record(0, metrics, progress)
        done, stopped = first, False
        while done < args.updates and not stopped:
            metrics = one_update(args, run.envs, run.batches, run.engine, run.policy, learner, done, run.score)
            done, played = done + 1, played + int(metrics["episodes"])
            metrics["episodes"] = played
            if done % args.eval_every == 0:
                metrics |= run.validated()
            logger.log(done, metrics)
            progress.update(
                done, reward=metrics["train/return"], turns=metrics["train/turns"],
                tokens_per_s=metrics["tokens/per_second"], **{run.score: metrics[f"train/{run.score}"]},
            )  # fmt: skip
            stopped = distributed.agreed(watch.record(done, metrics, progress) and args.stop_on_collapse)
            if done % args.save_every == 0 or done == args.updates or stopped:
                run.batches.catch_up()
                runs.save(run.folder, run.policy, learner.optimizers, learner.modules, done, args)
    return played, watch, stopped


def summary_of(run: Run, rows: list[dict]) -> dict:
    """What a run was and what it reached. ``rows``: of the table; the last one is the trained policy's."""
    args, score = run.args, run.score
    reached = {row["name"]: row[score] for row in rows}
    return {
        "env": args.env, "source": evaluate.source_of(run.held_out), "train_source": evaluate.source_of(run.envs),
        "seed": args.seed, "score": score, f"{score}_cold_start": reached[BEFORE],
        f"{score}_cold_start_sampled": reached[BEFORE_SAMPLED], f"{score}_trained": rows[-1][score],
        **({"em_naive_rag": reached["Naive RAG"]} if "Naive RAG" in reached else {}),
        "seconds_cold_start": run.seconds_cold_start, "rows": rows, "folder": str(run.folder),
        "settings": runs.settings(args) | {"updates": args.updates},
        "evaluation": {n: v for n, v in asdict(args).items() if n.startswith("eval_") or n == "final_questions"},
    }  # fmt: skip


def one_update(
    args: TrainArgs, envs: ToolVectorEnv, batches: Batches, engine: Engine, policy: Policy, learner: Learner, number: int,
    score: str,
) -> dict[str, float]:  # fmt: skip
    """Episodes and what is learned from them; update ``number`` draws the same questions in every run of a seed."""
    begin = time.monotonic()
    batch = batches.next(envs, engine, number)
    policy.fed["update"] = 0
    seen = mutual_information_statistics(policy, batch.episodes, args)
    metrics = episode_metrics(batch.played, score) | learner.update(batch.episodes, batch.rng) | batch.metrics
    seconds = time.monotonic() - begin
    metrics |= {"time/update": seconds - metrics["time/rollout"], "tokens/computed_update": float(policy.fed["update"])}
    metrics |= {"tokens/per_second": metrics["tokens/all"] / seconds, "episodes": float(len(batch.played))}
    return metrics | seen | update_statistics(metrics)


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
        "train/zero_std_groups": np.mean([np.ptp(group) < 1e-6 for group in groups]),
    }
    for name in dict.fromkeys(name for t in trajectories for name in t.reward_terms):
        metrics[f"reward/{name}"] = np.mean([t.reward_terms.get(name, 0.0) for t in trajectories])
    return {name: float(value) for name, value in metrics.items()}
