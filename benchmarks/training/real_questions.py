"""The table of real questions in docs/comparisons.md: its seeds are run on as many days and machines as it takes, and the scores
of each question are kept in docs/results/real_questions.json. From that file come the table, with its intervals, and the picture.

    python -m benchmarks.training.real_questions --add runs/real            # what `experiments.compare` left there, into the file
    python -m benchmarks.training.real_questions --picture docs/real_questions.png
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tyro

from experiments import recipe_file
from experiments.curves import draw_scores
from experiments.report import dump, mean_scores, pooled_tables
from retrieval_index import durable

FILE = Path(__file__).parents[2] / "docs" / "results" / "real_questions.json"
RECIPE = recipe_file.read("real")
MEANS = ("support_recall", "turns", "calls", "invalid")


@dataclass(kw_only=True)
class Args:
    """Keep the scores of a comparison, and make table and picture of all that are kept."""

    add: Path | None = None
    """Folder of a comparison, whose agents and seeds are added to the file; those that it has already are replaced."""
    picture: Path | None = None
    """Where to draw the scores."""
    reference: tuple[str, ...] = ()
    """To which agents the table gives differences; by default those of the recipe."""


def trim(results: Mapping) -> dict:
    """What is kept of results.json: by agent one record for each seed; and of each column, how many questions of which ids."""
    agents: dict[str, list[dict]] = {}
    questions: dict[str, dict] = {}
    for agent, rows in results["rows"].items():
        training = results["training"].get(agent, [{}] * len(rows))
        agents[agent] = []
        for seed, row, spent in zip(results["seeds"][agent], rows, training, strict=True):
            columns = {name: _trim_column(column) for name, column in row.items()}
            spent = {name: value for name, value in spent.items() if name != "folder"}
            curves = results["curves"].get(agent)
            curve = {"curve": curves[len(agents[agent])]} if curves else {}
            agents[agent].append({"seed": seed, "training": spent, **curve, "columns": columns})
            for name, column in row.items():
                ids = column["questions"]["id"]
                digest = hashlib.sha256("\n".join(map(str, ids)).encode()).hexdigest()
                known = questions.setdefault(name, {"count": len(ids), "sha256_of_ids": digest})
                if known["sha256_of_ids"] != digest:
                    raise ValueError(f"{agent}, seed {seed}, was asked other questions of {name} than another agent")
    return {"questions": questions, "agents": agents}


def _trim_column(column: Mapping) -> dict:
    em = "".join(str(int(score)) for score in column["questions"]["em"])
    f1 = [round(float(score), 4) for score in column["questions"]["f1"]]
    return {"em": em, "f1": f1} | {name: round(column[name], 4) for name in MEANS if name in column}


def merge(kept: Mapping, added: Mapping) -> dict:
    """What is kept with what is added, seed by seed; the agents in the order of the recipe, then those of another.

    Raises:
        ValueError: the two are of other questions.
    """
    if kept["questions"] != added["questions"]:
        raise ValueError("these are the scores of other questions than those in the file")
    titles = [RECIPE.title_of(name) for name in (*RECIPE.baselines, *RECIPE.runs)]
    names = dict.fromkeys([*kept["agents"], *added["agents"]])
    agents = {}
    for agent in sorted(names, key=lambda name: titles.index(name) if name in titles else len(titles)):
        own = {record["seed"]: record for part in (kept, added) for record in part["agents"].get(agent, [])}
        agents[agent] = [own[seed] for seed in sorted(own, key=lambda seed: -1 if seed is None else seed)]
    return {**kept, "agents": agents}


def untrim(kept: Mapping, reference: tuple[str, ...] = ()) -> dict:
    """The part of results.json that tables and pictures are made of, with differences to the ``reference``.

    Raises:
        ValueError: there is no agent of this name.
    """
    if unknown := set(reference) - set(kept["agents"]):
        raise ValueError(f"there are no agents {sorted(unknown)}; there are {list(kept['agents'])}")
    rows: dict[str, list[dict]] = {}
    for agent, records in kept["agents"].items():
        rows[agent] = []
        for record in records:
            row = {}
            for name, column in record["columns"].items():
                em = [float(digit) for digit in column["em"]]
                questions = {"id": list(range(len(em))), "em": em, "f1": column["f1"]}
                means = {"score": sum(em) / len(em), "f1": sum(column["f1"]) / len(em), "measure": "em"}
                row[name] = {**column, **means, "questions": questions}
            rows[agent].append(row)
    return {
        "rows": rows, "seeds": {agent: [record["seed"] for record in kept["agents"][agent]] for agent in rows},
        "recipe": {
            "tasks": RECIPE.tasks, "pooled": RECIPE.pooled, "reference": reference or RECIPE.reference,
            "runs": {name: {"title": run.title} for name, run in RECIPE.runs.items()} | {a: {"title": a} for a in reference},
        },
    }  # fmt: skip


def main(args: Args) -> None:
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    if args.add:
        kept = merge(kept, trim(json.loads((args.add / "results.json").read_text(encoding="utf-8"))))
        durable.write_text(FILE, dump(kept) + "\n")
    results = untrim(kept, args.reference)
    print("\n".join(pooled_tables(results, "EM")))
    if args.picture:
        draw_scores(mean_scores(results), args.picture, "EM", RECIPE.title, "questions and seeds")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
