"""Compare runs that differ in one thing, from the same start, on the same questions, as a recipe describes.

    python -m experiments.compare                              # recipe "algorithms": all, 5 seeds: hours on a laptop
    python -m experiments.compare --recipe masks               # PPO and GRPO with and without their masks
    python -m experiments.compare --recipe rewards             # rare right answers: rewards, GiGPO, rejection sampling
    python -m experiments.compare --recipe echo-trap           # StarPO against StarPO-S, with many steps on each batch
    python -m experiments.compare --recipe rollout-shaping     # diverse starts, actions a turn, fresh rollouts, on a game
    python -m experiments.compare --recipe real --model FILE.gguf --jobs 2  # a pretrained model learns real questions
    python -m experiments.compare --recipe agent-r1            # the paper's experiment, on a node with GPUs
    python -m experiments.compare --recipe mine.toml --seeds 0 --runs base grpo ppo --updates 20  # a part of it
    python -m experiments.compare --recipe mine.toml --report  # the table of existing runs

Each seed has one start: the tiny policy's cold start, a pretrained model, or that model after SFT. All runs of the recipe train
from it. The baselines are agents without a policy, Naive RAG, the model before and after SFT (Base Tool Call, SFT), and more SFT
or rejection sampling at equal compute. All are evaluated by greedy decoding on the held-out questions of each column.

Writes table.md, scores.png, curves.png, report.html and results.json of all results that exist, and lists the missing ones.
Existing results are kept, and interrupted runs and evaluations resume. ``experiments/recipes`` has the shipped recipes;
``experiments/recipe_file.py`` describes how to write one.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.recipes import read_toml
from trainers import inputs
from trainers.cli import parse
from trainers.config import Checks, Count, read_json_object


@dataclass(kw_only=True)
class Args(Checks):
    """Run the comparison that a recipe describes."""

    recipe: str = "algorithms"
    """A shipped recipe (algorithms, masks, rewards, reward-hacking, echo-trap, one-step-off-policy, rollout-shaping, real,
    agent-r1) or a TOML file."""
    runs: tuple[str, ...] = ()
    """Names of runs and baselines to make. Default: all. The table also shows others that exist."""
    seeds: tuple[int, ...] = ()
    """Seeds, each with one start and one run of each kind. Default: the recipe's."""
    model: str | None = None
    """Model to start from: a folder, GGUF file or hub id; short for "model" in --arguments."""
    updates: int | None = None
    """Policy updates of each run. Default: the recipe's."""
    seconds: Count | None = None
    """Limit on the training time of each run and compute-matched baseline, in seconds. Default: the recipe's."""
    questions: int | None = None
    """Held-out questions of each column of the table. Default: the recipe's."""
    arguments: str = "{}"
    """Arguments of the runs as JSON, over the recipe's: '{"lr": 2e-4, "model": "my/folder"}'."""
    env_kwargs: str = "{}"
    """Arguments of the environments as JSON, over the recipe's: '{"data": "my/folder"}'."""
    start: Path | None = None
    """Checkpoint or exported adapter that replaces the SFT of one seed, also in later calls with the same --out."""
    report: bool = False
    """Only write the table, pictures and results of existing runs."""
    jobs: Count = 1
    """Agents at once, each in a process with its share of the cores; their output is in <out>/jobs."""
    out: Path | None = None
    """Folder of the runs and the results. Default: runs/<recipe>."""

    def check_inputs(self) -> None:
        read_toml(self.recipe)
        if self.model:
            inputs.check_model(self.model)
        if self.start:
            inputs.check_model(self.start, self.model or "")
            if len(self.seeds) != 1:
                raise ValueError("start applies to one seed: name it, such as --seeds 0")
        self.check_unused(not self.report, "where nothing is run", "start", "jobs")
        inputs.check_out(self.out or Path("runs"))


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "experiments.compare")  # before torch is imported: --help and mistakes answer at once

from experiments import check, recipe_file, report
from experiments.columns import NotThere
from experiments.comparison import Comparison
from experiments.jobs import run_jobs
from experiments.recipe import Recipe
from trainers.checkpoints.settings import SettingsDiffer
from trainers.episodes.report import page as html_report
from trainers.models.denormals import flushing_denormals
from trainers.runtime import retry, signals
from trainers.runtime.errors import UserError
from trainers.runtime.progress import to_json_types

BY_AGENT = ("rows", "seeds", "training", "curves")  # results by title: a list with one entry for each seed


