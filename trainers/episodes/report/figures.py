"""The common style of all figures, and the learning curve of a run.

A thick line is the mean over seeds, a band its 95% CI (Student's t), thin lines are seeds, a dashed grey line is a reference
level. Labels are next to their lines.
"""

import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from trainers.episodes.report.intervals import mean_and_half
from trainers.runtime.errors import UserError
from trainers.runtime.progress import read_metrics

Curve = tuple[np.ndarray, np.ndarray]

INK, MUTED, FAINT = "#222222", "#6b6b6b", "#cfcfcf"
BLUE = "#0072b2"  # distinguishable for colour-blind readers (Okabe and Ito, 2008)
_X_LABELS = {"seconds": "Training time (seconds)", "episodes": "Training episodes", "step": "Training steps"}
_Y_LABELS = {
    "em": "Exact match (share of questions)", "f1": "Answer F1 (mean over questions)",
    "success": "Success (share of episodes)", "score": "Score (mean over episodes)",
}  # fmt: skip
DASHES = (0, (4, 3))  # of a reference level
WIDTH = 8.4  # inches; a page shows this width without shrinking the text below its own size
_STYLE: dict[Any, Any] = {
    "font.size": 10, "axes.titlesize": 10, "text.color": INK, "axes.labelcolor": INK, "xtick.labelcolor": INK,
    "ytick.labelcolor": INK, "axes.edgecolor": "#b5b5b5", "xtick.color": "#b5b5b5", "ytick.color": "#b5b5b5",
    "axes.spines.top": False, "axes.spines.right": False, "xtick.major.size": 3, "ytick.major.size": 3,
    "text.parse_math": False,
}  # fmt: skip


def style() -> AbstractContextManager[None]:
    """Return a context manager with the style in which figures are made and saved."""
    return matplotlib.rc_context(_STYLE)


def new_figure(height: float, title: str = "", subtitle: str = "") -> Figure:
    """Make a figure of `WIDTH` × ``height`` inches with room for a heading: a bold title, and a grey subtitle."""
    figure = Figure(figsize=(WIDTH, height), dpi=150)
    top = height - 0.06
    for text, size, room, weight, color in (
        (title, 13, 0.3, "bold", INK), (subtitle, 10, 0.24, "normal", MUTED),
    ):  # fmt: skip
        if text:
            figure.text(0.1 / WIDTH, top / height, text, size=size, va="top", weight=weight, color=color)
            top -= room * (1 + text.count("\n"))
    figure.set_layout_engine(ConstrainedLayoutEngine(rect=(0, 0, 1, top / height), w_pad=0.08))
    return figure


