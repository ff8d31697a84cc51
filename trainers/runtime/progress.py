"""What a run reports while it lasts: `Logger` writes its metrics to files, `Progress` shows one line in the terminal."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import math
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as _Bar

from retrieval_index import durable
from retrieval_index.printable import printable


@dataclass(frozen=True, slots=True)
class _Sink:
    """Where metrics go besides the file."""

    log: Callable[[dict[str, float], int], None]
    show: Callable[[list[dict[str, Any]], int], None]  # rows of a table
    close: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Opening:
    """What a sink is told of a run."""

    folder: Path
    config: dict
    resume_from: int
    project: str
    name: str
    group: str | None


METRICS_FILE = "metrics.jsonl"
PROJECT = "agent-r1"  # the name under which runs are found in Trackio and W&B
EPISODES_SHOWN, _TABLE = 16, "eval/episodes"
_PLAIN_INTERVAL = 10.0  # seconds between lines where nothing can be redrawn


class Logger(contextlib.AbstractContextManager):
    """Appends one JSON line to `folder/metrics.jsonl` for every `log`, and sends the same numbers to each sink.

    Args:
        folder: the folder of the run.
        sinks: any of "tensorboard", "trackio" and "wandb".
        config: the arguments of the run, for the sinks to show beside the curves.
        resume_from: the first step that this run is going to log. Lines of that step and later ones, left by a run
            that went on after the checkpoint, are dropped, and seconds go on from the last line kept. So 0 starts over.
        project, name, group: what the run is found by in Trackio and W&B; by default its name is that of its folder.

    Attributes:
        seconds_before: that the lines kept took.

    Raises:
        ValueError: a sink is unknown.
        ModuleNotFoundError: the package of a sink is not installed.
    """

    def __init__(
        self,
        folder: Path | str,
        sinks: tuple[str, ...] = (),
        config: dict | None = None,
        resume_from: int = 0,
        *,
        project: str = PROJECT,
        name: str = "",
        group: str = "",
    ):
        _check_names(sinks)
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        settings = to_json_types(config or {})
        opening = _Opening(folder, settings, resume_from, project or PROJECT, name or folder.name, group or None)
        self._sinks = [_open(sink, opening) for sink in dict.fromkeys(sinks)]
        self.seconds_before = _keep_before(folder / METRICS_FILE, resume_from)
        self._start = time.monotonic() - self.seconds_before
        self._path = folder / METRICS_FILE
        self._file = self._path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record metrics; `step` and the wall seconds since the start are added. NaN and infinity become null."""
        assert not {"step", "seconds"} & set(metrics), "step and seconds are written by the logger"
        numbers = {name: float(value) for name, value in metrics.items()}
        line = {"step": step, "seconds": round(time.monotonic() - self._start, 3), **numbers}
        self._file.write(json.dumps(to_json_types(line), allow_nan=False) + "\n")
        self._file.flush()  # a killed run keeps every line it logged
        for sink in self._sinks:
            sink.log(numbers, step)

    def amend(self, step: int, metrics: dict[str, float]) -> None:
        """Add metrics to the line of a step that was logged before, were it by an earlier part of the run."""
        numbers = {name: float(value) for name, value in metrics.items()}
        lines = [line | to_json_types(numbers) if line["step"] == step else line for line in read_metrics(self._path)]
        self._file.close()
        durable.write_text(self._path, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))
        self._file = self._path.open("a", encoding="utf-8")
        for sink in self._sinks:
            sink.log(numbers, step)

    def show_episodes(self, step: int, lines: Iterable[str]) -> None:
        """Send the first `EPISODES_SHOWN` of some episodes to each sink, as a table.

        Args:
            lines: the episodes as lines of episodes.jsonl.
        """
        if self._sinks:
            rows = [_row(json.loads(line)) for line in itertools.islice(lines, EPISODES_SHOWN)]
            for sink in self._sinks:
                sink.show(rows, step)

    def close(self) -> None:
        """Close the file and every sink."""
        self._file.close()
        for sink in self._sinks:
            sink.close()

    def __exit__(self, *error) -> None:
        self.close()