def main(args: Args) -> dict:
    """Run the comparison; return the contents of results.json. If a run stops by itself, raise `TrainingStopped` after all others
    have run and the tables are written."""
    with signals.handle_signals(), flushing_denormals():  # in the baselines as in the runs
        return _compare(args)


def read_recipe(args: Args) -> Recipe:
    """Read the recipe that the command line names, with the changes from the other arguments."""
    arguments, env_kwargs = (read_json_object(name, getattr(args, name)) for name in ("arguments", "env_kwargs"))
    if args.model:
        arguments["model"] = args.model
    changes: dict[str, Any] = {"arguments": arguments, "env_kwargs": env_kwargs}
    changes |= {name: getattr(args, name) for name in ("seeds", "updates", "seconds", "questions")}
    recipe = recipe_file.read(args.recipe, **changes)
    named = [*recipe.runs, *recipe.baselines]
    if unknown := sorted(set(args.runs) - set(named)):
        raise ValueError(f"the recipe {recipe.name!r} has no runs {unknown}; it has {named}")
    for name in args.runs if args.seeds else ():
        if not {None, *args.seeds} & set(own := recipe.seeds_of(name)):
            seeds = ", ".join(map(str, own))
            raise ValueError(f"this recipe has {name} only for seeds {seeds}: name one of them in --seeds")
    return recipe


def collect(maker: Comparison, reader: Comparison, args: Args, left_out: dict[str, str]) -> tuple[dict, list[str]]:
    """Run what was requested, and read the rest. Returns the results, and which runs stopped by themselves, with reasons."""
    recipe, stopped = maker.recipe, []
    results: dict[str, Any] = {"recipe": asdict(recipe), "missing": [], **{key: {} for key in BY_AGENT}}
    baselines = [name for name in recipe.baselines if name not in left_out]
    for seed in (None, *recipe.seeds):
        for name in (*recipe.runs, *baselines):  # baselines come after the run whose time they get
            if seed not in recipe.seeds_of(name):
                continue
            is_asked = name in (args.runs or (name,)) and seed in (None, *(args.seeds or recipe.seeds))
            makes = is_asked and not args.report
            try:
                (maker if makes else reader).add(name, seed, results)
            except retry.ToolsFailed:  # the tools fail for all agents
                raise
            except signals.TrainingStopped as stop:  # the others continue
                stopped.append(f"{recipe.title_of(name)}, seed {seed}: {stop}")
                results["missing"].append(f"{recipe.title_of(name)}, seed {seed}")
            except (NotThere, SettingsDiffer) as gap:
                if makes and isinstance(gap, SettingsDiffer):
                    raise
                results["missing"] += [str(gap)] * (str(gap) not in results["missing"])
    agents = (*baselines, *recipe.runs, *(f"naive-rag:{name}" for name in recipe.naive_rag_of))
    titles = [recipe.title_of(name) for name in agents]
    ordered = {key: {title: results[key][title] for title in titles if title in results[key]} for key in BY_AGENT}
    return to_json_types(results | ordered | {"left_out": left_out}), stopped


def _compare(args: Args) -> dict:
    try:
        recipe = read_recipe(args)
        columns, left_out = check.check(recipe)
    except ValueError as error:  # nothing has run yet: the arguments are wrong
        raise UserError(str(error)) from error
    except OSError as error:
        raise FileNotFoundError(f"{error}\n{recipe.hint}".strip()) from error
    out = args.out or Path("runs") / recipe.name
    maker, reader = (Comparison(recipe=recipe, out=out, columns=columns, read_only=only) for only in (False, True))
    if args.start:
        maker.start_from(args.start, args.seeds[0])
    failed = run_jobs(recipe, args, left_out, out) if args.jobs > 1 else []
    results, stopped = collect(reader if args.jobs > 1 else maker, reader, args, left_out)
    stopped += failed
    if results["rows"]:
        report.write(out, results)
    elif not stopped:
        raise FileNotFoundError(f"{out} holds no result of this recipe yet; missing: {'; '.join(results['missing'])}")
    if trained := [Path(run["folder"]) for runs in results["training"].values() for run in runs if run.get("folder")]:
        html_report.write_beside(out, trained)
    if stopped:
        raise signals.TrainingStopped(
            f"some runs did not finish; results of the others are in {out}. {'; '.join(stopped)}"
        )
    return results


if __name__ == "__main__":
    main(ARGS)
