"""The result in docs/results/first_run.md: held-out exact match before and after reinforcement learning, over several seeds.

    python -m benchmarks.training.learning --out runs/learning --picture docs/learning_curve.png

Each seed is a whole run of ``python -m trainers.grpo`` from the shipped policy, with its own questions. Complete runs are not
repeated. Ends with one line of JSON.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from experiments import compute_matched
from trainers import grpo
from trainers.episodes.report import figures
from trainers.runtime.progress import METRICS_FILE


@dataclass(kw_only=True)
class Args:
    """Run the main job with several seeds and draw their learning curves in one picture."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds; each has one run."""
    updates: int = grpo.Args.updates
    """Policy updates of each run."""
    out: Path = Path("runs/learning")
    """Folder of the runs."""
    picture: Path = Path("runs/learning/learning_curve.png")
    """Where to write the learning curves."""


def main(args: Args) -> dict:
    summaries = {}
    for seed in args.seeds:
        run = args.out / f"seed-{seed}"
        summaries[seed] = compute_matched.finish(grpo.main, grpo.Args(seed=seed, updates=args.updates), run)
    any_summary = summaries[args.seeds[0]]
    score = any_summary["score"]
    rows = {row["name"]: row[score] for row in any_summary["rows"]}
    figures.draw_learning_curve(
        {f"seed {seed}": args.out / f"seed-{seed}" / METRICS_FILE for seed in args.seeds},
        args.picture,
        {name: rows[name] for name in ("Naive RAG", "Scripted agent") if name in rows},
        key=f"eval/{score}",
        x="episodes",
        title=f"{grpo.Args.env}: GRPO after a cold start",
        subtitle=any_summary["source"],
    )
    names = [f"{score}_{when}" for when in ("cold_start", "cold_start_sampled", "trained")]
    names += ["seconds_cold_start", "seconds_training"]
    result = {"seeds": list(args.seeds)} | {name: [summaries[seed][name] for seed in args.seeds] for name in names}
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