def read_metrics(path: str | Path) -> list[dict]:
    """The lines of a metrics file, or of another log in JSON, without those that a kill cut short or that are none."""
    lines = []
    for line in Path(path).read_bytes().splitlines():
        with contextlib.suppress(ValueError):
            numbers = json.loads(line)
            if numbers and isinstance(numbers, dict) and isinstance(numbers.get("step", 0), int | float):
                lines.append(numbers)
    return lines


def to_json_types(value: Any) -> Any:
    """`value` in the types of JSON: NaN and infinities as None, numbers of numpy and torch as Python's, paths as text."""
    if isinstance(value, dict):
        return {str(name): to_json_types(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_types(item) for item in value]
    if hasattr(value, "tolist"):
        return to_json_types(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


class Progress:
    """A live line with a bar, the latest figures and the time left; a plain line now and then outside a terminal. There is
    nothing to see before the first `update`.

    Args:
        total: where `completed` ends, in `unit`.
        unit: "steps", or "s" for a run that is bounded by seconds.
        initial: where a resumed run begins.
    """

    def __init__(self, total: float, unit: str = "steps", description: str = "training", initial: float = 0.0):
        self.console = Console(stderr=True)
        self._total, self._unit, self._description = total, unit, description
        self._completed, self._share = initial, initial / total if total else 0.0
        self._initial = self._share
        self._start, self._printed = time.monotonic(), -math.inf
        self._fields: dict[str, float] = {}
        self._bar = None
        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=10),
                TextColumn("{task.fields[text]}", markup=False),
            )
            # No refresh thread: it would take its turns from the training loop.
            self._bar = _Bar(*columns, console=self.console, auto_refresh=False)
            # rich's hint says int, and its progress is in floats.
            self._task = self._bar.add_task(description, total=1.0, completed=self._share, text="")  # type: ignore[arg-type]

    def update(self, completed: float, share: float | None = None, **fields: float) -> None:
        """Show how far the run is, and figures such as "train em", "held-out em", `reward` and `tokens_per_s`.

        A figure stays until it is given again, so those of an evaluation need no repeating. Scores come first, those of training
        before the held-out ones.

        Args:
            share: of the whole that is done, where something else than ``completed`` may end it sooner.
        """
        self._completed, self._share = completed, completed / (self._total or 1.0) if share is None else share
        self._fields |= fields
        if self._bar is not None:
            self._bar.start()
            room = self.console.width - len(self._description) - 12  # rich would take it from the bar instead
            self._bar.update(self._task, completed=self._share, text=self._text()[:room], refresh=True)
        elif time.monotonic() - self._printed >= _PLAIN_INTERVAL:
            self._print_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._share != self._initial:
            self._print_line()

    def _print_line(self) -> None:
        self._printed = time.monotonic()
        print(f"{self._description} {self._text()}", file=self.console.file, flush=True)

    def _text(self) -> str:
        done = f"{self._completed:.0f}/{self._total:.0f} {self._unit}"
        ordered = sorted(self._fields.items(), key=lambda item: _places(item[0]))
        figures = [f"{name} {value:,.{2 * (abs(value) < 100)}f}" for name, value in ordered]
        return " · ".join([done, f"{self._left()} left", *figures]).replace("_per_", "/")

    def _left(self) -> str:
        if (done := self._share - self._initial) <= 0:
            return "--:--"
        seconds = (1 - self._share) * (time.monotonic() - self._start) / done
        return "{}:{:02}".format(*divmod(max(0, round(seconds)), 60))


def _places(figure: str) -> int:
    return {"train": 0, "held-out": 1}.get(figure.partition(" ")[0], 2)


