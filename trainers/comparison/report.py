"""What `trainers.compare` writes: a table in the paper's layout, the learning curves and a JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markdown import Markdown

from trainers.comparison.curves import draw, mean_curve, point_reaching
from trainers.comparison.recipe import BASELINES

MEASURES = {"f1": "F1", "substring_em": "Substring EM", "turns": "Turns", "calls": "Calls"}
PAPER = """\
| EM | HotpotQA | 2Wiki | MuSiQue | Avg |
|---|---:|---:|---:|---:|
| Base Tool Call | .1372 | .0891 | .0277 | .0847 |
| Naive RAG | .1916 | .1792 | .0277 | .1328 |
| PPO | .4136 | .5468 | .1552 | .3719 |
| GRPO | .4405 | .5741 | .1485 | .3877 |
| REINFORCE++ | .3768 | .4796 | .1336 | .3300 |
| REINFORCE++Baseline | .3966 | .5406 | .1485 | .3619 |
| RLOO | .4089 | .5641 | .1419 | .3716 |
| PPO without advantage mask | .3630 | .4641 | .1138 | .3136 |
| PPO without both masks | .3429 | .4631 | .1005 | .3022 |
| GRPO without loss mask | .4260 | .5485 | .1422 | .3722 |
"""


def write(folder: Path, results: Mapping) -> None:
    """Write table.md, curves.png and results.json.

    Args:
        results: of `trainers.compare`. ``rows`` holds, by agent, one dict for each seed: the rows of
            `trainers.evaluate.summarize` by column, each with its ``score``; ``training``, what was trained, one dict
            for each seed; ``curves``, the held-out evaluations of each run on the way.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    text = table(results)
    (folder / "table.md").write_text(text, encoding="utf-8")
    levels = {name: float(np.mean(values)) for name, values in results["levels"].items()}
    draw(results["curves"], levels, folder / "curves.png", score_name(results), results["recipe"]["title"])
    console = Console()
    console.print(Markdown(text))
    console.print(f"Everything is in {folder}: table.md, curves.png, results.json.", markup=False, highlight=False)


