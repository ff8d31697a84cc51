"""Compare runs that differ in one thing, from the same start, on the same questions: a recipe says which.

    python -m trainers.compare                              # recipe "algorithms": every one, 3 seeds: hours on a laptop
    python -m trainers.compare --recipe masks               # PPO and GRPO with and without their masks
    python -m trainers.compare --recipe rewards             # the reward at the end alone against a dense one
    python -m trainers.compare --recipe echo-trap           # StarPO against StarPO-S where a batch is used too often
    python -m trainers.compare --recipe agent-r1 --dry-run  # the paper's experiment: what it needs, and what it costs
    python -m trainers.compare --recipe mine.toml --seeds 0 --runs grpo ppo --updates 20

For each seed, one start: the tiny policy's cold start, or a pretrained model. From it, every run of the recipe trains.
Beside them stand the baselines: Naive RAG, the start itself (Base Tool Call), and more imitation: the cold start continued
for as many seconds as the slowest run spent on rollouts and updates. All are evaluated, greedily, on the held-out
questions of each column of the table.

Writes table.md, curves.png and results.json. What its folder already holds is not run again: a run that was interrupted
goes on. ``trainers/comparison/recipes`` has the shipped recipes; ``trainers/comparison/recipe_file.py`` says how to write one.
"""

import functools
import gc
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

if __name__ == "__main__":  # run as a file, it finds the packages beside it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import tyro

from trainers.cold_start.start import start_policy
from trainers.comparison import check, dry_run, imitation, recipe_file
from trainers.comparison.columns import digest, evaluated
from trainers.comparison.curves import Point
from trainers.comparison.recipe import ALGORITHMS, BASELINES, Recipe
from trainers.comparison.report import write
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.runs import checkpoint
from trainers.runs import folder as runs
from trainers.runs.logger import METRICS_FILE, finite, read_metrics
from trainers.runs.setup import make_envs


@dataclass(kw_only=True)
class Args:
    """Run the comparison that a recipe describes."""

    recipe: str = "algorithms"
    """A shipped recipe (algorithms, masks, rewards, echo-trap, one-step-off-policy, agent-r1) or a TOML file."""
    runs: tuple[str, ...] = ()
    """Which of its runs; by default all."""
    seeds: tuple[int, ...] = ()
    """One start, and one run of each kind, for each; by default the recipe's."""
    updates: int | None = None
    """Policy updates of each run; by default the recipe's."""
    questions: int | None = None
    """Held-out questions of each column of the table; by default the recipe's."""
    arguments: str = "{}"
    """Arguments of the runs as JSON, over those of the recipe: '{"lr": 2e-4, "model": "my/folder"}'."""
    env_kwargs: str = "{}"
    """Arguments of the environments as JSON, over those of the recipe: '{"data": "my/folder"}'."""
    out: Path | None = None
    """Folder of the runs and the results; by default runs/<recipe>."""
    dry_run: bool = False
    """Train nothing: check the recipe, say what data is missing and how to get it, and estimate cost and memory."""
    flops_per_second: float | None = None
    """With ``dry_run``: what the accelerator can do at best; by default an H100."""


def asked(args: Args) -> Recipe:
    given = {}
    for name in ("arguments", "env_kwargs"):
        try:
            given[name] = json.loads(getattr(args, name))
        except json.JSONDecodeError as error:
            raise ValueError(f"--{name.replace('_', '-')} is not valid JSON: {error}") from error
        if not isinstance(given[name], dict):
            raise ValueError(f"--{name.replace('_', '-')} must be a JSON object, got {getattr(args, name)}")
    return recipe_file.read(
        args.recipe, runs=args.runs, seeds=args.seeds, updates=args.updates, questions=args.questions, **given
    )


def trained(recipe: Recipe, name: str, seed: int, run: Path) -> dict:
    """The summary of one run, with the ``seconds`` that its rollouts and updates took, and its learning ``curve``."""
    wanted = recipe.run_arguments(name, seed)
    if not (run / "summary.json").exists():
        started = checkpoint.latest(run) is not None
        ALGORITHMS[recipe.runs[name].algorithm][0](replace(wanted, resume=run) if started else replace(wanted, out=run))
        gc.collect()  # before the next one takes as much memory
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    saved = dict(summary["settings"])
    other = runs.differences(saved, wanted)
    if saved.pop("updates") != wanted.updates:
        other["updates"] = (summary["settings"]["updates"], wanted.updates)
    looked = summary.get("evaluation", {})  # an earlier version did not save it
    for setting in ("eval_every", "eval_questions", "eval_temperature"):
        if setting in looked and looked[setting] != getattr(wanted, setting):
            other[setting] = (looked[setting], getattr(wanted, setting))
    if other:
        told = ", ".join(f"{name}={was!r}, not {value!r}" for name, (was, value) in other.items())
        raise ValueError(f"{run} holds a run with other settings ({told}): give another --out")
    curve = curve_of(read_metrics(run / METRICS_FILE), summary, greedy=not wanted.eval_temperature)
    return summary | {"seconds": curve[-1].seconds, "curve": curve}


