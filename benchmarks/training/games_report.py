"""What ``benchmarks.training.games`` writes: a table, the same as a picture, the learning curves and a JSON.

python -m benchmarks.training.games_report docs/results/games.json --out runs/kept    # table and picture of what is kept
"""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from matplotlib.axes import Axes

from trainers.episodes.report import figures
from trainers.episodes.report.intervals import mean_and_half
from trainers.runtime.progress import METRICS_FILE, read_metrics

Scores = Mapping[str, Mapping[str, tuple[float, float | None]]]  # by agent and game the mean, and half of its interval


def write(folder: Path, results: Mapping) -> None:
    """table.md, success.png, curves.png and results.json of the seeds that are done."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    draw(folder, results)
    write_success(folder, results)


def write_success(folder: Path, results: Mapping) -> None:
    """table.md and success.png."""
    folder.mkdir(parents=True, exist_ok=True)
    text = table(results)
    (folder / "table.md").write_text(text, encoding="utf-8")
    draw_success({how: success(results, how) for how in ("sampled", "greedy")}, folder / "success.png")
    print(text)


def table(results: Mapping) -> str:
    """Success greedily and sampled, what reinforcement learning gained, and what it took."""
    seeds = results["seeds"]
    any_game, any_seeds = next(iter(seeds.items()))
    learners, scripts = list(any_seeds[0]["success"]), list(next(iter(results["scripts"][any_game].values())))
    before, more, after = learners
    count = max(map(len, seeds.values()))
    lines = [
        f"# RAGEN's games: success over {count} seed{'s' * (count > 1)}", "",
        f"{count_instances(results)} held-out instances" + ", mean over seeds ± half of the 95 % interval "
        "(Student's t; of a gain, over the differences within a seed)." * (count > 1),
    ]  # fmt: skip
    for how in ("greedy", "sampled"):
        lines += ["", f"Policies {how}:", ""]
        lines += _grid(
            ["Game", *scripts, *learners, f"Gain over {before.lower()}", f"Gain over {more.lower()}"],
            [
                [line, *(f"{rates[name]:.3f}" for name in scripts)]
                + [_cell(found[name][how] for found in _of(results, game, line)) for name in learners]
                + [
                    _cell((f[after][how] - f[than][how] for f in _of(results, game, line)), "+")
                    for than in (before, more)
                ]
                for game in seeds
                for line, rates in results["scripts"][game].items()
            ],
        )
    lines += ["", "Seconds of training:", ""]
    lines += _grid(["Game", *learners], [
        [game, *(_cell((s["training"][name]["seconds"] for s in own), digits=0) for name in learners)]
        for game, own in seeds.items()
    ])  # fmt: skip
    return "\n".join(lines) + "\n"


def count_instances(results: Mapping) -> str:
    """How many instances: of all games, or, where they differ, of each."""
    counts = {game: f"{results['games'][game]['instances']:,}" for game in results["seeds"]}
    if len({*counts.values()}) == 1:
        return next(iter(counts.values()))
    return ", ".join(f"{game}: {count}" for game, count in counts.items())


def _of(results: Mapping, game: str, line: str) -> list[dict]:
    """For each seed, by learner, its success greedily and sampled."""
    return [{name: lines[line] for name, lines in seed["success"].items()} for seed in results["seeds"][game]]


def _cell(values, sign: str = "", digits: int = 3) -> str:
    mean, half = mean_and_half(list(values))
    return f"{mean:{sign}.{digits}f}" + (f" ± {half:.{digits}f}" if half is not None else "")


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (header, ["---", *["---:"] * (len(header) - 1)], *rows)]


def success(results: Mapping, how: str) -> Scores:
    """Of the policies, and beside the sampled ones of the random agent."""
    lines = {line: game for game, rates in results["scripts"].items() if game in results["seeds"] for line in rates}
    learners = next(iter(results["seeds"].values()))[0]["success"]
    scores = {"Random": {line: (results["scripts"][game][line]["Random agent"], None) for line, game in lines.items()}}
    scores |= {
        name: {
            line: mean_and_half([found[name][how] for found in _of(results, game, line)])
            for line, game in lines.items()
        }
        for name in learners
    }
    return scores if how == "sampled" else {name: scores[name] for name in learners}


def draw_success(scores: Mapping[str, Scores], out_png: Path) -> None:
    """A row for each way to play (``sampled``, ``greedy``), a panel for each game: each agent's mean and its 95 % interval."""
    games = list(next(iter(next(iter(scores.values())).values())))
    agents = [list(own) for own in scores.values()]
    titles = {game: "\n".join(textwrap.wrap(game, max(10, 78 // len(games)))) for game in games}
    with figures.style():
        lines = max(title.count("\n") for title in titles.values())
        height = 0.95 + 0.15 * lines + 0.42 * len(scores) + 0.27 * sum(map(len, agents))
        figure = figures.new_figure(height, "Success", "share of held-out instances: mean and 95 % interval over seeds")
        ratios = {"height_ratios": [len(names) + 0.2 for names in agents]}
        panels = figure.subplots(len(scores), len(games), sharex=True, sharey="row", squeeze=False, gridspec_kw=ratios)
        for row, (how, own) in zip(panels, scores.items(), strict=True):
            for axes, game in zip(row, games, strict=True):
                figures.draw_dots(axes, [found[game] for found in own.values()])
                axes.set_yticks(range(len(own)), list(own))
            row[0].set_ylabel(how, weight="bold")
        for axes, game in zip(panels[0], games, strict=True):
            axes.set_title(titles[game], loc="left", weight="bold")
        panels[0, 0].set_xlim(-0.08, 1.08)
        figures.save(figure, out_png)


def draw(folder: Path, results: Mapping) -> None:
    """A panel for each game: success on held-out instances, greedily, and in training, sampled."""
    games = results["seeds"]
    columns = 1 if len(games) < 4 else 2
    rows = -(-len(games) // columns)
    told = "share of episodes: mean of seeds, 95 % interval, each seed thin"
    with figures.style():
        figure = figures.new_figure(0.7 + 2.2 * rows, "Success while learning", told)
        for number, (game, seeds) in enumerate(games.items(), 1):
            axes = figure.add_subplot(rows, columns, number)
            runs = [read_metrics(folder / f"{game}-{seed['seed']}" / "ppo" / METRICS_FILE) for seed in seeds]
            summary = json.loads(
                (folder / f"{game}-{seeds[0]['seed']}" / "ppo" / "summary.json").read_text(encoding="utf-8")
            )
            how = "sampled" if summary["evaluation"]["eval_temperature"] else "greedy"
            *others, held_out = results["scripts"][game]
            rates = results["scripts"][game][held_out]
            imitation = float(np.mean([seed["success"]["More imitation"][held_out][how] for seed in seeds]))
            levels = {"random": rates["Random agent"], "scripted": rates["Scripted agent"], "more imitation": imitation}
            for level in levels.values():
                figures.draw_level(axes, level)
            ends = [
                (_lines(axes, runs, "eval/success", 0), f"held out, {how}", figures.LOOKS[0][0]),
                (_lines(axes, runs, "train/success", 1), "in training", figures.LOOKS[1][0]),
                *((level, name, figures.MUTED) for name, level in levels.items()),
            ]
            axes.set_title(held_out.split(",")[0] if others else held_out, loc="left", weight="bold")
            axes.set(xlabel="Training episodes" * (number + columns > len(games)), ylim=(0, 1))
            axes.set_xlim(0, max(float(line.get_xdata()[-1]) for line in axes.get_lines()))
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.locator_params(axis="x", nbins=5)
            figures.label_ends(axes, ends)
        figures.save(figure, folder / "curves.png")


def _lines(axes: Axes, runs: Sequence[Sequence[Mapping]], key: str, look: int) -> float:
    """Their curve where all have a point, the training's smoothed over seven updates; returns where the mean ends."""
    points = [{row["episodes"]: row[key] for row in run if row.get(key) is not None} for run in runs]
    common = sorted(set.intersection(*(set(own) for own in points)))
    width = 7 if len(common) > 40 else 1
    curves = np.array([_smooth([own[x] for x in common], width) for own in points])
    figures.draw_curve(axes, np.array(common), curves, look)
    return float(curves[:, -1].mean())


def _smooth(values: Sequence[float], width: int) -> np.ndarray:
    """A centred moving mean, over fewer values at the ends."""
    ones = np.ones(width)
    return np.convolve(values, ones, "same") / np.convolve(np.ones(len(values)), ones, "same")


@dataclass(kw_only=True)
class Args:
    """Write the table and the picture of results that are kept."""

    results: tyro.conf.Positional[Path]
    """A results.json of `benchmarks.training.games`."""
    out: Path = Path("runs/kept")
    """Where to write them."""


if __name__ == "__main__":
    ARGS = tyro.cli(Args, description=__doc__)
    write_success(ARGS.out, json.loads(ARGS.results.read_text(encoding="utf-8")))
