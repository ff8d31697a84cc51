"""A training run around an algorithm's loop: what it begins with, what happens between its updates, how it ends.

with Run(args, "grpo", "Trained with GRPO") as run:   # folder, environments, policy, engine; baselines are played
    optimizer = ...                                   # of run.policy
    for step in run.steps(optimizer):                 # resumes; between updates: evaluates, logs, saves
        episodes = run.collect(step)                  # rollouts
        step.log(...)                                 # gradient steps, and what they were like
run.summary                                           # the trained policy is evaluated, the report is written
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import NoReturn, Self, cast

import numpy as np
import torch

from trainers import factory
from trainers.algorithms.schedules import learning_rate_factor
from trainers.checkpoints import card, run_dir
from trainers.checkpoints.settings import ASKED, settings
from trainers.config import TrainArgs
from trainers.episodes.records import Recorder, make_pieces
from trainers.episodes.report import page as html_report
from trainers.evaluation import evaluator
from trainers.inputs import check_sinks
from trainers.loop.metrics import find_not_finite, mutual_information_statistics, update_statistics
from trainers.loop.records import Recorders, Records, measure_share
from trainers.models.denormals import flushing_denormals
from trainers.models.fsdp import ShardedPolicy
from trainers.models.hidden_states import ForwardTokenMeter
from trainers.models.loading import episodes_at_once
from trainers.models.policy import Policy
from trainers.rollouts.batching import Metrics
from trainers.rollouts.collector import Collector
from trainers.rollouts.rollout import check_formats
from trainers.rollouts.statistics import episode_metrics
from trainers.runtime import distributed, retry, signals
from trainers.runtime.errors import UserError
from trainers.runtime.progress import METRICS_FILE, Progress, read_metrics
from trainers.runtime.retry import ToolsFailed
from trainers.tiny.cold_start import start_run
from trainers.trajectory import Trajectory

BEFORE, BEFORE_SAMPLED = "Base Tool Call (before RL)", "Base Tool Call, sampled"  # names of rows


@dataclass(slots=True, kw_only=True)
class UpdateStep:
    """An update of a run.

    Attributes:
        number: from 0.
        rng: what the minibatches are shuffled with. `Run.collect` sets it: a seed and ``number`` give it.
        metrics: of this update.
        kept: episodes that are recorded, once they have been learned from.
        collecting: seconds that `Run.collect` waited for episodes, outages included.
    """

    number: int
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    metrics: Metrics = field(default_factory=dict)
    kept: list[Trajectory] = field(default_factory=list)
    collecting: float = 0.0

    def log(self, metrics: Metrics) -> None:
        """Add metrics to the line of this update in metrics.jsonl."""
        self.metrics |= metrics


class Run:
    """A whole run, in a folder of its own. Started by torchrun, it is one run of all processes, each of which plays its
    share of the questions.

    Args:
        algorithm: its short name, for the folder of the run.
        title: what the trained policy is called in the table.

    Attributes:
        envs, held_out: where it trains, and where it is evaluated.
        policy: what learns. With one process it also plays. With several it is a sharded copy of the policy that plays,
            and with ``one_step_off_policy`` a copy of it plays, `Collector.policy`.
        summary: what the run was and what it reached, when it is over; ``summary.json`` in its folder holds it as well.
    """

    def __init__(self, args: TrainArgs, algorithm: str, title: str):
        self.args, self.algorithm, self.title = args, algorithm, title
        self.summary: dict = {}
        self._recorded: list[Recorder] = []  # the baselines, until the files of the run are open

    def __enter__(self) -> Self:
        args = self.args
        with ExitStack() as stack:
            stack.enter_context(flushing_denormals())
            stack.enter_context(distributed.join_processes())
            factory.check_world_size(args)
            torch.manual_seed(args.seed)
            check_sinks(args.log)
            stack.enter_context(signals.handle_signals())
            self.folder = stack.enter_context(run_dir.claim_folder(args, self.algorithm))
            count = args.questions_per_update // distributed.world_size() * args.group_size
            self.envs = factory.make_envs(args.env, args.env_kwargs, "train", count)
            self.held_out = factory.make_envs(args.env, args.env_kwargs, "validation", episodes_at_once())
            self.score = self.held_out.envs[0].PRIMARY_METRIC
            factory.check_splits(self.envs, self.held_out)
            # Now: an environment that has to be asked is reset by it.
            self._sources = evaluator.source_of(self.held_out), evaluator.source_of(self.envs)
            check_formats(self.envs)
            self._start_policy()
            stack.callback(self.collector.close)
            self._rows = self._find_baselines()
            # After the baselines, which need memory for their keys and values: with several processes it is a copy.
            self.policy: Policy = ShardedPolicy(self._player) if distributed.world_size() > 1 else self._player
            self._meter = ForwardTokenMeter(self.policy.model.base_model)
            self._exits = stack.pop_all()
        return self

    def __exit__(self, *error) -> None:
        self._exits.__exit__(*error)
        if error == (None, None, None) and not self.summary:
            raise RuntimeError(
                f"{self.folder}: the loop over run.steps() was left before its end: nothing was evaluated"
            )

    def _start_policy(self) -> None:
        args = self.args
        with distributed.first_before_others():
            self._player, self._seconds_cold_start = start_run(args, self.envs, self.folder)
        distributed.broadcast_weights(self._player.model)
        distributed.reseed(args.seed)
        pieces = make_pieces(self._player.tokenizer)
        self._recorders = Recorders(args.env, self.score, self._sources, pieces)
        self.collector = Collector(args, self._player)
        stop = self.envs.envs[0].stop
        self.engine = factory.make_engine(args.engine, self.collector.policy, stop, args.vllm_url, args.vllm_kv_gib)

    # -- the loop --------------------------------------------------------------------------------------------------

    def steps(self, optimizer: torch.optim.Optimizer, **modules: torch.nn.Module) -> Iterator[UpdateStep]:
        """The updates of the run, from the checkpoint on where it resumes. Between them: evaluations on held-out
        questions, metrics, the collapse monitor and checkpoints; after the last, the closing table and the report.

        Args:
            optimizer: of ``self.policy`` and ``modules``.
            modules: what is trained or steered beside the policy, such as a critic, by name; a checkpoint holds it.
        """
        args = self.args
        if isinstance(self.policy, ShardedPolicy):
            self.policy.shard([optimizer], modules.values())
        full_rates = [group["lr"] for group in optimizer.param_groups]  # a checkpoint has those of its update
        first = run_dir.resume(self.folder, self._player, [optimizer], modules) if args.resume else 0
        if first > args.updates:
            raise UserError(
                f"{self.folder} has had {first} updates already: updates must be at least as many, got {args.updates}"
            )
        self._trained, self._saved = ([optimizer], modules), first
        records = Records(args, self.algorithm, self.folder, self.score, first, self._recorded)
        self._records = self._exits.enter_context(records)
        self._recorded.clear()
        self._evaluate_first(first)
        schedule, stopped = signals.SaveSchedule(args.save_every, args.save_every_minutes), False
        with signals.deferring():
            for number in range(first, args.updates):
                if self._has_had_its_time():  # before it was resumed
                    break
                step, begin = UpdateStep(number=number), time.monotonic()
                factor = learning_rate_factor(args.schedule, args.warmup, self._share_done(number))
                for group, rate in zip(optimizer.param_groups, full_rates, strict=True):
                    group["lr"] = rate * factor
                step.log({"policy/lr": optimizer.param_groups[0]["lr"]})
                if isinstance(self.policy, ShardedPolicy):
                    self.policy.read_weights(self._player)
                yield step  # the algorithm's loop collects and learns here; what follows comes after its update
                if isinstance(self.policy, ShardedPolicy):
                    self.policy.write_weights(self._player)
                stopped = self._finish(step, time.monotonic() - begin)
                signal = max(distributed.all_gather([signals.received()]))
                is_due = distributed.broadcast(schedule.is_due(number + 1))
                if is_due or stopped or signal or number + 1 == args.updates or self._has_had_its_time():
                    self._save(number + 1)
                if signal:
                    self._exit_by_signal(signal)
                if stopped:
                    break
        self._close(stopped)

    def collect(self, step: UpdateStep) -> list[Trajectory]:
        """The episodes to learn from: rollouts, and with ``args.refill`` more of them (DAPO's dynamic sampling)."""
        begin = time.monotonic()
        try:
            collected = self.collector.collect(self.envs, self.engine, step.number)
        except ToolsFailed as error:
            self._stop(step.number, error)
        step.collecting += time.monotonic() - begin
        step.rng = collected.rng
        by_group = sorted(collected.episodes, key=lambda trajectory: trajectory.group)
        step.kept = by_group[: self.args.keep_episodes]
        step.log(collected.metrics | episode_metrics(collected.played, self.score))
        step.log({"episodes": float(len(collected.played))})
        _ = self.policy.tree_attention  # found out at its first use, by passes that are not to be counted
        self._meter.start()
        step.log(mutual_information_statistics(self.policy, collected.episodes, self.args))
        return collected.episodes

    def evaluate(
        self, questions: int, name: str = "", temperature: float = 0.0, recorder: Recorder | None = None
    ) -> tuple[dict, list[list[dict]]]:
        """The row of a table about so many held-out questions, with the newest weights, and the episodes.

        Args:
            recorder: takes the records of the episodes.

        Raises:
            ToolsFailed: tools broke in more than half of the episodes, for ``tool_outage_minutes``.
        """
        self.collector.update_weights()
        play = partial(
            evaluator.evaluate_policy, self.held_out, self.collector.policy, self.engine,
            evaluator.instances(self.held_out, questions), self.args.max_new_tokens, name, temperature=temperature,
            recorder=recorder,
        )  # fmt: skip
        minutes = self.args.tool_outage_minutes
        return retry.play_until_tools_work(play, lambda played: cast(float, played[0]["failed"]), minutes)

    # -- between updates -------------------------------------------------------------------------------------------

    def _evaluate_first(self, first: int) -> None:
        """The evaluation before the first update, or the one that an outage kept the run from."""
        records = self._records
        if not first:
            metrics = self._validate(0) | {"episodes": 0.0}
            records.logger.log(0, metrics)
            records.tracker.record(0, metrics, records.progress)
            records.best = metrics[f"eval/{self.score}"]  # weights are kept where they do better than the start
            records.progress.update(0, **self._held_out(metrics))
        elif distributed.broadcast(records.is_missing):
            metrics = self._validate(first)
            records.logger.amend(first, metrics)
            records.tracker.record(first, metrics, records.progress)
            self._keep_best(first, metrics)

    def _has_had_its_time(self) -> bool:
        """Whether rollouts and updates have taken ``max_seconds``, where there is such a limit."""
        return 0 < self.args.max_seconds <= distributed.broadcast(self._records.seconds)

    def _share_done(self, number: int) -> float:
        """The share of the run that is done in the middle of an update, if it takes as long as those before it."""
        middle, spent = number + 0.5, distributed.broadcast(self._records.seconds)
        return measure_share(self.args, middle, spent * middle / number if number else 0.0)

    def _held_out(self, metrics: Metrics) -> Metrics:
        """The score on held-out questions by its name in the progress; nothing where there was no evaluation."""
        key = f"eval/{self.score}"
        return {f"held-out {self.score}": metrics[key]} if key in metrics else {}

    def _record_training(self, step: UpdateStep) -> None:
        if not step.kept or distributed.rank():
            return
        agent = f"{self.title.removeprefix('Trained with ')} (training)"
        recorder = self._recorders.make(agent, self.algorithm, step.number + 1, training=True, tokens=True)
        for trajectory in step.kept:
            recorder.add_trajectory(trajectory, trajectory.group)
        self._records.write(recorder)

    def _validate(self, done: int) -> Metrics:
        self.collector.update_weights()  # its thread, playing one step ahead, draws from the same generator
        # In a random state of its own, so that how often one looks changes nothing.
        with torch.random.fork_rng():
            torch.manual_seed(self.args.seed + distributed.rank())
            recorder = self._recorders.make(self.title, "policy", done)
            temperature = self.args.eval_temperature
            row, _ = self.evaluate(self.args.eval_questions, temperature=temperature, recorder=recorder)
        self._records.write(recorder)
        self._records.logger.show_episodes(done, (line for line, _ in recorder.lines))
        names = (self.score, "f1", "support_recall", "turns", "calls", "failed", "tool_faults")
        return {f"eval/{name}": row[name] for name in names if name in row}

    def _finish(self, step: UpdateStep, seconds: float) -> bool:
        """Complete the metrics of an update and record them; returns whether training is to stop."""
        args, records, metrics, done = self.args, self._records, step.metrics, step.number + 1
        metrics["time/update"] = seconds - step.collecting
        seconds = metrics["time/rollout"] + metrics["time/update"]
        records.seconds += seconds
        metrics |= distributed.all_reduce_sums({"tokens/processed_update": float(self._meter.stop())})
        metrics["tokens/per_second"] = metrics["tokens/all"] / seconds
        metrics |= update_statistics(metrics)
        records.played += int(metrics["episodes"])
        metrics["episodes"] = float(records.played)
        self._record_training(step)
        wrong, failure = find_not_finite(metrics, {"the policy": self._player.model, **self._trained[1]}), None
        if done % args.eval_every == 0 and not wrong:
            try:
                metrics |= self._validate(done)
            except ToolsFailed as error:
                failure = error
        records.logger.log(done, metrics)
        if wrong:
            rest = self._describe_rest()
            raise signals.TrainingStopped(f"{wrong} after update {done}, which is not saved. {rest}")
        records.progress.update(
            done, measure_share(args, done, records.seconds),
            **{f"train {self.score}": metrics[f"train/{self.score}"]} | self._held_out(metrics),
            reward=metrics["train/return"], turns=metrics["train/turns"], tokens_per_s=metrics["tokens/per_second"],
        )  # fmt: skip
        self._keep_best(done, metrics)
        if failure is not None:
            self._stop(done, failure)
        return distributed.broadcast(records.tracker.record(done, metrics, records.progress) and args.stop_on_collapse)

    def _keep_best(self, done: int, metrics: Metrics) -> None:
        """Keep the weights of an evaluation that is the best so far."""
        score = metrics.get(f"eval/{self.score}", -math.inf)
        if score > self._records.best:
            self._records.best = score
            run_dir.save_best(self.folder, self._player, done, score, self.args)

    def _save(self, done: int) -> None:
        """Write the checkpoint of the state after ``done`` updates."""
        self.collector.update_weights()  # its thread, playing one step ahead, draws from the same generator
        self._records.sync()
        optimizers, modules = self._trained
        run_dir.save(self.folder, self._player, optimizers, modules, done, self.args)
        self._saved = done
        if not distributed.rank() and done < self.args.updates:
            run_dir.write_unfinished_page(self.folder, self._describe(), self._describe_share(done))

    def _stop(self, done: int, error: Exception) -> NoReturn:
        """End the run, which cannot go on, with a checkpoint of the state after ``done`` updates."""
        if done and self._saved < done:
            self._save(done)
        if signal := max(distributed.all_gather([signals.received()])):
            self._exit_by_signal(signal)
        raise signals.TrainingStopped(f"{error} {self._describe_rest()}") from None

    def _exit_by_signal(self, signal: int) -> NoReturn:
        """Report what there is, and end the process."""
        self._records.end_updates()
        if not distributed.rank():
            run_dir.write_unfinished_report(self.folder, self._describe(), self._describe_share(self._saved))
        signals.exit_by_signal(signal, self._describe_rest())

    def _describe_rest(self) -> str:
        if not self._saved:
            return "No update is done yet, so there is no checkpoint."
        path = self.folder / f"checkpoint-{self._saved}"
        return f"{path} is saved: {self._describe_share(self._saved)}; --resume {self.folder} goes on from there."

    def _describe_share(self, done: int) -> str:
        limit, updates = self.args.max_seconds, f"{done} of {self.args.updates} updates"
        return f"{updates}, {self._records.seconds:.0f} of {limit:g} seconds" if limit else updates

    # -- before and after ------------------------------------------------------------------------------------------

    def _find_baselines(self) -> list[dict]:
        """The rows of the baselines: a run that is resumed has them already, unless more questions are asked or others."""
        digest = evaluator.data_digest(self.held_out.envs[0])
        asked = {"questions": self.args.final_questions, "source": self._sources[0], "data": digest}
        rows = distributed.broadcast(run_dir.read_baselines(self.folder, asked) if self.args.resume else None)
        if rows is None:
            rows = self._evaluate_baselines()
            if not distributed.rank():
                run_dir.write_baselines(self.folder, asked, rows)
        return rows

    def _evaluate_baselines(self) -> list[dict]:
        """What the trained policy is compared with: Naive RAG where there are questions to search for, the policy before
        training (greedy, then sampled as in training) and the task's scripted agent."""
        held_out, args, policy = self.held_out, self.args, self.collector.policy
        questions, rows = evaluator.instances(held_out, args.final_questions), []
        asks, scripted = evaluator.can_be_searched_for(held_out.envs[0]), held_out.envs[0].SCRIPTS.get("scripted")
        with Progress((2 + asks + bool(scripted)) * len(questions), "episodes", "baselines") as progress:

            def add(play: Callable[[Recorder], dict], agent: str, name: str, tokens: bool = False) -> None:
                recorder = self._recorders.make(agent, name, 0, tokens=tokens, in_table=True)
                minutes, failed = args.tool_outage_minutes, lambda row: row["failed"]
                rows.append(retry.play_until_tools_work(partial(play, recorder), failed, minutes))
                self._recorded.append(recorder)
                progress.update(len(rows) * len(questions))

            progress.update(0)  # with a large model they take minutes
            if asks:
                rag = partial(
                    evaluator.evaluate_naive_rag, held_out, policy, self.engine, questions, args.max_new_tokens
                )
                add(lambda recorder: rag("Naive RAG", recorder), "Naive RAG", "naive-rag")
            count = args.final_questions
            add(lambda recorder: self.evaluate(count, BEFORE, 0.0, recorder)[0], BEFORE, "before", True)
            sampled = partial(self.evaluate, count, BEFORE_SAMPLED, args.temperature)
            add(lambda recorder: sampled(recorder)[0], BEFORE_SAMPLED, "before-sampled", True)
            if scripted:
                script = partial(evaluator.evaluate_script, held_out, questions, scripted, "Scripted agent")
                add(script, "Scripted agent", "scripted")
                self._recorded.insert(0, self._recorded.pop())  # it fills every field, see `episodes._with_types`
        return rows

    def _close(self, stopped: bool) -> None:
        """Evaluate the trained policy, and write the summary and the report."""
        self._records.end_updates()
        recorder = self._recorders.make(self.title, "trained", self._saved, tokens=True, in_table=True)
        try:
            row, transcripts = self.evaluate(self.args.final_questions, self.title, recorder=recorder)
        except ToolsFailed as error:
            self._stop(self._saved, error)
        self._records.write(recorder)
        if not distributed.rank():
            self.summary = self._summarize([*self._rows, row]) | {
                "algorithm": self.algorithm,
                "seconds_training": read_metrics(self.folder / METRICS_FILE)[-1]["seconds"],
                "episodes": self._records.played,
                "stopped_on_collapse": stopped,
                "symptoms": self._records.tracker.symptoms,
            }
            run_dir.write_report(self.folder, self.summary, transcripts)
            if self.args.push_to_hub:
                card.push(self.folder / f"checkpoint-{self._saved}", self.args.push_to_hub)
        self.summary = distributed.broadcast(self.summary)

    def _describe(self) -> dict:
        """What a report of an unfinished run says as well."""
        source = dict(zip(("source", "train_source"), self._sources, strict=True))
        return {
            "env": self.args.env, **source, "seed": self.args.seed, "score": self.score, "rows": self._rows,
            "settings": settings(self.args) | {n: getattr(self.args, n) for n in ASKED}, "command": html_report.typed_command(),
            "symptoms": self._records.tracker.symptoms,
        }  # fmt: skip

    def _summarize(self, rows: list[dict]) -> dict:
        """``rows``: of the table; the last one is the trained policy's."""
        args, score = self.args, self.score
        reached = {row["name"]: row[score] for row in rows}
        return self._describe() | {
            f"{score}_cold_start": reached[BEFORE], f"{score}_cold_start_sampled": reached[BEFORE_SAMPLED],
            f"{score}_trained": rows[-1][score],
            **({"em_naive_rag": reached["Naive RAG"]} if "Naive RAG" in reached else {}),
            "seconds_cold_start": self._seconds_cold_start, "rows": rows, "folder": str(self.folder),
            "evaluation": {n: v for n, v in asdict(args).items() if n.startswith("eval_") or n == "final_questions"},
        }  # fmt: skip
