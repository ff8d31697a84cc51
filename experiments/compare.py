"""Compare runs that differ in one thing, from the same start, on the same questions: a recipe says which.

    python -m experiments.compare                              # recipe "algorithms": every one, 5 seeds: hours on a laptop
    python -m experiments.compare --recipe masks               # PPO and GRPO with and without their masks
    python -m experiments.compare --recipe rewards             # where right answers are rare: rewards, GiGPO, rejection sampling
    python -m experiments.compare --recipe echo-trap           # StarPO against StarPO-S where a batch is used too often
    python -m experiments.compare --recipe rollout-shaping     # diverse starts, actions a turn, fresh rollouts, on a game
    python -m experiments.compare --recipe real --model FILE.gguf  # a pretrained model learns real questions, on two cores
    python -m experiments.compare --recipe agent-r1            # the paper's experiment, on a node with GPUs
    python -m experiments.compare --recipe mine.toml --seeds 0 --runs base grpo ppo --updates 20  # a part of it
    python -m experiments.compare --recipe mine.toml --report  # the table of what is there already

For each seed, one start: the tiny policy's cold start, a pretrained model, or that model after supervised fine-tuning. From
it, every run of the recipe trains. The baselines are agents without a policy, Naive RAG, the model before and after
fine-tuning (Base Tool Call, SFT), and what as many seconds as a run spent on rollouts and updates bring when they are spent
otherwise: more imitation, more fine-tuning, rejection sampling. All are evaluated, greedily, on the held-out questions of
each column of the table.

Writes table.md, curves.png, scores.png, process.png and results.json, of all that is there, with a list of what is missing.
What its folder already holds is not run again: a run or an evaluation that was interrupted goes on.
``experiments/recipes`` has the shipped recipes; ``experiments/recipe_file.py`` says how to write one.
"""

import functools
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the packages lie beside its folder
    sys.path[:1] = [str(Path(__file__).resolve().parents[1]), str(Path.cwd())]

from experiments.recipe_source import read_source
from trainers import inputs
from trainers.cli import parse
from trainers.config import Checks, read_json_object


@dataclass(kw_only=True)
class Args(Checks):
    """Run the comparison that a recipe describes."""

    recipe: str = "algorithms"
    """A shipped recipe (algorithms, masks, rewards, reward-hacking, echo-trap, one-step-off-policy, rollout-shaping, real,
    agent-r1) or a TOML file."""
    runs: tuple[str, ...] = ()
    """Which of its runs and baselines, by name; by default all. The table shows the others too, where they are there."""
    seeds: tuple[int, ...] = ()
    """One start, and one run of each kind, for each; by default the recipe's."""
    model: str | None = None
    """What to start from: a folder, a GGUF file or a hub id; short for "model" among --arguments."""
    updates: int | None = None
    """Policy updates of each run; by default the recipe's."""
    questions: int | None = None
    """Held-out questions of each column of the table; by default the recipe's."""
    arguments: str = "{}"
    """Arguments of the runs as JSON, over those of the recipe: '{"lr": 2e-4, "model": "my/folder"}'."""
    env_kwargs: str = "{}"
    """Arguments of the environments as JSON, over those of the recipe: '{"data": "my/folder"}'."""
    start: Path | None = None
    """What the fine-tuning of one seed left elsewhere, a checkpoint or an exported adapter: taken in place of fine-tuning again,
    also by later calls with the same --out."""
    report: bool = False
    """Run nothing: write the table, pictures and results of what the folder holds already."""
    out: Path | None = None
    """Folder of the runs and the results; by default runs/<recipe>."""

    def check_inputs(self) -> None:
        read_source(self.recipe)
        if self.model:
            inputs.check_model(self.model)
        if self.start:
            inputs.check_model(self.start, self.model or "")
            if len(self.seeds) != 1:
                raise ValueError("start is what one seed starts from: give that one, such as --seeds 0")
        self.check_unused(not self.report, "where nothing is run", "start")
        inputs.check_out(self.out or Path("runs"))


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "experiments.compare")  # before torch is imported: --help and mistakes answer at once

from experiments import check, failures, recipe_file
from experiments.agents import Comparison
from experiments.columns import NotThere
from experiments.recipe import Recipe
from experiments.report import write
from trainers.checkpoints.settings import SettingsDiffer
from trainers.episodes.report import page as html_report
from trainers.models.denormals import flushing_denormals
from trainers.runtime import retry, signals
from trainers.runtime.errors import UserError
from trainers.runtime.progress import to_json_types


