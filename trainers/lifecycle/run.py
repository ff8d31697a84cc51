"""A training run by reinforcement learning or SFT: its folder, learning rates, metrics, checkpoints, and how it ends.

with open_run_dir(args, "sft") as folder:       # several processes, signals, the seed; the folder, which no other run may use
    policy, optimizer, evaluation = ...
    with Run(args, "sft", folder, policy, optimizer, evaluation, updates=100) as run:   # resumes
        for step in run.steps():                # between updates: evaluates, logs, saves, ends by signal
            step.log(update(...))

`trainers.checkpoints.run_dir` lists the files of the folder.
"""

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

import numpy as np
import torch

from trainers.algorithms.schedules import learning_rate_factor
from trainers.checkpoints import checkpoint, run_dir
from trainers.episodes.report.tables import SUMMARY_FILE
from trainers.inputs import check_sinks
from trainers.lifecycle.logger import Logger
from trainers.models.denormals import flushing_denormals
from trainers.models.fsdp import ShardedPolicy
from trainers.models.policy import Policy, check_finite
from trainers.runtime import distributed, integrity, signals
from trainers.runtime.integrity import BEST, CheckpointDamaged
from trainers.runtime.progress import METRICS_FILE, Progress, read_metrics
from trainers.runtime.retry import ToolsFailed
from trainers.trajectory import Trajectory

Metrics = dict[str, float]
_PAGE_SECONDS = 60.0  # after an update, report.html is written again if it is older than this


@dataclass(slots=True, kw_only=True)
class UpdateStep:
    """An update of a run."""

    number: int  # from 0
    rng: np.random.Generator = field(default_factory=np.random.default_rng)  # shuffles the minibatches
    metrics: Metrics = field(default_factory=dict)  # of this update
    figures: Metrics = field(default_factory=dict)  # for the progress bar
    recorded: list[Trajectory] = field(default_factory=list)  # episodes to record once they have been learned from
    # Seconds of collecting beyond ``time/rollout`` (tool failures, pauses), which do not count. Can be below 0 if the batch was
    # sampled during the update before.
    waited: float = 0.0

    def log(self, metrics: Metrics) -> None:
        """Add metrics to the line of this update in metrics.jsonl."""
        self.metrics |= metrics


class Evaluation(Protocol):
    """The hooks of `Run` between updates: evaluations, the stopping rule, and the state of a checkpoint."""

    key: str  # the metric that the best weights are chosen by
    sign: int  # 1 if more of it is better, -1 if less is
    at_end: bool  # always evaluate after the last update, and keep only what the evaluation chose

    def evaluate(self, done: int) -> Metrics:
        """Compute metrics of held-out data after ``done`` updates; empty if there is no such data."""

    def observe(self, done: int, metrics: Mapping[str, float | None], progress: Progress | None) -> bool:
        """Read the metrics of an update; return whether the run is to end. A resumed run first passes its earlier metrics."""

    def prepare_save(self) -> None:
        """Finish pending work that a checkpoint depends on."""

    def describe(self) -> dict[str, Any]:
        """Return entries of the summary, for the report of an unfinished run."""


@contextmanager
def open_run_dir(args: Any, algorithm: str) -> Iterator[Path]:
    """Join the processes, seed them, handle signals, and yield the folder of the run."""
    with flushing_denormals(), distributed.join_processes():
        torch.manual_seed(args.seed)
        check_sinks(args.report_to)
        with signals.handle_signals(), run_dir.create_run_dir(args, algorithm) as folder:
            yield folder


def measure_share(args: Any, updates: float, most: float, seconds: float) -> float:
    """Compute the share of a run that is done: of its updates, or of ``max_seconds`` if that share is larger."""
    return max(updates / most, seconds / args.max_seconds if args.max_seconds else 0.0)


def find_not_finite(metrics: Mapping[str, float], modules: Mapping[str, torch.nn.Module]) -> str:
    """Describe a loss of an update, or a trained weight, that is NaN or infinite; "" if all are finite.

    A gradient that is not finite does no harm, as its step is skipped. After a loss that is not finite, later losses will be no
    better, and a weight that is not finite makes all later numbers worthless.
    """
    for name, value in metrics.items():
        if name.endswith("loss") and not math.isfinite(value):
            return f"{name} is {value}"
    try:
        for name, module in modules.items():
            check_finite(((n, p) for n, p in module.named_parameters() if p.requires_grad), name)
    except ValueError as error:
        return str(error)
    return ""


