"""Metrics of a run: a line of metrics.jsonl for each step, and the same numbers in TensorBoard, Trackio and W&B."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from retrieval_index import durable
from trainers.runtime.progress import METRICS_FILE, read_metrics, to_json_types

PROJECT = "agent-r1"  # of Trackio and W&B, unless TRACKIO_PROJECT or WANDB_PROJECT names another
_Sink = tuple[Callable[[dict[str, float], int], None], Callable[[], None]]  # logs metrics of a step; closes


class Logger(contextlib.AbstractContextManager):
    """Append one JSON line to `folder/metrics.jsonl` for every `log`, and send the same numbers to each sink.

    Args:
        folder: of the run. Its name is that of the run in Trackio, and in W&B unless WANDB_NAME is set.
        config: the arguments of the run, which the sinks show beside the curves.
        resume_from: the first step that this run will log; 0 starts over. Lines of that step and later ones, which a run wrote
            after the checkpoint, are dropped. Seconds continue from the last line kept.
    """

    def __init__(self, folder: Path | str, sinks: Sequence[str] = (), config: dict | None = None, resume_from: int = 0):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        settings = to_json_types(config or {})
        self._sinks = [_SINKS[sink](folder, settings, resume_from) for sink in dict.fromkeys(sinks)]
        self._path = folder / METRICS_FILE
        self._start = time.monotonic() - _keep_before(self._path, resume_from)
        self._file = self._path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record metrics, with `step` and the wall-clock seconds since the start. NaN and infinity become null."""
        assert not {"step", "seconds"} & set(metrics), "step and seconds are written by the logger"
        numbers = {name: float(value) for name, value in metrics.items()}
        line = {"step": step, "seconds": round(time.monotonic() - self._start, 3), **numbers}
        self._file.write(json.dumps(to_json_types(line), allow_nan=False) + "\n")
        self._file.flush()  # a killed run keeps every line it logged
        for log, _ in self._sinks:
            log(numbers, step)

    def close(self) -> None:
        """Close the file and every sink."""
        self._file.close()
        for _, close in self._sinks:
            close()

    def __exit__(self, *error) -> None:
        self.close()


def _keep_before(path: Path, step: int) -> float:
    """Drop the lines of `step` and later; return the seconds of the last line that stays."""
    lines = read_metrics(path) if path.exists() else []
    kept = [line for line in lines if line["step"] < step]
    if step and (dropped := len(lines) - len(kept)):
        print(f"{path}: the last {dropped} updates are after the checkpoint, and are repeated", file=sys.stderr)
    durable.write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
    return kept[-1].get("seconds", 0.0) if kept else 0.0


def _open_tensorboard(folder: Path, config: dict, resume_from: int) -> _Sink:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=resume_from)
    writer.add_text("config", f"```\n{json.dumps(config, indent=2)}\n```")

    def log(metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def _open_trackio(folder: Path, config: dict, resume_from: int) -> _Sink:
    import trackio

    project = os.environ.get("TRACKIO_PROJECT", PROJECT)
    known = folder / "trackio_name"  # another one if the project has a run of this name already
    name = known.read_text() if resume_from and known.is_file() else folder.name
    run = trackio.init(project=project, name=name, config=config, resume="allow" if resume_from else "never")
    known.write_text(run.name)
    return run.log, trackio.finish


def _open_wandb(folder: Path, config: dict, resume_from: int) -> _Sink:
    import wandb

    known = folder / "wandb_id"  # the id by which W&B finds a run; folders on two machines may have the same name
    identity = known.read_text().strip() if resume_from and known.is_file() else None
    project, name = os.environ.get("WANDB_PROJECT", PROJECT), os.environ.get("WANDB_NAME", folder.name)
    run = wandb.init(project=project, name=name, dir=folder, config=config, id=identity, resume="allow")
    known.write_text(run.id)
    # Steps before these are complete there, and would be ignored.
    return lambda metrics, step: run.log(metrics, step=max(step, resume_from)), run.finish


_SINKS = {"tensorboard": _open_tensorboard, "trackio": _open_trackio, "wandb": _open_wandb}
