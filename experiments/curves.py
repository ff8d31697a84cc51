"""The learning curves of a comparison: their mean, how soon it reaches a level, and their pictures."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.aggregates import performance_profile
from trainers.episodes.report import figures

_TOGETHER = len(figures.LOOKS)  # agents in one panel; of more, each gets its own
_SMOOTHING = 5  # updates that a point of the process measures is the mean of

PROCESS = {  # metrics of a run: titles of what they say about its episodes
    "eval/f1": "F1 on held-out questions",
    "train/support_recall": "Support recall",  # these as sampled, on training questions
    "train/calls": "Searches a question",
    "monitor/valid_turns": "Invalid turns, share",
}


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


def mean_curve(runs: Sequence[Sequence[Point]]) -> MeanCurve:
    """The mean of several runs; it ends where the shortest one ends."""
    values = np.array([run[: min(map(len, runs))] for run in runs], dtype=float)  # [runs, points, 3]
    means, scores = values.mean(0), values[:, :, 2]
    return MeanCurve(means[:, 0], means[:, 1], means[:, 2], scores)


def point_reaching(runs: Sequence[Sequence[Point]], level: float) -> tuple[int, float] | None:
    """Episodes and seconds until the mean curve is first as high as ``level``, or None. Nothing is interpolated: between two
    evaluations the later one counts."""
    curve = mean_curve(runs)
    found = np.flatnonzero(curve.score >= level - 1e-9)  # a curve must reach its own end
    return (int(curve.episodes[found[0]]), float(curve.seconds[found[0]])) if len(found) else None


def read_process(lines: Iterable[Mapping[str, Any]], metric: str) -> list[tuple[int, float]]:
    """(training episodes, value) of one of `PROCESS` over a run, update by update; empty where it was not measured."""
    found = [(int(line["episodes"]), line[metric]) for line in lines if line.get(metric) is not None]
    return [(episodes, 1 - value if metric == "monitor/valid_turns" else value) for episodes, value in found]


def draw(
    curves: Mapping[str, Sequence[Sequence[Point]]], levels: Mapping[str, float], out_png: Path, score: str, title: str
) -> None:
    """The score on held-out questions against training episodes: of each agent the mean of its runs and its 95 % interval. Up to
    three agents share a panel; of more, each has its own, with the means of the others in grey. ``levels`` are dashed."""
    means = {name: mean_curve(runs) for name, runs in curves.items()}
    subtitle = f"{score} on held-out instances{_several(list(curves.values()))}"
    with figures.style():
        if len(means) <= _TOGETHER:
            figure = figures.new_figure(4.4, title, subtitle)
            _draw_together(figure.add_subplot(), means, list(means), levels, "Training episodes")
        else:
            figure = _draw_apart(means, levels, title, subtitle)
        figures.save(figure, out_png)


def draw_process(process: Mapping[str, Sequence[Mapping[str, Sequence]]], out_png: Path, title: str) -> bool:
    """`PROCESS` against training episodes, for each measure that some run has: of each agent the mean of its runs, smoothed, and
    its 95 % interval. Up to three agents share the panel of a measure; of more, each has a column. Returns whether there was
    anything to draw.

    Args:
        process: by agent, for each of its runs the points of `read_process` by metric.
    """
    means = {
        metric: {agent: mean for agent, runs in process.items() if (mean := _mean_process(runs, metric))}
        for metric in PROCESS
    }
    if not (means := {metric: found for metric, found in means.items() if found}):
        return False
    told = f"but for F1 as sampled on training questions, running mean of {_SMOOTHING} updates{_several(list(process.values()))}"
    with figures.style():
        draw_panels = _draw_measures if len(process) <= _TOGETHER else _draw_matrix
        figures.save(draw_panels(means, list(process), title, told), out_png)
    return True


def draw_scores(
    scores: Mapping[str, Mapping[str, tuple[float, float | None]]], out_png: Path, score: str, title: str, over: str = "seeds"
) -> None:  # fmt: skip
    """The score at the end, a panel for each column: of each agent the mean and its 95 % interval.

    Args:
        scores: by agent and column the mean over seeds, and half of its interval; None for a single seed.
        over: what the intervals are over.
    """
    columns = list(dict.fromkeys(column for own in scores.values() for column in own))
    rows, wide = (1, len(columns)) if len(columns) <= 5 else figures.grid(len(columns))
    height = 0.7 + rows * (0.6 + 0.25 * len(scores))
    room = figures.WIDTH - 0.08 * max(map(len, scores))  # inches beside the names of the agents
    with figures.style():
        figure = figures.new_figure(height, title, f"{score} at the end, greedily: mean and 95 % interval over {over}")
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


def _mean_process(runs: Sequence[Mapping[str, Sequence]], metric: str) -> MeanCurve | None:
    window = 1 if metric.startswith("eval/") else _SMOOTHING
    points = [[Point(int(e), 0.0, value) for e, value in _smooth(run[metric], window)] for run in runs if run[metric]]
    return mean_curve(points) if points else None


def _smooth(points: Sequence[tuple[float, float]], window: int) -> list[tuple[float, float]]:
    """Each value as the mean of the last ``window``, of fewer at the beginning."""
    values = [value for _, value in points]
    means = [float(np.mean(values[max(0, i + 1 - window) : i + 1])) for i in range(len(values))]
    return [(episodes, mean) for (episodes, _), mean in zip(points, means, strict=True)]


def _draw_together(
    axes: Axes,
    means: Mapping[str, MeanCurve],
    agents: list[str],
    levels: Mapping[str, float],
    x_label: str,
    ticks: int = 6,
    width: int = 80,
) -> None:
    """All agents in one panel, each named where it ends, in lines of ``width`` characters; one of ``agents`` looks the same in
    every panel."""
    for name, mean in means.items():
        figures.draw_curve(axes, mean.episodes, mean.scores, agents.index(name), seeds=len(means) < _TOGETHER)
    for level in levels.values():
        figures.draw_level(axes, level)
    _finish(axes, means, x_label, ticks)
    ends = [(float(mean.score[-1]), name, figures.LOOKS[agents.index(name)][0]) for name, mean in means.items()]
    ends += [(level, name, figures.MUTED) for name, level in levels.items()]
    figures.label_ends(
        axes, [(value, textwrap.fill(f"{name}  {value:.2f}", width), color) for value, name, color in ends]
    )


def _draw_among_others(axes: Axes, means: Mapping[str, MeanCurve], name: str) -> None:
    """One agent, the others in grey."""
    for other in means.keys() - {name}:
        axes.plot(means[other].episodes, means[other].score, color=figures.FAINT, lw=1, zorder=2)
    if name in means:
        figures.draw_curve(axes, means[name].episodes, means[name].scores, seeds=False)


def _draw_apart(means: Mapping[str, MeanCurve], levels: Mapping[str, float], title: str, subtitle: str) -> Figure:
    """A panel for each agent; in the first place that is left, what stands for what."""
    rows, columns = figures.grid(len(means) + 1)
    figure = figures.new_figure(0.7 + 2 * rows, title, subtitle)
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for number, (axes, name) in enumerate(zip(panels, means, strict=False)):
        _draw_among_others(axes, means, name)
        for level in levels.values():
            figures.draw_level(axes, level)
        figures.set_title(axes, name, columns)
        end = means[name].episodes[-1], means[name].score[-1]
        above = {"xytext": (-2, 8), "va": "bottom"}  # where there is no room below
        where = above if end[1] < 0.1 else {"xytext": (-2, -8), "va": "top"}
        axes.annotate(f"{end[1]:.2f}", end, textcoords="offset points", ha="right", color=figures.LOOKS[0][0], **where)
        _finish(axes, means, "Training episodes" * (number + columns >= len(means)), 3)
    words = ["blue: mean, 95 % interval", "grey: the other means"]
    words += [f"dashed: {name}  {level:.2f}" for name, level in levels.items()]
    for axes in panels[len(means) :]:
        axes.set_axis_off()
    key = panels[len(means)]
    key.text(0.04, 0.95, "\n".join(words), va="top", color=figures.MUTED, transform=key.transAxes, linespacing=1.6)
    return figure


def _draw_measures(
    means: Mapping[str, Mapping[str, MeanCurve]], agents: list[str], title: str, subtitle: str
) -> Figure:
    """A panel for each measure, two in a row."""
    rows = -(-len(means) // 2)
    figure = figures.new_figure(0.7 + 2.5 * rows, title, subtitle)
    for number, (metric, own) in enumerate(means.items()):
        axes = figure.add_subplot(rows, min(2, len(means)), number + 1)
        _draw_together(axes, own, agents, {}, "Training episodes" * (number + 2 >= len(means)), ticks=4, width=22)
        axes.set_title(PROCESS[metric], loc="left", weight="bold")
    return figure


def _draw_matrix(means: Mapping[str, Mapping[str, MeanCurve]], agents: list[str], title: str, subtitle: str) -> Figure:
    """A row for each measure, a column for each agent."""
    width = max(figures.WIDTH, 1.5 * len(agents))
    figure = figures.new_figure(0.9 + 1.5 * len(means), title, subtitle, width)
    panels = figure.subplots(len(means), len(agents), sharex=True, sharey="row", squeeze=False)
    for number, (metric, own) in enumerate(means.items(), 1):
        for axes, agent in zip(panels[number - 1], agents, strict=True):
            _draw_among_others(axes, own, agent)
            _finish(axes, own, "Training episodes" * (number == len(means)), 2)
        panels[number - 1, 0].set_ylabel(PROCESS[metric].replace(" on ", "\non ").replace(", share", ",\nshare"))
    for axes, agent in zip(panels[0], agents, strict=True):
        figures.set_title(axes, agent, len(agents), width)
    return figure


def draw_profiles(scores: Mapping[str, np.ndarray], out_png: Path, score: str, title: str) -> None:
    """Performance profiles (Agarwal et al. 2021): the share of runs, over seeds and columns, above each level.
    Up to three agents share a panel; of more, each has its own, with the others in grey.

    Args:
        scores: by agent [seeds, columns].
    """
    levels = np.linspace(0, 1, 201)
    profiles = {name: performance_profile(own, levels) for name, own in scores.items()}
    together = len(profiles) <= _TOGETHER
    rows, columns = (1, 1) if together else figures.grid(len(profiles))
    with figures.style():
        figure = figures.new_figure(
            1.0 + 2.3 * rows, title, f"Share of the runs, over seeds and columns, whose {score} is above a level"
        )
        panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
        for place, (name, own) in enumerate(profiles.items()):
            axes = panels[0 if together else place]
            if not together:
                figures.set_title(axes, name, columns)
                for other in profiles.values():
                    axes.plot(levels, other, color=figures.FAINT, lw=1, zorder=1)
            color, dashes = figures.LOOKS[place if together else 0]
            axes.plot(levels, own, color=color, ls=dashes, lw=2.2, zorder=3)
            if together:  # all end at 0: each is named at a height of its own
                height = 0.8 - 0.2 * place
                across = levels[np.argmax(own <= height)]
                axes.annotate(name, (across, height), (8, 9), textcoords="offset points", color=color, va="center")
            axes.set(xlim=(0, 1), ylim=(-0.02, 1.02))
        for axes in panels[len(profiles) :]:
            axes.set_axis_off()
        figure.supxlabel(score, size=10)
        figures.save(figure, out_png)


def _several(runs: Sequence[Sequence]) -> str:
    """What is drawn of several seeds."""
    seeds = sorted({len(own) for own in runs if len(own)})
    if not seeds or seeds[-1] < 2:
        return ""
    return f"; mean and 95 % interval of {f'{seeds[0]} to ' * (len(seeds) > 1)}{seeds[-1]} seeds"


def _finish(axes: Axes, means: Mapping[str, MeanCurve], x_label: str, ticks: int) -> None:
    low = min(0.0, *(float(mean.scores.min()) for mean in means.values()))
    high = max(float(mean.scores.max()) for mean in means.values())
    axes.set(xlabel=x_label, xlim=(0, max(float(mean.episodes[-1]) for mean in means.values()) or 1))
    axes.set_ylim(low, max(axes.get_ylim()[1], high + 0.05 * (high - low)))  # or a curve lies on the edge
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=ticks)
    axes.tick_params(labelbottom=bool(x_label))
