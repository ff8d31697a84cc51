"""The learning curves of a comparison: their mean, when it reaches a level, and the pictures of curves and scores."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from trainers.episodes.report import figures


class Point(NamedTuple):
    """A held-out evaluation: training episodes and seconds of training until then, and the score."""

    episodes: int
    seconds: float
    score: float


class MeanCurve(NamedTuple):
    """The mean over the runs of an agent, evaluation by evaluation: arrays [points]; and each run's scores, [runs, points]."""

    episodes: np.ndarray
    seconds: np.ndarray
    score: np.ndarray
    scores: np.ndarray


def read_curve(lines: Iterable[Mapping[str, Any]], score: str) -> tuple[list[Point], float]:
    """Read the held-out evaluations from the metrics of a run, and the seconds that all its rollouts and updates took."""
    seconds, points = 0.0, []
    for line in lines:
        seconds += line.get("time/rollout", 0.0) + line.get("time/update", 0.0)
        if line.get(f"eval/{score}") is not None:
            points.append(Point(int(line["episodes"]), seconds, line[f"eval/{score}"]))
    return points, seconds


def mean_curve(runs: Sequence[Sequence[Point]]) -> MeanCurve:
    """The mean of several runs; it ends where the shortest one ends."""
    values = np.array([run[: min(map(len, runs))] for run in runs], dtype=float)  # [runs, points, 3]
    means, scores = values.mean(0), values[:, :, 2]
    return MeanCurve(means[:, 0], means[:, 1], means[:, 2], scores)


def point_reaching(runs: Sequence[Sequence[Point]], level: float) -> tuple[int, float] | None:
    """Episodes and seconds until the mean curve first reaches ``level``, or None. Nothing is interpolated: between two
    evaluations the later one counts."""
    curve = mean_curve(runs)
    found = np.flatnonzero(curve.score >= level - 1e-9)  # tolerance: a curve reaches its own end
    return (int(curve.episodes[found[0]]), float(curve.seconds[found[0]])) if len(found) else None


def draw(curves: Mapping[str, Sequence[Sequence[Point]]], out_png: Path, score: str, title: str) -> None:
    """Draw the score on held-out questions against training episodes, a panel for each agent.

    A panel has the mean of the agent's runs with its 95% CI, and the means of the others in grey; the last one is the legend.
    """
    means = {name: mean_curve(runs) for name, runs in curves.items()}
    rows, columns = figures.grid(len(means) + 1)
    seeds, subtitle = sorted({len(runs) for runs in curves.values()}), f"{score} on held-out instances"
    if seeds[-1] > 1:
        subtitle += f"; mean and 95% CI of {' to '.join(map(str, sorted({seeds[0], seeds[-1]})))} seeds"
    with figures.style():
        figure = figures.new_figure(0.7 + 2 * rows, title, subtitle)
        panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
        for number, (axes, (name, mean)) in enumerate(zip(panels, means.items(), strict=False)):
            for other in means.keys() - {name}:
                axes.plot(means[other].episodes, means[other].score, color=figures.FAINT, lw=1, zorder=2)
            figures.draw_curve(axes, mean.episodes, mean.scores, seeds=False)
            figures.set_title(axes, name, columns)
            end = mean.episodes[-1], mean.score[-1]
            above = {"xytext": (-2, 8), "va": "bottom"}  # where there is no room below
            where = above if end[1] < 0.1 else {"xytext": (-2, -8), "va": "top"}
            axes.annotate(f"{end[1]:.2f}", end, textcoords="offset points", ha="right", color=figures.BLUE, **where)
            _finish(axes, means, "Training episodes" * (number + columns >= len(means)))
        for axes in panels[len(means) :]:
            axes.set_axis_off()
        key, text = panels[len(means)], "blue: mean, 95% CI\ngrey: the other means"
        key.text(0.04, 0.95, text, va="top", color=figures.MUTED, transform=key.transAxes, linespacing=1.6)
        figures.save(figure, out_png)


def draw_scores(
    scores: Mapping[str, Mapping[str, tuple[float, float | None]]], out_png: Path, title: str, subtitle: str
) -> None:  # fmt: skip
    """Draw final scores, a panel for each column. ``scores``: of each agent by column, the mean over seeds and half of its 95%
    CI, None for one seed."""
    columns = list(dict.fromkeys(column for own in scores.values() for column in own))
    rows, wide = (1, len(columns)) if len(columns) <= 5 else figures.grid(len(columns))
    height = 0.7 + rows * (0.6 + 0.25 * len(scores))
    room = figures.WIDTH - 0.08 * max(map(len, scores))  # inches beside the names of the agents
    with figures.style():
        figure = figures.new_figure(height, title, subtitle)
        panels = list(figure.subplots(rows, wide, sharex=True, sharey=True, squeeze=False).flat)
        for axes, column in zip(panels, columns, strict=False):
            figures.draw_dots(axes, [own.get(column, (np.nan, None)) for own in scores.values()])
            figures.set_title(axes, column, wide, room)
            axes.set_yticks(range(len(scores)), list(scores))
        low, high = panels[0].get_xlim()
        panels[0].set_xlim(min(-0.08, low), high if high < 0.75 else max(1.08, high))  # low scores need the width
        for axes in panels[len(columns) :]:
            axes.set_axis_off()
        figures.save(figure, out_png)


def _finish(axes: Axes, means: Mapping[str, MeanCurve], x_label: str) -> None:
    low = min(0.0, *(float(mean.scores.min()) for mean in means.values()))
    high = max(float(mean.scores.max()) for mean in means.values())
    axes.set(xlabel=x_label, xlim=(0, max(float(mean.episodes[-1]) for mean in means.values()) or 1))
    axes.set_ylim(low, max(axes.get_ylim()[1], high + 0.05 * (high - low)))  # else a curve lies on the edge
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=3)
    axes.tick_params(labelbottom=bool(x_label))