def _keep_before(path: Path, step: int) -> float:
    """Drop the lines of `step` and later; return the seconds of the last line that stays."""
    lines = read_metrics(path) if path.exists() else []
    kept = [line for line in lines if line["step"] < step]
    if step and (dropped := len(lines) - len(kept)):
        print(f"{path}: the last {dropped} updates are after the checkpoint, and made again", file=sys.stderr)
    staging = path.with_name(f".{path.name}.staging")
    staging.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    durable.publish(staging, path)
    return kept[-1].get("seconds", 0.0) if kept else 0.0


def check_sinks(sinks: Sequence[str]) -> None:
    """Before a long run: raise what `Logger` would raise for these sinks."""
    _check_names(sinks)
    for name in sinks:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"logging to {name} needs a package: pip install {name}")


def logged_as(args: Any) -> dict[str, str]:
    """The project, name and group that arguments give a run in Trackio and W&B."""
    return {"project": args.log_project, "name": args.log_name, "group": args.log_group}


def _check_names(sinks: Sequence[str]) -> None:
    if unknown := sorted(set(sinks) - set(_SINKS)):
        raise ValueError(f"unknown log sinks {unknown}; known are {sorted(_SINKS)}")


def _open(name: str, opening: _Opening) -> _Sink:
    try:
        return _SINKS[name](opening)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"logging to {name} needs a package: pip install {name} ({error})") from error


def _row(record: dict) -> dict[str, Any]:
    """An episode in a table; what models and tools wrote is made fit to be looked at."""
    said = "\n\n".join(f"[{message['role']}] {message['content']}" for message in record["messages"])
    return {
        "question": printable(record["question"]), "golds": printable(" | ".join(record["golds"])), "score": record["score"],
        "return": record["return"], "turns": len(record["turns"]), "conversation": printable(said), "key": record["key"],
    }  # fmt: skip


def _tensorboard(opening: _Opening) -> _Sink:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(opening.folder / "tensorboard"), purge_step=opening.resume_from)
    writer.add_text("config", f"```\n{json.dumps(opening.config, indent=2)}\n```")

    def log(metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    def show(rows: list[dict[str, Any]], step: int) -> None:
        parts = ["\n".join(f"{name}: {value}" for name, value in row.items()) for row in rows]
        # Indented by four, text is shown as it is, whatever fences are in it.
        writer.add_text(
            _TABLE, "\n\n---\n\n".join(textwrap.indent(part, "    ", lambda _: True) for part in parts), step
        )

    return _Sink(log, show, writer.close)


def _trackio(opening: _Opening) -> _Sink:
    import trackio

    resume = "allow" if opening.resume_from else "never"
    run = trackio.init(
        project=opening.project, name=opening.name, group=opening.group, config=opening.config, resume=resume
    )
    return _Sink(run.log, _show_with(trackio.Table, run.log), trackio.finish)


def _wandb(opening: _Opening) -> _Sink:
    import wandb

    folder = opening.folder
    known = folder / "wandb_id"  # W&B finds a run by its id alone, and two machines may have folders of one name
    identity = known.read_text().strip() if opening.resume_from and known.is_file() else None
    run = wandb.init(
        project=opening.project, name=opening.name, group=opening.group, dir=folder, config=opening.config, id=identity,
        resume="allow",
    )  # fmt: skip
    known.write_text(run.id)
    return _Sink(run.log, _show_with(wandb.Table, run.log), run.finish)


def _show_with(table: Any, log: Callable) -> Callable[[list[dict[str, Any]], int], None]:
    def show(rows: list[dict[str, Any]], step: int) -> None:
        import pandas  # a dependency of `datasets`; both packages take its tables, and not much else alike

        log({_TABLE: table(dataframe=pandas.DataFrame(rows))}, step=step)

    return show


_SINKS = {"tensorboard": _tensorboard, "trackio": _trackio, "wandb": _wandb}
