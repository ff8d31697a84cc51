"""The comparisons of docs/comparisons.md, kept: their runs take hours, so what `experiments.compare` found is in docs/results, by
recipe, and its table and pictures are made from that again.

    python -m benchmarks.training.comparison_results --add runs/algorithms    # to docs/results/algorithms.json
    python -m benchmarks.training.comparison_results --write algorithms --out runs/kept    # its table.md and pictures

Left out are the scores of single questions (real_questions.py keeps those of its own), what episodes were like from update to
update, and paths.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from experiments import report
from retrieval_index import durable

FOLDER = Path(__file__).parents[2] / "docs" / "results"
LEFT_OUT = ("questions", "file", "folder")
PARTS = ("rows", "seeds", "training", "curves", "levels")  # of results, by agent a list with something of each seed


@dataclass(kw_only=True)
class Args:
    """Keep the results of a comparison, or write tables and pictures of one that is kept."""

    add: Path | None = None
    """Folder of a comparison. Other seeds that are kept stay beside its seeds."""
    write: str = ""
    """Recipe whose kept results to write to --out."""
    out: Path = Path("runs/kept")
    """Where to write them."""
    folder: Path = FOLDER
    """Where results are kept."""


def trim(results: Mapping[str, Any]) -> dict[str, Any]:
    """Results without `LEFT_OUT`, their numbers to five digits; their recipe as it is."""

    def trimmed(found: Any) -> Any:
        if isinstance(found, Mapping):
            return {key: trimmed(value) for key, value in found.items() if key not in LEFT_OUT}
        if isinstance(found, list):
            return [trimmed(value) for value in found]
        return float(f"{found:.5g}") if isinstance(found, float) else found

    return {key: value if key == "recipe" else trimmed(value) for key, value in results.items()}


def merge(kept: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept and what a comparison of the same recipe found, which counts where both have a seed of an agent.

    Raises:
        ValueError: they are of different recipes.
    """
    ours, theirs = ({**of["recipe"], "seeds": 0} for of in (kept, found))
    if ours != theirs:
        differing = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
        raise ValueError(f"what is kept is of another recipe, in {', '.join(differing)}: move it away first")
    merged: dict[str, Any] = {**found, **{part: {} for part in PARTS}}
    for agent in dict.fromkeys([*found["rows"], *kept["rows"]]):
        taken: dict[Any, tuple[str, int]] = {}
        for name, of in (("kept", kept), ("found", found)):
            taken |= {seed: (name, i) for i, seed in enumerate(of["seeds"].get(agent, []))}
        order = sorted(taken, key=lambda seed: (seed is None, seed))
        for part in PARTS:
            whole = {name: of[part].get(agent, []) for name, of in (("kept", kept), ("found", found))}
            if all(taken[seed][1] < len(whole[taken[seed][0]]) for seed in order):
                merged[part][agent] = [whole[name][i] for name, i in map(taken.__getitem__, order)]
    there = {f"{agent}, seed {seed}" for agent, seeds in merged["seeds"].items() for seed in seeds}
    missing = dict.fromkeys([*kept["missing"], *found["missing"]])
    # Of agents without a seed in their name, a table of some seeds says what others lack.
    merged["missing"] = [
        what for what in missing if what.partition(" (stopped")[0] not in there and not what.endswith("episodes of it")
    ]
    return merged


def main(args: Args) -> None:
    if bool(args.add) == bool(args.write):
        raise ValueError("give either --add FOLDER or --write RECIPE")
    if args.add:
        results = trim(json.loads((args.add / "results.json").read_text(encoding="utf-8"))) | {"process": {}}
        file = args.folder / f"{results['recipe']['name']}.json"
        if file.exists():
            results = merge(json.loads(file.read_text(encoding="utf-8")), results)
        durable.write_text(file, report.dump(results) + "\n")
        print(f"{file}: {', '.join(results['rows'])}; missing: {results['missing'] or 'nothing'}")
    else:
        file = args.folder / f"{args.write}.json"
        report.write(args.out, json.loads(file.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