def read_recipe(args: Args, whole: bool = False) -> Recipe:
    """The recipe that the command line names, with what it changes.

    Args:
        whole: with all its runs, and all its seeds too unless others are asked for.

    Raises:
        ValueError: as `recipe_file.read`.
    """
    changes: dict[str, Any] = {
        name: read_json_object(name, getattr(args, name)) for name in ("arguments", "env_kwargs")
    }
    if args.model:
        changes["arguments"]["model"] = args.model
    read = functools.partial(
        recipe_file.read, args.recipe, updates=args.updates, questions=args.questions, **changes
    )  # fmt: skip
    if not whole:
        part = read(runs=args.runs, seeds=args.seeds)
        for name in args.runs:
            if args.seeds and not part.seeds_of(name):
                seeds = ", ".join(map(str, part.own_seeds[name]))
                raise ValueError(f"{name} has seeds of its own in this recipe, and none of those asked for: {seeds}")
        return part
    recipe = read()
    return read(seeds=sorted({*recipe.seeds, *args.seeds}))


def collect(comparison: Comparison, part: Recipe, left_out: Iterable[str]) -> dict:
    """The results of the runs, baselines and seeds of ``part``; what is not there is named under ``missing``."""
    results: dict = {"recipe": asdict(comparison.recipe), "missing": [], "stopped": []}
    results |= {key: {} for key in ("rows", "seeds", "training", "curves", "process", "levels")}
    baselines = [name for name in part.baselines if name not in left_out]
    # What is trained as long as a run comes after it; in the table the baselines come first.
    names = [*baselines, *part.runs] if comparison.read_only else [*part.runs, *baselines]
    for seed in (None, *part.seeds):
        for name in names:
            if seed not in part.seeds_of(name):
                continue
            try:
                comparison.add(name, seed, results)
            except retry.ToolsFailed:  # what is dead for one is dead for all
                raise
            except signals.TrainingStopped as stop:  # the others go on
                results["stopped"].append(f"{part.title_of(name)}, seed {seed}: {stop}")
            except (NotThere, SettingsDiffer) as gap:
                if isinstance(gap, SettingsDiffer) and not comparison.read_only:
                    raise
                results["missing"] += [str(gap)] * (str(gap) not in results["missing"])
        comparison.forget_start()
    order = [part.title_of(name) for name in names]
    for key in ("rows", "seeds", "training", "curves", "process", "levels"):
        results[key] = {title: results[key][title] for title in order if title in results[key]}
    return results


def main(args: Args) -> dict:
    """Run the comparison; returns what results.json holds.

    Raises:
        ValueError: the recipe is not one, or cannot run with these arguments.
        FileNotFoundError: data is missing; the message says how to get it.
        TrainingStopped: a run stopped by itself, after all others; the tables are written before.
        SystemExit: SIGTERM or SIGINT came. What was run and played until then is not run again.
    """
    with signals.handle_signals(), flushing_denormals():  # in the baselines as in the runs
        return _compare(args)


def _compare(args: Args) -> dict:
    try:
        part, whole = read_recipe(args), read_recipe(args, whole=True)
    except ValueError as error:
        raise UserError(str(error)) from error
    checked = check.check(whole)
    if checked.missing:
        raise FileNotFoundError("\n".join(checked.missing))
    stopped: list[str] = []
    out, left_out = args.out or Path("runs") / whole.name, check.unfit_baselines(whole, checked)
    can_search = check.has_questions(checked.held_out)
    if not args.report:
        comparison = Comparison(whole, out, can_search, read_only=False)
        if args.start:
            comparison.start_from(args.start, args.seeds[0])
        stopped = collect(comparison, part, left_out)["stopped"]
    results = collect(Comparison(whole, out, can_search, True, check.digest_data(checked)), whole, left_out)
    del results["stopped"]
    if not results["rows"] and not stopped:
        raise FileNotFoundError(f"{out} holds no result of this recipe yet; missing: {'; '.join(results['missing'])}")
    results = to_json_types(results | {"left_out": left_out})
    if results["rows"]:
        write(out, results)
        failures.write(out, results)
    trained = [Path(run["folder"]) for runs in results["training"].values() for run in runs if run.get("folder")]
    if trained:
        html_report.write_beside(out, trained)
    if stopped:
        raise signals.TrainingStopped(f"not all came to an end; what did is in {out}. {'; '.join(stopped)}")
    return results


if __name__ == "__main__":
    main(ARGS)
