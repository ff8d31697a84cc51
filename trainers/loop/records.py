"""What a run writes down while it goes on: metrics, progress, the symptoms of collapse, and what the agents did."""

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path

from trainers.checkpoints import run_dir
from trainers.config import TrainArgs
from trainers.episodes.records import EpisodeWriter, Origin, Pieces, Recorder
from trainers.episodes.report import tables as report
from trainers.loop.logger import Logger
from trainers.loop.metrics import CollapseTracker
from trainers.runtime import distributed
from trainers.runtime.progress import METRICS_FILE, Progress, read_metrics


class Recorders:
    """Makes what takes the records of an agent's episodes, which say where they come from.

    Args:
        pieces: the texts of tokens.
        score: the measure that ``env`` is judged by.
        sources: of the validation split, and of the training split.
    """

    def __init__(self, env: str, score: str, sources: tuple[str, str], pieces: Pieces):
        self._env, self._score, self._sources, self._pieces = env, score, sources, pieces

    def make(
        self, agent: str, name: str, step: int, *, training: bool = False, tokens: bool = False, in_table: bool = False
    ) -> Recorder:
        """``name`` is the agent in the keys of its records."""
        origin = Origin(
            phase="training" if training else "evaluation", step=step, agent=agent, name=name, in_table=in_table,
            env=self._env, split="train" if training else "validation", source=self._sources[training],
            score=self._score,
        )  # fmt: skip
        return Recorder(origin, self._pieces if tokens else None)


def measure_share(args: TrainArgs, updates: float, seconds: float) -> float:
    """The share of a run that is done after so many updates and seconds of rollouts and updates: of ``updates`` or, where
    there is more behind it, of ``max_seconds``."""
    return max(updates / args.updates, seconds / args.max_seconds if args.max_seconds else 0.0)


class Records(AbstractContextManager):
    """The open records of a run: ``metrics.jsonl``, its sinks and the progress until the last update, the episodes until
    the run is over. A run that is resumed reads back what it had recorded.

    Args:
        path: the folder of the run.
        first: updates that it has had.
        baselines: the episodes of the baselines, where they have been played now.

    Attributes:
        tracker: the collapse monitor.
        played: episodes so far.
        seconds: of rollouts and updates so far.
        best: the best evaluation so far.
        is_missing: whether an outage kept the run from its evaluation after update ``first``.
    """

    def __init__(
        self, args: TrainArgs, algorithm: str, path: Path, score: str, first: int, baselines: Iterable[Recorder]
    ):
        baselines, key = list(baselines), f"eval/{score}"
        with ExitStack() as stack:
            self._until_last_update = stack.enter_context(ExitStack())
            enter = self._until_last_update.enter_context
            metrics_folder = enter(distributed.choose_metrics_folder(path))
            sinks, resume_from = args.log if metrics_folder == path else (), first + 1 if first else 0
            self.logger = enter(Logger(metrics_folder, sinks, asdict(args), resume_from))
            if not distributed.rank():  # open to the end of the run: the closing table is recorded as well
                writer = EpisodeWriter(path, first or None, baselines_again=bool(baselines))
                self._episodes = stack.enter_context(writer)
            for recorder in baselines:
                self.write(recorder)
            lines = read_metrics(metrics_folder / METRICS_FILE)
            self.seconds = sum(line.get("time/rollout", 0.0) + line.get("time/update", 0.0) for line in lines)
            begin = measure_share(args, first, self.seconds) * args.updates
            self.progress = enter(Progress(args.updates, "updates", algorithm, begin))
            self._exits = stack.pop_all()
        self.tracker, self.played = CollapseTracker(score, lines), int(lines[-1]["episodes"]) if lines else 0
        scores, best = [line[key] for line in lines if line.get(key) is not None], run_dir.read_best(path, args)
        self.best = max(scores, default=-math.inf) if best is None else best
        self.is_missing = bool(first and lines) and first % args.eval_every == 0 and lines[-1].get(key) is None
        if first and not distributed.rank():  # of weights that are trained further now
            (path / report.SUMMARY_FILE).unlink(missing_ok=True)

    def __exit__(self, *error) -> None:
        self._exits.__exit__(*error)

    def write(self, recorder: Recorder) -> None:
        """The first of several processes writes the episodes that were recorded."""
        if not distributed.rank():
            self._episodes.write_recorded(recorder)

    def sync(self) -> None:
        """The episodes are on the disk when this returns."""
        if not distributed.rank():
            self._episodes.sync()

    def end_updates(self) -> None:
        """Close the metrics and the progress. Episodes can still be written."""
        self._until_last_update.close()