def grid(count: int) -> tuple[int, int]:
    """Return rows and columns for ``count`` panels; for more than 4, the 3 or 4 columns that leave fewer empty places."""
    columns = min((4, 3), key=lambda wide: (-count % wide, -wide)) if count > 4 else min(count, 2 if count == 4 else 3)
    return -(-count // columns), columns


def draw_curve(axes: Axes, xs: np.ndarray, values: np.ndarray, seeds: bool = True) -> None:
    """Draw the mean of ``values`` [seeds, points] against ``xs`` [points], its interval and, if ``seeds``, each seed."""
    if len(values) > 1:
        limits = (0, 1) if values.min() >= 0 and values.max() <= 1 else (-np.inf, np.inf)
        halves = np.array([mean_and_half(list(column))[1] or 0.0 for column in values.T])
        low, high = np.clip([values.mean(0) - halves, values.mean(0) + halves], *limits)
        axes.fill_between(xs, low, high, color=BLUE, alpha=0.16, lw=0, zorder=1)
        for own in values if seeds else ():
            axes.plot(xs, own, color=BLUE, lw=0.8, alpha=0.45, zorder=3)
    axes.plot(xs, values.mean(0), color=BLUE, lw=2.2, zorder=4)


def set_title(axes: Axes, title: str, columns: int, width: float = WIDTH) -> None:
    """Set the title of a panel, one of ``columns`` in ``width`` inches, wrapped so that it does not touch the next title."""
    text = textwrap.fill(title, max(1, int(9 * width / columns)), break_long_words=False)
    axes.set_title(text, loc="left", weight="bold")


def draw_level(axes: Axes, value: float) -> None:
    """Draw a reference level over the whole width."""
    axes.axhline(value, color=MUTED, lw=1, ls=DASHES, zorder=2)


def label_ends(axes: Axes, labels: Sequence[tuple[float, str, str]]) -> None:
    """Label each (value, name, colour) at the right edge; labels are moved apart. Set the limits of y first."""
    low, high = axes.get_ylim()
    lines = max(name.count("\n") + 1 for _, name, _ in labels)
    share = 0.19 * lines / (axes.bbox.height / axes.figure.dpi)  # of the panel: a line of text takes .19 inches
    gap = share * (high - low)
    gap = min(gap, (high - low) / max(1, len(labels) - 1))
    places: list[float] = []
    for value, *_ in sorted(labels):
        places.append(max(value, places[-1] + gap) if places else max(value, low))
    for index in reversed(range(len(places))):
        places[index] = min(places[index], places[index + 1] - gap if index + 1 < len(places) else high)
    across = axes.get_yaxis_transform()
    for (value, name, color), place in zip(sorted(labels), places, strict=True):
        axes.plot(
            [1, 1.025], [value, place], color=color, lw=0.8, transform=across, clip_on=False, scalex=False, scaley=False
        )
        axes.text(1.035, place, name, color=color, va="center", transform=across)


def draw_dots(axes: Axes, rows: Sequence[tuple[float, float | None]]) -> None:
    """Draw a row for each (mean, half the width of its interval), from the top: a dot, the interval and the value."""
    for place, (mean, half) in enumerate(rows):
        limits = (0, 1) if 0 <= mean <= 1 else (-np.inf, np.inf)
        ends = np.clip([mean - (half or 0), mean + (half or 0)], *limits)
        axes.plot(ends, [place, place], color=BLUE, lw=2, alpha=0.4, zorder=3)
        axes.plot(mean, place, "o", color=BLUE, ms=5, zorder=4)
        axes.annotate(f"{mean:.2f}", (mean, place), (0, 4), textcoords="offset points", size=7.5, ha="center")
    axes.set_ylim(len(rows) - 0.5, -0.7)
    axes.grid(axis="x", color="#ececec", lw=0.8, zorder=0)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def save(figure: Figure, out_png: str | Path) -> Path:
    """Write the figure as PNG; make its folder if needed."""
    Path(out_png).parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(out_png)
    return Path(out_png)


# -- the learning curve of a run ---------------------------------------------------------------------------------------


def draw_learning_curve(
    metrics_files: Mapping[str, str | Path], out_png: str | Path, baselines: Mapping[str, float], key: str = "eval/em",
    x: str = "seconds", title: str = "", subtitle: str = "",
) -> Path:  # fmt: skip
    """Draw a held-out metric over training: the mean over runs with its interval, each run as a thin line, training in grey.

    Args:
        metrics_files: a label for each run and its `metrics.jsonl`.
        baselines: scores to compare with; each is a dashed line, named at its right end.
        key: the metric; the training metric is "train/em" for "eval/em".
        x: "seconds", "episodes" or "step".
    """
    runs = [read_metrics(path) for path in metrics_files.values()]
    curves = [_curve(lines, x, key) for lines in runs]
    if empty := [label for label, (xs, _) in zip(metrics_files, curves, strict=True) if not len(xs)]:
        raise UserError(f"no line with both {x!r} and {key!r} in the metrics of: {', '.join(empty)}")
    metric = key.rsplit("/", 1)[-1]
    training = [_smooth(*curve) for lines in runs if len((curve := _curve(lines, x, f"train/{metric}"))[0])]
    name = "held out" + f", mean of {len(runs)}" * (len(runs) > 1)
    final = float(np.mean([ys[-1] for _, ys in curves]))  # as in a table, even if runs end at different x
    labels = [(value, f"{label}  {value:.2f}", MUTED) for label, value in baselines.items()]
    labels.append((final, f"{name}  {final:.2f}", BLUE))
    with style():
        figure = new_figure(4.6, title, subtitle)
        axes = figure.add_subplot()
        for value in baselines.values():
            draw_level(axes, value)
        if training:
            xs, values = _common(training)
            axes.plot(xs, values.mean(0), color="#a8a8a8", lw=1.3, zorder=2)
            labels.append((float(values[:, -1].mean()), "in training, sampled", MUTED))
        xs, values = _common(curves)
        draw_curve(axes, xs, values)
        shown = [float(y) for line in axes.get_lines() for y in np.asarray(line.get_ydata())]
        low, high = min(0.0, *shown), max(1.0, *shown)  # a return may leave [0, 1]
        axes.set(xlabel=_X_LABELS.get(x, x), ylabel=_Y_LABELS.get(metric, metric), yticks=np.linspace(low, high, 6))
        axes.set(ylim=(low, high), xlim=(0, xs[-1] or 1))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        label_ends(axes, labels)
        return save(figure, out_png)


def _curve(lines: Sequence[Mapping], x: str, key: str) -> Curve:
    points = [(line[x], line[key]) for line in lines if line.get(x) is not None and line.get(key) is not None]
    xs, ys = np.array(sorted(points), dtype=float).reshape(-1, 2).T
    return xs, ys


def _smooth(xs: np.ndarray, ys: np.ndarray) -> Curve:
    """Compute a centred moving mean over a fortieth of the run, as single batches scatter too much."""
    width = max(1, len(ys) // 40)
    return xs, np.convolve(ys, np.ones(width), "same") / np.convolve(np.ones_like(ys), np.ones(width), "same")


def _common(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Return the x values where every curve is defined, and the curves' values there, [curves, x]."""
    low, high = max(xs[0] for xs, _ in curves), min(xs[-1] for xs, _ in curves)
    shared = np.unique(np.concatenate([[low], *(xs[(xs >= low) & (xs <= high)] for xs, _ in curves)]))
    return shared, np.array([np.interp(shared, xs, ys) for xs, ys in curves])