class Run:
    """The updates of a run; a resumed run continues from its latest checkpoint.

    Args:
        algorithm: its name in the progress bar.
        policy: the policy to train. ``sampler``: the policy that rolls out and is saved, if ``policy`` is a sharded copy of it.
        optimizer: of ``policy`` and ``modules``.
        modules: networks and states beside the policy that are trained and saved, by name, such as a critic.
        updates: their largest number; infinite if ``args.max_seconds`` is the only limit.
        extra: settings that checkpoints keep beside ``args``.

    Attributes:
        done, first, saved: number of updates so far, before the run was resumed, and in the newest checkpoint.
        seconds: duration of all updates, with their rollouts and without evaluations.
        best: the best evaluation so far.
        stopped: whether the evaluation has ended the run.
    """

    def __init__(
        self, args: Any, algorithm: str, folder: Path, policy: Policy, optimizer: torch.optim.Optimizer,
        evaluation: Evaluation, *, updates: float, sampler: Policy | None = None,
        modules: dict[str, Any] | None = None, extra: dict[str, Any] | None = None,
    ):  # fmt: skip
        self.args, self.folder, self.updates, self.evaluation = args, folder, updates, evaluation
        self.policy, self.sampler, self.optimizer = policy, sampler or policy, optimizer
        self.modules, self.extra = (
            modules or {},
            {"format": self.sampler.format, "stop": self.sampler.stop} | (extra or {}),
        )
        if isinstance(self.policy, ShardedPolicy):
            self.policy.shard([optimizer], self.modules.values())
        self.full_rates = [group["lr"] for group in optimizer.param_groups]  # before resume sets scheduled ones
        self._page_at = time.monotonic()
        self.first = self.saved = self.done = (
            run_dir.resume(folder, self.sampler, [optimizer], self.modules) if args.resume else 0
        )
        if isinstance(self.policy, ShardedPolicy):
            self.policy.read_weights(self.sampler)
        with ExitStack() as stack:
            self.logger: Logger | None = None  # of the first process
            if not distributed.rank():
                begin = self.first + 1 if self.first else 0
                self.logger = stack.enter_context(Logger(folder, args.report_to, asdict(args), begin))
            lines: list[dict] = distributed.broadcast(read_metrics(folder / METRICS_FILE) if self.logger else [])
            self.seconds = sum(line.get("time/rollout", 0.0) + line.get("time/update", 0.0) for line in lines)
            by_time, done = math.isinf(updates), measure_share(args, self.first, updates, self.seconds)
            by_updates = updates, "updates", 0.0 if by_time else done * updates
            total, unit, at = (args.max_seconds, "s", self.seconds) if by_time else by_updates
            self.progress = stack.enter_context(Progress(total, unit, algorithm, at))
            self._exits = stack.pop_all()
        stops = [evaluation.observe(int(line["step"]), line, None) for line in lines]
        was_to_end = (
            bool(stops) and stops[-1] and not (folder / SUMMARY_FILE).exists()
        )  # the run was killed before its report
        self.stopped: bool = distributed.broadcast(was_to_end)
        key, sign = evaluation.key, evaluation.sign
        counted = int(evaluation.at_end)  # with at_end, step 0 does not count: some weights must be kept as the best
        scores = [line[key] for line in lines if line["step"] >= counted and line.get(key) is not None]
        kept = None  # it may come from after the checkpoint, before a kill
        if self.first and self.logger and integrity.is_checkpoint(folder / BEST):
            with suppress(CheckpointDamaged):
                kept = checkpoint.read_extra(folder / BEST)["best"]["score"]
        kept = distributed.broadcast(kept)
        scores += [] if kept is None else [kept]
        self.best: float = max(scores, key=lambda score: sign * score, default=-sign * math.inf)
        is_missing = not lines or key not in lines[-1]  # in lines[-1], if a signal came before the evaluation
        self._evaluates_first = not self.first or (self.first % args.eval_every == 0 and is_missing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error) -> None:
        self._exits.__exit__(*error)

    def close(self) -> None:
        """Close the metrics and the progress; evaluations and reports may follow."""
        self._exits.close()

    def steps(self) -> Iterator[UpdateStep]:
        """Yield the updates; the algorithm collects and learns between them."""
        self._evaluate_first()
        with signals.deferring():
            for number in itertools.count(self.first):
                if self.stopped or number >= self.updates or self._is_out_of_time():  # a resumed run may be over
                    break
                step, begin = UpdateStep(number=number), time.monotonic()
                self._set_rates(step)
                yield step  # the algorithm's loop collects and learns here; what follows comes after its update
                if isinstance(self.policy, ShardedPolicy):
                    self.policy.write_weights(self.sampler)
                seconds = time.monotonic() - begin - step.waited
                self.done = number + 1
                self.stopped = self._finish(step, seconds)
                ends = self.stopped or self.done >= self.updates or self._is_out_of_time()
                is_due = not self.evaluation.at_end if ends else self.done % self.args.save_every == 0
                if is_due:
                    self.save(self.done)
                if self._is_to_stop():
                    self.stop(self.done)
                if ends:
                    break
                if is_due or time.monotonic() - self._page_at >= _PAGE_SECONDS:
                    self._write_page(self.done)

    def _set_rates(self, step: UpdateStep) -> None:
        """Set the learning rates for the middle of the update, assuming that it takes the mean time of those before it."""
        middle, spent = step.number + 0.5, distributed.broadcast(self.seconds)
        share = measure_share(self.args, middle, self.updates, spent * middle / step.number if step.number else 0.0)
        factor = learning_rate_factor(self.args.schedule, self.args.warmup, share)
        for group, rate in zip(self.optimizer.param_groups, self.full_rates, strict=True):
            group["lr"] = rate * factor
        step.log({"policy/lr": self.optimizer.param_groups[0]["lr"]})

    def _finish(self, step: UpdateStep, seconds: float) -> bool:
        """Complete the metrics of an update, evaluate and record it; returns whether training is to stop."""
        metrics, done, failure = step.metrics, step.number + 1, None
        self.seconds += seconds
        metrics["time/update"] = seconds - metrics.get("time/rollout", 0.0)
        metrics["tokens/per_second"] = metrics["tokens/all"] / seconds
        wrong = find_not_finite(metrics, {"the policy": self.sampler.model, **self.modules})
        ends = self.evaluation.at_end and (done >= self.updates or self._is_out_of_time())
        # After a signal, a kill may come sooner than the end of an evaluation: the resumed run does it.
        if not wrong and (ends or (done % self.args.eval_every == 0 and not self._is_to_stop())):
            try:
                metrics |= self.evaluation.evaluate(done)
            except ToolsFailed as error:
                failure = error
        self._log(done, metrics)
        if wrong:
            rest = self.describe_rest()
            raise signals.TrainingStopped(f"{wrong} after update {done}, which is not saved: try a lower --lr. {rest}")
        figures = step.figures | self._held_out(metrics) | {"tokens_per_s": metrics["tokens/per_second"]}
        at = self.seconds if math.isinf(self.updates) else done
        self.progress.update(at, measure_share(self.args, done, self.updates, self.seconds), **figures)
        self._keep_best(done, metrics)
        if failure is not None:
            self.stop(done, failure)
        return distributed.broadcast(self.evaluation.observe(done, metrics, self.progress))

    def _log(self, done: int, metrics: Metrics) -> None:
        if self.logger:
            self.logger.log(done, metrics)

    def _evaluate_first(self) -> None:
        """Evaluate before the first update, or what a run that was stopped has not evaluated."""
        done = self.first
        try:
            metrics = self.evaluation.evaluate(done) if self._evaluates_first else {}
        except ToolsFailed as error:
            self.stop(done, error)
        if metrics:
            self._log(done, metrics)
            if done:
                self._keep_best(done, metrics)
            elif not self.evaluation.at_end:
                self.best = metrics[self.evaluation.key]  # weights are kept if they do better than the start
            self.progress.update(self.seconds if math.isinf(self.updates) else done, **self._held_out(metrics))
            stops = self.evaluation.observe(done, metrics, self.progress)
            self.stopped |= done > 0 and distributed.broadcast(stops)
            self._write_page(done)

    def _held_out(self, metrics: Metrics) -> Metrics:
        """Return the evaluation under its name in the progress bar; empty if there was none."""
        key = self.evaluation.key
        return {f"held-out {key.removeprefix('eval/')}": metrics[key]} if key in metrics else {}

    def _is_to_stop(self) -> bool:
        """Whether any process has received a signal."""
        return any(distributed.all_gather([signals.received()]))

    def _is_out_of_time(self) -> bool:
        """Whether updates have taken ``max_seconds``, if there is such a limit."""
        return 0 < self.args.max_seconds <= distributed.broadcast(self.seconds)

    def _keep_best(self, done: int, metrics: Metrics) -> None:
        """Keep the weights of an evaluation that is the best so far."""
        score = metrics.get(self.evaluation.key)
        if score is not None and self.evaluation.sign * (score - self.best) > 0:
            self.best = score
            self.save_best(done, score)

    def save_best(self, done: int, score: float | None) -> None:
        """Write the weights after ``done`` updates to the folder "best"."""
        run_dir.save_best(self.folder, self.sampler, done, score, self.args, self.extra)

    def save(self, done: int) -> None:
        """Write the checkpoint of the state after ``done`` updates."""
        self.evaluation.prepare_save()
        run_dir.save(self.folder, self.sampler, [self.optimizer], self.modules, done, self.args, self.extra)
        self.saved = done

    def _write_page(self, done: int) -> None:
        """Write report.html of the unfinished run."""
        if not distributed.rank():
            run_dir.write_unfinished_page(self.folder, self.evaluation.describe(), self.describe_share(done))
        self._page_at = time.monotonic()

    def stop(self, done: int, error: Exception | None = None) -> NoReturn:
        """End the run before its last update, by a signal or by an ``error``, with a checkpoint of ``done`` updates."""
        signal = max(distributed.all_gather([signals.received()]))
        if self.saved < done:
            self.save(done)
        self._write_page(done)
        distributed.broadcast(None)  # all wait for the checkpoint: torchrun ends the others once one has ended
        if not signal:
            raise signals.TrainingStopped(f"{error} {self.describe_rest()}") from None
        self.close()
        signals.exit_by_signal(signal, self.describe_rest())

    def describe_rest(self) -> str:
        """Describe what is saved, and how to continue from there."""
        if not self.saved:
            return "There is no checkpoint yet."
        path = self.folder / f"checkpoint-{self.saved}"
        return f"{path} is saved: {self.describe_share(self.saved)}; --resume {self.folder} continues from there."

    def describe_share(self, done: int) -> str:
        """Describe how far the run is."""
        return f"{done} updates" if math.isinf(self.updates) else f"{done} of {self.updates:.0f} updates"
