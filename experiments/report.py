"""The output of `experiments.compare`: a table in the paper's layout, pictures and a JSON file."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markdown import Markdown

from experiments.aggregates import (
    bootstrap_over_seeds,
    correct_for_number,
    interquartile_mean,
    paired_p_value,
    probability_of_improvement,
)
from experiments.curves import draw, draw_scores, mean_curve, point_reaching
from experiments.recipe import BASELINES
from retrieval_index import durable
from trainers.episodes.report.intervals import bootstrap, mean_and_half, paired_values

MEASURES = {
    "f1": "F1", "substring_em": "Substring EM", "support_recall": "Support recall", "turns": "Turns", "calls": "Calls",
    "invalid": "Invalid turns",
}  # fmt: skip
DIGITS = {"turns": 2, "calls": 2}


def write(folder: Path, results: Mapping) -> None:
    """Write table.md, results.json, scores.png, and curves.png, if there are any.

    ``results["rows"]`` holds, by agent, one dict for each of its ``seeds``: the rows of `evaluator.summarize` by column, each
    with its ``score`` and those of its ``questions``; ``training`` and ``curves`` are by agent and seed too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    durable.write_text(folder / "results.json", dump(results) + "\n")
    durable.write_text(folder / "table.md", text := table(results))
    files, title, score = ["table.md", "results.json", "scores.png"], results["recipe"]["title"], score_name(results)
    draw_scores(mean_scores(results), folder / "scores.png", title, describe_scores(results))
    if results["curves"]:
        draw(results["curves"], folder / "curves.png", score, title)
        files.append("curves.png")
    console = Console()
    console.print(Markdown(text))
    console.print(f"Everything is in {folder}: {', '.join(files)}.", markup=False, highlight=False)


def dump(results: Mapping) -> str:
    """Format results as JSON, with each list of scores on one line."""
    text = json.dumps(results, indent=1)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)


def score_name(results: Mapping) -> str:
    """Name the measure of the columns, as a heading."""
    measures = {row["measure"] for seeds in results["rows"].values() for rows in seeds for row in rows.values()}
    (measure,) = measures if len(measures) == 1 else ("score",)
    return {"em": "EM"}.get(measure, measure.capitalize())


def describe_scores(results: Mapping) -> str:
    """The subtitle of a picture of `mean_scores`."""
    over = "questions and seeds" if results["recipe"]["pooled"] else "seeds"
    return f"{score_name(results)} after training, greedy decoding: mean and 95% CI over {over}"


def table(results: Mapping) -> str:
    """Tables of the scores by column, of their aggregates, and of the other measures."""
    recipe, rows = results["recipe"], results["rows"]
    any_rows = next(iter(rows.values()))[0]
    counts = {sum(seed is not None for seed in seeds) for seeds in results["seeds"].values()} - {0} or {1}
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    several = max(counts) > 1
    failed = {
        name: float(np.mean([row.get("failed", 0.0) for own in by_seed for row in own.values()]))
        for name, by_seed in rows.items()
    }
    lines = [
        f"# {recipe['title']}", "", *([recipe["question"], ""] if recipe["question"] else []),
        f"{recipe['env']}, {seeds} seed{'s' * several}. {_explain(recipe, rows, several)}", "",
        *(f"- {name}: {any_rows[name]['source']}{_describe_difference(task, recipe)}" for name, task in recipe["tasks"].items()),
        *(f"- left out: {BASELINES[name]}; {why}" for name, why in results["left_out"].items()),
        *(f"- not there yet: {what}" for what in results["missing"]),
        *(f"- a tool broke in {share:.1%} of the episodes of {name}" for name, share in failed.items() if share), "",
    ]  # fmt: skip
    if recipe["pooled"]:
        lines += pooled_table(results)
    else:
        lines += [*_score_table(results), *_aggregate_table(results)]
    lines += ["", "Means over the columns, and what training took after the start, evaluations left out:", ""]
    measures = {
        key: title for key, title in MEASURES.items() if any(_seed_values(own, None, key) for own in rows.values())
    }
    header, cells_of = _training_cells(results)
    lines += _grid(["Agent", *measures.values(), *header], {
        name: [_cell(_seed_values(own, None, key), DIGITS.get(key, 3)) for key in measures] + cells_of(name)
        for name, own in rows.items()
    })  # fmt: skip
    return "\n".join([*lines, *(["", recipe["note"].strip()] if recipe["note"] else [])]) + "\n"


def _explain(recipe: Mapping, rows: Mapping, several: bool) -> str:
    """Explain what the figures are: means, intervals and differences."""
    references = _references(recipe, rows)
    if recipe["pooled"]:
        differences = "; Δ: minus another agent, question by question and seed by seed" * bool(references)
        return (
            f"Mean over seeds. {' + '.join(recipe['pooled'])}: all questions of these columns together{differences}. In brackets "
            "95% bootstrap intervals over questions and seeds."
        )
    return (
        "Mean over seeds" + " ± half of the 95% CI (Student's t)" * several
        + ". Δ: the mean over the columns minus that of another agent with the same seed" * bool(references) + "."
    )  # fmt: skip


