"""Show the progress of a run, and read and convert its metrics."""

from __future__ import annotations

import contextlib
import json
import math
import time
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as _Bar

METRICS_FILE = "metrics.jsonl"
_PLAIN_INTERVAL = 10.0  # seconds between lines outside a terminal


def read_metrics(path: str | Path) -> list[dict]:
    """Read the lines of a metrics file, or of another log of JSON lines, except truncated and invalid ones."""
    lines = []
    for line in Path(path).read_bytes().splitlines():
        with contextlib.suppress(ValueError):
            numbers = json.loads(line)
            if numbers and isinstance(numbers, dict) and isinstance(numbers.get("step", 0), int | float):
                lines.append(numbers)
    return lines


def to_json_types(value: Any) -> Any:
    """Convert `value` to JSON types: NaN and infinities to None, numpy and torch numbers to Python's, paths to strings."""
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
    """A live line with a progress bar, the latest figures and the time left; outside a terminal, plain lines. ``total``: the end,
    in ``unit``; ``initial``: the start of a resumed run."""

    def __init__(self, total: float, unit: str = "steps", description: str = "training", initial: float = 0.0):
        self.console = Console(stderr=True)
        self._total, self._unit, self._description = total, unit, description
        self._completed, self._share = initial, initial / total if total else 0.0
        self._initial = self._share
        self._start, self._printed = time.monotonic(), -math.inf
        self._fields: dict[str, float] = {}
        self._note = ""
        self._bar = None
        if self.console.is_terminal:
            text = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[text]}", markup=False)
            # No refresh thread: it would take time from the training loop.
            self._bar = _Bar(text[0], BarColumn(bar_width=10), text[1], console=self.console, auto_refresh=False)
            self._task = self._bar.add_task(description, total=1, text="")

    def update(self, completed: float, share: float | None = None, **fields: float) -> None:
        """Show progress and figures such as "train em", "held-out em", `reward` and `tokens_per_s`; a figure stays until updated.

        ``share``: the completed share of the run, 0 to 1, if something other than ``completed`` may end it sooner.
        """
        self._completed, self._share = completed, completed / (self._total or 1.0) if share is None else share
        self._fields |= fields
        self._note = ""
        self._show()

    def note(self, text: str) -> None:
        """Show why the run waits, until the next `update`. Any thread may call this."""
        self._note = text
        self._show()

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.start()
            room = self.console.width - len(self._description) - 12  # rich would take it from the bar instead
            self._bar.update(self._task, completed=self._share, text=self._describe()[:room], refresh=True)
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
        print(f"{self._description} {self._describe()}", file=self.console.file, flush=True)

    def _describe(self) -> str:
        done = f"{self._completed:.0f}/{self._total:.0f} {self._unit}"
        places = {"train": 0, "held-out": 1}
        ordered = sorted(self._fields.items(), key=lambda item: places.get(item[0].partition(" ")[0], 2))
        figures = [f"{name} {value:,.{2 * (abs(value) < 100)}f}" for name, value in ordered]
        note = [self._note] if self._note else []
        return " · ".join([done, f"{self._estimate_left()} left", *note, *figures]).replace("_per_", "/")

    def _estimate_left(self) -> str:
        if (done := self._share - self._initial) <= 0:
            return "--:--"
        seconds = (1 - self._share) * (time.monotonic() - self._start) / done
        return "{}:{:02}".format(*divmod(max(0, round(seconds)), 60))
