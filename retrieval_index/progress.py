"""Progress of long loops: builders wrap them in a `Track`, which draws a bar or nothing."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

# Yields the items unchanged and reports the progress. Its arguments: items, description, total (None if unknown).
Track = Callable[[Iterable[Any], str, int | None], Iterable[Any]]


def silent(items: Iterable[Any], description: str, total: int | None) -> Iterable[Any]:
    """A `Track` that reports nothing."""
    return items


@contextmanager
def progress_bars() -> Iterator[Track]:
    """A `Track` that draws one rich bar for each loop on standard error, with the time left."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield lambda items, description, total: bars.track(items, total=total, description=description)