def curve_of(lines: Iterable[Mapping], summary: Mapping, greedy: bool = True) -> list[Point]:
    """The held-out evaluations of a run. Where the last update had none, the closing one, which is greedy, counts as its
    own if the others are ``greedy`` too."""
    seconds, points = 0.0, []
    for line in lines:
        seconds += line.get("time/rollout", 0.0) + line.get("time/update", 0.0)
        if (score := line.get(f"eval/{summary['score']}")) is not None:
            points.append(Point(int(line["episodes"]), seconds, score))
    if not points or (greedy and points[-1].episodes < summary["episodes"]):
        points.append(Point(summary["episodes"], seconds, summary[f"{summary['score']}_trained"]))
    return points


def main(args: Args) -> dict:
    recipe = asked(args)
    if args.dry_run:
        return dry_run.report(recipe, args.flops_per_second)
    checked = check.check(recipe)
    if checked.missing:
        raise FileNotFoundError("\n".join(checked.missing))
    out, left_out = args.out or Path("runs") / recipe.name, check.unfit_baselines(recipe, checked)
    baselines = [name for name in recipe.baselines if name not in left_out]
    results = {"recipe": asdict(recipe), "left_out": left_out, "rows": {}, "training": {}, "curves": {}, "levels": {}}
    for seed in recipe.seeds:
        one_seed(recipe, seed, baselines, check.asks(checked.held_out), out, results)
    results = finite(results)
    write(out, results)
    return results


def one_seed(recipe: Recipe, seed: int, baselines: Iterable[str], searches: bool, out: Path, results: dict) -> None:
    """Train and evaluate all that has this seed, and append it to ``results``.

    Args:
        searches: whether Naive RAG can play what the learning curves are measured on.
    """
    base = recipe.base(seed)
    start = functools.cache(lambda: start_policy(base, train_envs(base)))
    identity = json.dumps(
        [
            base.env,
            json.loads(base.env_kwargs),
            base.model,
            base.dtype,
            base.cold_start_steps,
            base.cold_start_continue_probability,
            seed,
        ]
    )
    columns = {column: (task, recipe.questions) for column, task in recipe.tasks.items()}
    curve = {"": (recipe.held_out, base.eval_questions)}
    rows, training, levels = results["rows"], results["training"], results["levels"]
    summaries = {name: trained(recipe, name, seed, out / f"{name}-{seed}") for name in recipe.runs}
    for name in baselines:
        title, folder, load, which = BASELINES[name], out / f"{name}-{seed}", lambda: start()[0], identity
        if name == "imitation":
            policy, spent = more_imitation(base, start(), max(s["seconds"] for s in summaries.values()), folder)
            training.setdefault(title, []).append(spent | {"seconds_cold_start": start()[1]})
            load, which = lambda policy=policy: policy, identity + json.dumps(spent)
        common = (base.max_new_tokens, folder, which, load)
        rows.setdefault(title, []).append(evaluated(title, columns, *common))
        # With "base" the curves begin; and greedy play says nothing beside curves of sampled play.
        if not base.eval_temperature and (name == "imitation" or (name == "naive-rag" and searches)):
            levels.setdefault(title, []).append(evaluated(title, curve, *common)[""]["score"])
    for name, summary in summaries.items():
        title, folder, args = recipe.runs[name].title, out / f"{name}-{seed}", recipe.run_arguments(name, seed)
        last = checkpoint.latest(folder)
        load = functools.partial(load_policy, last, dtype=args.dtype)
        rows.setdefault(title, []).append(evaluated(title, columns, args.max_new_tokens, folder, digest(last), load))
        told = {key: summary[key] for key in ("seconds", "episodes", "symptoms")}
        training.setdefault(title, []).append(told | {"folder": str(folder)})
        results["curves"].setdefault(title, []).append(summary["curve"])


def train_envs(args):
    return make_envs(args.env, args.env_kwargs, "train", args.questions_per_update * args.group_size)


def more_imitation(args, start: tuple[Policy, float], seconds: float, folder: Path) -> tuple[Policy, dict]:
    base, cold = start
    pace, patience = cold / args.cold_start_steps, args.cold_start_continue_probability
    return imitation.continued(base, train_envs(args), args.seed, seconds, pace, folder, patience)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