def mean_scores(results: Mapping) -> dict[str, dict[str, tuple[float, float | None]]]:
    """By agent and column, the mean score over seeds and half of its 95% CI: over seeds or, if columns are pooled, over questions
    and seeds."""
    recipe = results["recipe"]
    found: dict[str, dict[str, tuple[float, float | None]]] = {}
    for agent, own in results["rows"].items():
        if pooled := recipe["pooled"]:
            tasks_of = {name: [name] for name in recipe["tasks"]} | {" + ".join(recipe["pooled"]): pooled}
            pools = {title: _pool(own, results["seeds"][agent], tasks) for title, tasks in tasks_of.items()}
            intervals = {title: bootstrap(_array(pool)) for title, pool in pools.items() if all(pool.values())}
            found[agent] = {title: (mean, (high - low) / 2) for title, (mean, low, high) in intervals.items()}
        else:
            tasks = {name: name for name in recipe["tasks"]} | {"Avg": None}
            values = {title: _seed_values(own, task, "score") for title, task in tasks.items()}
            found[agent] = {title: mean_and_half(value) for title, value in values.items() if value}
    return found


def _references(recipe: Mapping, rows: Mapping) -> list[str]:
    """The titles of the agents to which the table gives differences."""
    titles = BASELINES | {name: run["title"] for name, run in recipe["runs"].items()}
    return [titles[name] for name in recipe["reference"] if titles[name] in rows]


def _array(pooled: Mapping[int | None, Mapping[str, float]]) -> np.ndarray:
    return np.array([list(scores.values()) for scores in pooled.values()])


def _score_table(results: Mapping) -> list[str]:
    """The score by column and its mean, and differences to the mean of other agents."""
    recipe, rows = results["recipe"], results["rows"]
    references = _references(recipe, rows)
    return _grid([score_name(results), *recipe["tasks"], "Avg", *(f"Δ to {other}" for other in references)], {
        name: [_cell(_seed_values(own, task, "score"), 3) for task in (*recipe["tasks"], None)]
        + ["–" if name == other else _cell(_differences(results, name, other), 3, "+") for other in references]
        for name, own in rows.items()
    })  # fmt: skip


def _aggregate_table(results: Mapping) -> list[str]:
    """Aggregates over seeds and columns, for agents with three seeds or more, and p-values corrected for their number."""
    scores = score_arrays(results)
    references = [name for name in _references(results["recipe"], results["rows"]) if name in scores]
    if len(scores) < 2:
        return []
    lines = [
        "",
        "Over all seeds and columns: the interquartile mean (IQM), that of the middle half of the runs; and the probability "
        "that a run does better than one of another agent on the same column (Agarwal et al., arXiv 2108.13264); with 95% "
        "bootstrap intervals over seeds. p: of the paired differences above, by Student's t; those to one agent are corrected "
        "for their number (Holm).",
        "",
    ]
    p_values = {}
    for other in references:  # of agents that share at least two seeds with it
        pairs = {name: _differences(results, name, other) for name in scores if name != other}
        p_values[other] = correct_for_number({name: paired_p_value(own) for name, own in pairs.items() if len(own) > 1})
    header = ["Agent", "IQM", *(part for other in references for part in (f"Better than {other}", "p"))]
    cells = {}
    for name, own in scores.items():
        cells[name] = [_show(*bootstrap_over_seeds(interquartile_mean, own))]
        for other in references:
            better = bootstrap_over_seeds(probability_of_improvement, own, scores[other])
            p = f"{p_values[other][name]:.3f}" if name in p_values[other] else "–"
            cells[name] += ["–", "–"] if name == other else [_show(*better), p]
    return [*lines, *_grid(header, cells)]


def score_arrays(results: Mapping) -> dict[str, np.ndarray]:
    """Return the scores [seeds, columns] of agents with three seeds or more, by agent."""
    return {
        name: np.array([[row[task]["score"] for task in results["recipe"]["tasks"]] for row in own])
        for name, own in results["rows"].items()
        if sum(seed is not None for seed in results["seeds"][name]) >= 3
    }


def pooled_table(results: Mapping) -> list[str]:
    """The score by column, that of the pooled columns with its interval, and paired differences of these."""
    recipe, rows, seeds = results["recipe"], results["rows"], results["seeds"]
    references = _references(recipe, rows)
    pooled = {name: _pool(own, seeds[name], recipe["pooled"]) for name, own in rows.items()}
    together = " + ".join(recipe["pooled"]), "of these yes/no", "others"
    columns = [*recipe["tasks"], *together, *(f"Δ to {other}" for other in references), "Seeds"]
    cells = {}
    for name, own in rows.items():
        values = [_seed_values(own, task, "score") for task in recipe["tasks"]]
        cells[name] = [f"{np.mean(of_task):.3f}" if of_task else "–" for of_task in values]
        cells[name] += [_interval(_array(pooled[name])), *_split_by_kind(own, recipe["pooled"])]
        for other in references:
            pairs = paired_values(pooled[name], pooled[other])
            cells[name].append("–" if name == other else _interval(pairs, "+"))
        cells[name].append(str(sum(seed is not None for seed in seeds[name]) or "–"))
    return _grid([score_name(results), *columns], cells)


