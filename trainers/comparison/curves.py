"""The learning curves of a comparison: their mean, how soon it reaches a level, and their picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Of the colour-blind safe palettes of Okabe and Ito (2008) and Tol (2021), those that show on white.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9", "#882255", "#999933", "#777777")
_STYLES = ("-", (0, (5, 2)), (0, (1, 1.2)))
_MOST_BANDS = 5  # more of them, and nothing can be told apart


class Point(NamedTuple):
    """A held-out evaluation: training episodes and seconds of training until then, and the score."""

    episodes: int
    seconds: float
    score: float


class MeanCurve(NamedTuple):
    """The mean over the runs of an agent, evaluation by evaluation, and the lowest and highest score; arrays [points]."""

    episodes: np.ndarray
    seconds: np.ndarray
    score: np.ndarray
    lowest: np.ndarray
    highest: np.ndarray


def mean_curve(runs: Sequence[Sequence[Point]]) -> MeanCurve:
    """The mean of several runs; it ends where the shortest one ends."""
    values = np.array([run[: min(map(len, runs))] for run in runs], dtype=float)  # [runs, points, 3]
    means, scores = values.mean(0), values[:, :, 2]
    return MeanCurve(means[:, 0], means[:, 1], means[:, 2], scores.min(0), scores.max(0))


def point_reaching(runs: Sequence[Sequence[Point]], level: float) -> tuple[int, float] | None:
    """Episodes and seconds until the mean curve is first as high as ``level``, or None. Nothing is interpolated: between two
    evaluations the later one counts."""
    curve = mean_curve(runs)
    found = np.flatnonzero(curve.score >= level - 1e-9)  # a curve must reach its own end
    return (int(curve.episodes[found[0]]), float(curve.seconds[found[0]])) if len(found) else None


def draw(
    curves: Mapping[str, Sequence[Sequence[Point]]], levels: Mapping[str, float], out_png: Path, score: str, title: str
) -> None:
    """The score on held-out questions against training episodes: for each agent the mean of its runs, in a band from
    the lowest to the highest where there are few agents; ``levels`` are dashed.

    The legend is in the order in which the curves end.
    """
    figure = Figure(figsize=(9.6, 5.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    ends, last = {}, 0.0
    for number, (name, runs) in enumerate(curves.items()):
        mean, color, style = mean_curve(runs), _COLORS[number % len(_COLORS)], _STYLES[number % len(_STYLES)]
        (line,) = axes.plot(mean.episodes, mean.score, color=color, ls=style, lw=2.2, zorder=3)
        if len(runs) > 1 and len(curves) <= _MOST_BANDS:
            axes.fill_between(mean.episodes, mean.lowest, mean.highest, color=color, alpha=0.13, lw=0, zorder=1)
        ends[f"{name}  {mean.score[-1]:.2f}"], last = (mean.score[-1], line), max(last, mean.episodes[-1])
    for (name, level), dashes in zip(levels.items(), ((0, (2, 3)), (0, (6, 3)), (0, (6, 2, 1, 2))), strict=False):
        line = axes.axhline(level, color="#707070", lw=1.2, ls=dashes, zorder=2)
        ends[f"{name}  {level:.2f}"] = (level, line)
    order = sorted(ends, key=lambda name: -ends[name][0])
    axes.legend([ends[n][1] for n in order], order, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    axes.set(xlabel="Training episodes", ylabel=f"{score} on held-out instances", ylim=(0, None), xlim=(0, last or 1))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    seeds = max(map(len, curves.values()))
    several = (f"mean and range of {seeds} seeds" if len(curves) <= _MOST_BANDS else f"mean of {seeds} seeds") * (
        seeds > 1
    )
    axes.set_title(title + f"\n{several}" * bool(several), loc="left", weight="bold", fontsize=11)
    out_png.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(out_png)
