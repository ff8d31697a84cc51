"""What ``benchmarks.training.games`` writes: a table, the same as a picture, and a JSON.

python -m benchmarks.training.games_report docs/results/games.json --out runs/kept    # table and picture of what is kept
"""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from trainers.episodes.report import figures
from trainers.episodes.report.intervals import mean_and_half

Scores = Mapping[str, Mapping[str, tuple[float, float | None]]]  # by agent and game the mean, and half of its interval


def write(folder: Path, results: Mapping) -> None:
    """table.md, success.png and results.json of the seeds that are done."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(table(results), encoding="utf-8")
    draw_success({how: success(results, how) for how in ("sampled", "greedy")}, folder / "success.png")
    print(table(results))


def table(results: Mapping) -> str:
    """Success greedily and sampled, what reinforcement learning gained, and what it took."""
    seeds = results["seeds"]
    any_game, any_seeds = next(iter(seeds.items()))
    learners, scripts = list(any_seeds[0]["success"]), list(next(iter(results["scripts"][any_game].values())))
    before, more, after = learners
    count = len(any_seeds)
    instances = ", ".join(f"{game}: {results['games'][game]['instances']:,}" for game in seeds)
    lines = [
        f"# RAGEN's games: success over {count} seed{'s' * (count > 1)}", "", f"Held-out instances: {instances}.", "",
        "Mean over seeds ± half of the 95 % interval (Student's t; of a gain, over the differences within a seed).",
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


@dataclass(kw_only=True)
class Args:
    """Write the table and the picture of results that are kept."""

    results: tyro.conf.Positional[Path]
    """A results.json of `benchmarks.training.games`."""
    out: Path = Path("runs/kept")
    """Where to write them."""


if __name__ == "__main__":
    ARGS = tyro.cli(Args, description=__doc__)
    write(ARGS.out, json.loads(ARGS.results.read_text(encoding="utf-8")))