def _pool(rows: Sequence[Mapping], seeds: Sequence, columns: Sequence[str]) -> dict[int | None, dict[str, float]]:
    """By seed, the scores of all questions of these columns, by column and id."""
    pooled: dict[int | None, dict[str, float]] = {}
    for seed, row in zip(seeds, rows, strict=True):
        pooled[seed] = {}
        for column in columns:
            questions = row[column]["questions"]
            scores, ids = questions.get(row[column]["measure"], []), questions["id"]
            pooled[seed] |= {f"{column}/{id}": value for id, value in zip(ids, scores, strict=False)}
    return pooled


def _split_by_kind(rows: Sequence[Mapping], columns: Sequence[str]) -> list[str]:
    """The mean over the yes/no questions of these columns and seeds, and over the others."""
    scores: dict[bool, list[float]] = {True: [], False: []}
    for row in (seed[column] for seed in rows for column in columns):
        for kind, score in zip(
            row["questions"].get("kind", ()), row["questions"].get(row["measure"], ()), strict=False
        ):
            scores[kind == "yes or no"].append(score)
    return [f"{np.mean(values):.3f}" if values else "–" for values in scores.values()]


def _interval(values: np.ndarray, sign: str = "") -> str:
    """The mean of [seeds, questions] and its interval; – if there are no values."""
    return _show(*bootstrap(values), sign) if values.size else "–"


def _show(value: float, low: float, high: float, sign: str = "") -> str:
    return f"{value:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def _training_cells(results: Mapping) -> tuple[list[str], Callable[[str], list[str]]]:
    """Headings, and a function for an agent's cells: seconds; when it reached the end of the recipe's ``reach`` run; symptoms."""
    recipe, training, curves = results["recipe"], results["training"], results["curves"]
    header, target = ["Seconds of training"], recipe["reach"] and recipe["runs"][recipe["reach"]]["title"]
    target = target if target in curves else ""
    if target:
        level = mean_curve(curves[target]).score[-1]
        header.append(f"Episodes to reach {target}'s end ({level:.3f})")
    symptoms = any(run.get("symptoms") for runs in training.values() for run in runs)
    header += ["First symptom"] * symptoms

    def cells_of(name: str) -> list[str]:
        cells = [_cell([run["seconds"] for run in training.get(name, []) if "seconds" in run], 0)]
        if target:
            found = point_reaching(curves[name], level) if name in curves else None
            cells.append(f"{found[0]:,} ({found[1]:,.0f} s)" if found else "not reached" if name in curves else "–")
        if symptoms:
            runs = zip(results["seeds"][name], training.get(name, []), strict=False)
            first = [(seed, run["symptoms"][0]) for seed, run in runs if run.get("symptoms")]
            symptoms_found = [f"{of['name']} (update {of['update']}, seed {seed})" for seed, of in first]
            cells.append("; ".join(symptoms_found) or ("none" if name in curves else "–"))
        return cells

    return header, cells_of


def _describe_difference(task: Mapping, recipe: Mapping) -> str:
    """How a column differs from training."""
    other = {k: v for k, v in task["env_kwargs"].items() if recipe["env_kwargs"].get(k) != v}
    parts = [task["env"]] * (task["env"] != recipe["env"]) + [json.dumps(other)[1:-1]] * bool(other)
    return f"; {', '.join(parts)}" if parts else "; as in training"


def _seed_values(seeds: Sequence[Mapping], task: str | None, key: str) -> list[float]:
    """A measure for each seed, on one column or as the mean over all; empty if an agent has no such measure."""
    chosen = [[rows[task]] if task else list(rows.values()) for rows in seeds]
    if any(key not in row for rows in chosen for row in rows):
        return []
    return [float(np.mean([row[key] for row in rows])) for rows in chosen]


def _differences(results: Mapping, name: str, other: str) -> list[float]:
    """Return the paired differences of mean scores, one for each seed."""
    ours, theirs = (
        dict(zip(results["seeds"][agent], _seed_values(results["rows"][agent], None, "score"), strict=False))
        for agent in (name, other)
    )
    pairs = [(a, b) for a in ours for b in theirs if a == b or a is None or b is None]
    return [ours[a] - theirs[b] for a, b in pairs]


def _cell(values: Sequence[float], digits: int, sign: str = "") -> str:
    if not values:
        return "–"
    mean, half = mean_and_half(values)
    return f"{mean:{sign}.{digits}f}" + (f" ± {half:.{digits}f}" if half is not None else "")


def _grid(header: Sequence[str], rows: Mapping[str, Sequence[str]]) -> list[str]:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *([name, *cells] for name, cells in rows.items())]
    return [f"| {' | '.join(line)} |" for line in ([cell.replace("|", r"\|") for cell in line] for line in lines)]
