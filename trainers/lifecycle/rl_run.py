"""A run of reinforcement learning: episodes to learn from, held-out evaluations, the collapse monitor and the closing report."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Self

import torch

from trainers.checkpoints import card, run_dir
from trainers.checkpoints.settings import LENGTHS, list_changed, settings
from trainers.episodes.records import EpisodeWriter, Recorder
from trainers.episodes.report.tables import SUMMARY_FILE
from trainers.lifecycle.collapse_monitor import CollapseMonitor, mutual_information
from trainers.lifecycle.run import Metrics, Run, UpdateStep
from trainers.lifecycle.setup import BEFORE, BEFORE_SAMPLED, Setup
from trainers.models.hidden_states import ForwardTokenMeter
from trainers.rollouts.statistics import MONITOR, episode_metrics
from trainers.runtime import distributed
from trainers.runtime.progress import Progress
from trainers.runtime.provenance import describe_process
from trainers.runtime.retry import ToolsFailed
from trainers.trajectory import Trajectory


class RLRun:
    """A run of reinforcement learning: collect episodes, evaluate, log and save between the updates of an algorithm.

    Args:
        setup: policy, environments and engine of the run, see `trainers.lifecycle.setup.Setup`.
        optimizer: updates the policy; saved with each checkpoint.
        modules: other trained networks to save, by name, such as a critic.
    """

    sign, at_end = 1, False

    def __init__(self, setup: Setup, optimizer: torch.optim.Optimizer, **modules: torch.nn.Module):
        self.setup, self.args, self.policy = setup, setup.args, setup.policy
        self.key, self.episodes_so_far = f"eval/{setup.score}", 0
        self.monitor, self._meter = CollapseMonitor(setup.score), ForwardTokenMeter(setup.policy.backbone)
        self.run = Run(
            setup.args, setup.algorithm, setup.folder, setup.policy, optimizer, self, updates=setup.args.updates,
            sampler=setup.sampler, modules=modules,
        )  # fmt: skip
        with ExitStack() as stack:
            stack.enter_context(self.run)
            if not distributed.rank():  # open until the end: episodes of the closing table are recorded too
                writer = EpisodeWriter(setup.folder, self.run.first or None, baselines_again=bool(setup.recorded))
                self._episodes = stack.enter_context(writer)
            for recorder in setup.recorded:
                self._record(recorder)
            self._exits = stack.pop_all()
        if self.run.first and not distributed.rank():  # the summary is of the run before it continued
            (setup.folder / SUMMARY_FILE).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error) -> None:
        self._exits.__exit__(*error)

    def steps(self) -> Iterator[UpdateStep]:
        """Yield the updates of the run; the algorithm collects and learns between them."""
        for step in self.run.steps():
            yield step
            self._complete(step)

    def collect(self, step: UpdateStep) -> list[Trajectory]:
        """Collect the episodes to learn from: rollouts, and with ``args.dynamic_sampling`` more of them (DAPO)."""
        begin = time.monotonic()
        try:
            collected = self.setup.collector.collect(self.setup.envs, self.setup.engine, step.number)
        except ToolsFailed as error:
            self.run.stop(step.number, error)
        if not any(trajectory.steps for trajectory in collected.sampled):  # a program that never called the policy
            count = len(collected.sampled)
            told = f"the agent asked the policy for no turn in {count} episodes: nothing can be learned."
            self.run.stop(step.number, RuntimeError(told))
        step.waited = time.monotonic() - begin - collected.metrics["time/rollout"]
        step.rng = collected.rng
        by_group = sorted(collected.trajectories, key=lambda trajectory: trajectory.group)
        step.recorded = by_group[: self.args.keep_episodes]
        sampled = episode_metrics(collected.sampled, self.setup.score)
        step.log(collected.metrics | sampled)
        self.episodes_so_far += len(collected.sampled)
        step.log({"episodes": float(self.episodes_so_far)})
        if (information := mutual_information(self.policy, collected.trajectories, self.args)) is not None:
            step.log({MONITOR + "mutual_information": information})
        _ = self.policy.tree_attention  # the first use runs passes to find it out, which must not be counted
        self._meter.count = 0
        return collected.trajectories

    def _complete(self, step: UpdateStep) -> None:
        """Add metrics derived from an update, and record its episodes with their advantages."""
        step.log(distributed.all_reduce_sums({"tokens/processed_update": float(self._meter.count)}))
        metrics, score = step.metrics, self.setup.score
        if "filter/kept" in metrics:
            step.log({MONITOR + "empty_filter": float(metrics["filter/kept"] == 0)})
        if "policy/entropy" in metrics:  # the update was not skipped
            numbers = {"entropy": metrics["policy/entropy"], "gradient_norm": metrics["policy/grad_norm"]}
            step.log({MONITOR + name: value for name, value in numbers.items()})
        step.figures = {f"train {score}": metrics[f"train/{score}"]}
        step.figures |= {"reward": metrics["train/return"], "turns": metrics["train/turns"]}
        if step.recorded and not distributed.rank():
            agent, number = f"{self.setup.title.removeprefix('Trained with ')} (training)", step.number + 1
            recorder = self.setup.make_recorder(agent, self.setup.algorithm, number, training=True, tokens=True)
            for trajectory in step.recorded:
                recorder.add_trajectory(trajectory, trajectory.group)
            self._record(recorder)

    def _record(self, recorder: Recorder) -> None:
        if not distributed.rank():
            self._episodes.write_recorded(recorder)

    def evaluate(self, done: int) -> Metrics:
        """Evaluate on held-out questions; return the metrics."""
        self.setup.collector.update_weights()  # waits for its thread, one step ahead, which draws from the same generator
        # With its own random state, so that the number of evaluations does not change the training.
        with torch.random.fork_rng():
            torch.manual_seed(self.args.seed + distributed.rank())
            recorder = self.setup.make_recorder(self.setup.title, "policy", done)
            row = self.setup.evaluate(self.args.eval_questions, "", self.args.eval_temperature, recorder)
        self._record(recorder)
        names = (self.setup.score, "f1", "support_recall", "turns", "calls", "invalid", "failed", "tool_faults")
        return {f"eval/{name}": row[name] for name in names if name in row} | {"episodes": float(self.episodes_so_far)}

    def observe(self, done: int, metrics: Mapping[str, float | None], progress: Progress | None) -> bool:
        """Pass the metrics of an update to the collapse monitor; returns whether the run is to stop."""
        self.episodes_so_far = int(metrics.get("episodes") or self.episodes_so_far)
        return self.monitor.record(done, metrics, progress) and self.args.stop_on_collapse

    def prepare_save(self) -> None:
        """Wait for the collector, and write the episodes to the disk."""
        self.setup.collector.update_weights()  # waits for its thread, one step ahead, which draws from the same generator
        if not distributed.rank():
            self._episodes.sync()

    def describe(self) -> dict[str, Any]:
        """Return further entries for the report of an unfinished run."""
        args, setup = self.args, self.setup
        source = dict(zip(("source", "train_source"), setup.sources, strict=True))
        return {
            "env": args.env, **source, "seed": args.seed, "score": setup.score, "rows": setup.rows,
            "settings": settings(args) | {n: getattr(args, n) for n in LENGTHS}, "changed": list_changed(args),
            "evaluation": {n: v for n, v in asdict(args).items() if n.startswith("eval_") or n == "final_questions"},
            "symptoms": self.monitor.symptoms, **describe_process(),
        }  # fmt: skip

    def close(self) -> dict[str, Any]:
        """Evaluate the trained policy, and write the summary and the report; returns the summary."""
        setup, saved, summary = self.setup, self.run.saved, {}
        self.run.close()
        recorder = setup.make_recorder(setup.title, "trained", saved, tokens=True, in_table=True)
        try:
            row = setup.evaluate(self.args.final_questions, setup.title, 0.0, recorder)
        except ToolsFailed as error:
            self.run.stop(saved, error)
        self._record(recorder)
        if not distributed.rank():
            summary = self._summarize([*setup.rows, row])
            records = [json.loads(record) for record, _ in recorder.lines]
            run_dir.write_report(setup.folder, summary, records)
            if self.args.push_to_hub:
                card.push(setup.folder / f"checkpoint-{saved}", self.args.push_to_hub)
        return distributed.broadcast(summary)

    def _summarize(self, rows: list[dict]) -> dict[str, Any]:
        """Make the summary of the finished run. ``rows``: of the table; the last one is the trained policy's."""
        score = self.setup.score
        reached = {row["name"]: row[score] for row in rows}
        return self.describe() | {
            f"{score}_cold_start": reached[BEFORE], f"{score}_cold_start_sampled": reached[BEFORE_SAMPLED],
            f"{score}_trained": rows[-1][score],
            "seconds_cold_start": self.setup.seconds_cold_start, "rows": rows, "folder": str(self.setup.folder),
            "algorithm": self.setup.algorithm, "seconds_training": self.run.seconds,
            "episodes": self.episodes_so_far, "stopped_on_collapse": self.run.stopped,
        }  # fmt: skip
