"""Progress of long work: builders wrap their loops in a `Track`, which draws a bar, or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

T = TypeVar("T")


class Track(Protocol):
    """Yields the items unchanged while it reports how far they are; `total` is None where it is unknown."""

    def __call__(self, items: Iterable[T], description: str, total: int | None) -> Iterable[T]: ...


def silent(items: Iterable[T], description: str, total: int | None) -> Iterable[T]:
    """A `Track` that reports nothing."""
    return items


@contextmanager
def progress_bars() -> Iterator[Track]:
    """A `Track` that draws one rich bar for each loop on standard error, with the time left."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield lambda items, description, total: bars.track(items, total=total, description=description)