def mean_and_half(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean over seeds, and half the width of its 95 % interval by Student's t; None for a single seed."""
    from scipy.stats import t

    if len(values) < 2:
        return float(np.mean(values)), None
    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(half)


def score_name(results: Mapping) -> str:
    """What the columns measure, as a heading."""
    measures = {row["measure"] for seeds in results["rows"].values() for rows in seeds for row in rows.values()}
    (measure,) = measures if len(measures) == 1 else ("score",)
    return {"em": "EM"}.get(measure, measure.capitalize())


def table(results: Mapping) -> str:
    """Two tables, the score by column and the rest as means over the columns; and apart from them, the paper's figures."""
    recipe, rows = results["recipe"], results["rows"]
    tasks, seeds = recipe["tasks"], recipe["seeds"]
    any_rows = next(iter(rows.values()))[0]
    titles = BASELINES | {name: run["title"] for name, run in recipe["runs"].items()}
    references = [titles[name] for name in recipe["reference"] if titles[name] in rows]
    lines = [
        f"# {recipe['title']}", "", *([recipe["question"], ""] if recipe["question"] else []),
        f"{recipe['env']}, {len(seeds)} seed{'s' * (len(seeds) > 1)}, {_episodes(results)} training episodes each. "
        + "Mean over seeds" + " ± half of the 95 % interval (Student's t)." * (len(seeds) > 1)
        + " Δ: the mean over the columns less that of another agent with the same seed." * bool(references), "",
        *(f"- {name}: {any_rows[name]['source']}{_describe_difference(task, recipe)}" for name, task in tasks.items()),
        *(f"- left out: {BASELINES[name]}; {why}" for name, why in results["left_out"].items()), "",
    ]  # fmt: skip
    lines += _grid([score_name(results), *tasks, "Avg", *(f"Δ to {other}" for other in references)], {
        name: [_cell(_seed_values(own, task, "score"), 3) for task in (*tasks, None)]
        + ["–" if name == other else _difference(own, rows[other]) for other in references]
        for name, own in rows.items()
    })  # fmt: skip
    lines += ["", "Means over the columns, and what training took after the start, evaluations left out:", ""]
    measures = {
        key: title for key, title in MEASURES.items() if any(_seed_values(own, None, key) for own in rows.values())
    }
    header, cells_of = _training_cells(results)
    lines += _grid(["Agent", *measures.values(), *header], {
        name: [_cell(_seed_values(own, None, key), 2 if key in ("turns", "calls") else 3) for key in measures] + cells_of(name)
        for name, own in rows.items()
    })  # fmt: skip
    if recipe["paper"]:
        lines += [
            "", "## For reference only: the paper's own figures", "",
            "Another experiment: Qwen2.5-3B-Instruct, 36 million passages of KILT, bge-large (Agent-R1, arXiv "
            "2511.14460). They can't be compared with the figures above.", "", PAPER.rstrip(),
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _training_cells(results: Mapping) -> tuple[list[str], Callable[[str], list[str]]]:
    """Headings, and the cells of an agent: seconds; how soon it came as far as the run that the recipe names; symptoms."""
    recipe, training, curves = results["recipe"], results["training"], results["curves"]
    header, target = ["Seconds of training"], recipe["reach"] and recipe["runs"][recipe["reach"]]["title"]
    if target:
        level = mean_curve(curves[target]).score[-1]
        header.append(f"Episodes to reach {target}'s end ({level:.3f})")
    symptoms = recipe["symptoms"] or any(run.get("symptoms") for runs in training.values() for run in runs)
    header += ["First symptom"] * symptoms

    def cells_of(name: str) -> list[str]:
        cells = [_cell([run["seconds"] for run in training.get(name, [])], 0)]
        if target:
            found = point_reaching(curves[name], level) if name in curves else None
            cells.append(f"{found[0]:,} ({found[1]:,.0f} s)" if found else "not reached" if name in curves else "–")
        if symptoms:
            first = [(s, run["symptoms"][0]) for s, run in enumerate(training.get(name, [])) if run.get("symptoms")]
            symptoms_found = [f"{of['name']} (update {of['update']}, seed {recipe['seeds'][s]})" for s, of in first]
            cells.append("; ".join(symptoms_found) or ("none" if name in curves else "–"))
        return cells

    return header, cells_of


def _episodes(results: Mapping) -> str:
    counts = {run["episodes"] for name in results["curves"] for run in results["training"][name]}
    return " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))


def _describe_difference(task: Mapping, recipe: Mapping) -> str:
    """How a column differs from training."""
    other = {k: v for k, v in task["env_kwargs"].items() if recipe["env_kwargs"].get(k) != v}
    parts = [task["env"]] * (task["env"] != recipe["env"]) + [json.dumps(other)[1:-1]] * bool(other)
    return f"; {', '.join(parts)}" if parts else "; as in training"


def _seed_values(seeds: Sequence[Mapping], task: str | None, key: str) -> list[float]:
    """A measure for each seed, on one column or as the mean over all; empty where an agent has no such measure."""
    chosen = [[rows[task]] if task else list(rows.values()) for rows in seeds]
    if any(key not in row for rows in chosen for row in rows):
        return []
    return [float(np.mean([row[key] for row in rows])) for rows in chosen]


def _difference(own: Sequence[Mapping], reference: Sequence[Mapping]) -> str:
    """Seed by seed, so that what a seed's start and questions do to both falls out."""
    pairs = zip(_seed_values(own, None, "score"), _seed_values(reference, None, "score"), strict=True)
    return _cell([a - b for a, b in pairs], 3, sign="+")


def _cell(values: Sequence[float], digits: int, sign: str = "") -> str:
    if not values:
        return "–"
    mean, half = mean_and_half(values)
    return f"{mean:{sign}.{digits}f}" + (f" ± {half:.{digits}f}" if half is not None else "")


def _grid(header: Sequence[str], rows: Mapping[str, Sequence[str]]) -> list[str]:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *([name, *cells] for name, cells in rows.items())]
    return [f"| {' | '.join(line)} |" for line in lines]
