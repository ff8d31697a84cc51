"""Compare runs that differ in one thing, from the same start, on the same questions: a recipe says which.

    python -m trainers.compare                              # recipe "algorithms": every one, 5 seeds: hours on a laptop
    python -m trainers.compare --recipe masks               # PPO and GRPO with and without their masks
    python -m trainers.compare --recipe rewards             # the reward at the end alone against a dense one
    python -m trainers.compare --recipe echo-trap           # StarPO against StarPO-S where a batch is used too often
    python -m trainers.compare --recipe real --model FILE.gguf  # a pretrained model learns real questions, on two cores
    python -m trainers.compare --recipe agent-r1 --dry-run  # the paper's experiment: what it needs, and what it costs
    python -m trainers.compare --recipe mine.toml --seeds 0 --runs base grpo ppo --updates 20  # a part of it
    python -m trainers.compare --recipe mine.toml --report  # the table of what is there already

For each seed, one start: the tiny policy's cold start, a pretrained model, or that model after supervised fine-tuning. From
it, every run of the recipe trains. The baselines are agents without a policy, Naive RAG, the model before and after
fine-tuning (Base Tool Call, SFT), and what as many seconds as a run spent on rollouts and updates bring when they are spent
otherwise: more imitation, more fine-tuning, rejection sampling. All are evaluated, greedily, on the held-out questions of
each column of the table.

Writes table.md, curves.png, scores.png, process.png and results.json, of all that is there, with a list of what is missing.
What its folder already holds is not run again: a run or an evaluation that was interrupted goes on.
``trainers/comparison/recipes`` has the shipped recipes; ``trainers/comparison/recipe_file.py`` says how to write one.
"""

import functools
import gc
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the packages lie beside its folder
    sys.path[:1] = [str(Path(__file__).resolve().parents[1]), str(Path.cwd())]

from trainers.comparison.recipe_source import read_source
from trainers.runs import inputs
from trainers.runs.arguments import Checks, read_json_object
from trainers.runs.command_line import parse


@dataclass(kw_only=True)
class Args(Checks):
    """Run the comparison that a recipe describes."""

    recipe: str = "algorithms"
    """A shipped recipe (algorithms, masks, rewards, reward-hacking, echo-trap, one-step-off-policy, real, agent-r1) or a TOML
    file."""
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
    dry_run: bool = False
    """Train nothing: check the recipe, say what data is missing and how to get it, and estimate cost and memory."""
    flops_per_second: float | None = None
    """With dry_run: FLOP/s of the accelerator at its peak; by default an H100's."""

    def check_inputs(self) -> None:
        read_source(self.recipe)
        if self.model and not self.dry_run:
            inputs.check_model(self.model)
        if self.start:
            inputs.check_model(self.start, self.model or "")
            if len(self.seeds) != 1:
                raise ValueError("start is what one seed starts from: give that one, such as --seeds 0")
        inputs.check_out(self.out or Path("runs"))


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "compare")  # before torch is imported: --help and mistakes answer at once

from agent_envs.vector import ToolVectorEnv
from retrieval_index import durable
from trainers.cold_start import curriculum
from trainers.cold_start.start import start_policy
from trainers.comparison import check, dry_run, failures, imitation, lengthened, recipe_file
from trainers.comparison.columns import (
    Columns,
    NotThere,
    Player,
    digest,
    evaluate_columns,
    naive_rag_player,
    policy_player,
    script_player,
)
from trainers.comparison.curves import PROCESS, Point, read_process
from trainers.comparison.recipe import ALGORITHMS, BASELINES, LENGTHENED, WITHOUT_POLICY, Recipe
from trainers.comparison.report import write
from trainers.demonstrations import FILE
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.runs import checkpoint, html_report, stopping
from trainers.runs.arguments import TrainArgs
from trainers.runs.logger import METRICS_FILE, read_metrics, to_json_types
from trainers.runs.settings import SettingsDiffer, check_settings
from trainers.runs.setup import make_envs

STARTED_FILE = "start.json"  # in the folder of a fine-tuning that ran elsewhere: where that left its checkpoint


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
        return read(runs=args.runs, seeds=args.seeds)
    recipe = read()
    return recipe if set(args.seeds) <= set(recipe.seeds) else read(seeds=args.seeds)


class Comparison:
    """The results of a recipe in a folder: found there, or made.

    Args:
        recipe: all of it.
        out: its folder, with one for each run or baseline of each seed.
        read_only: make nothing: what is not there raises `NotThere`.
    """

    def __init__(self, recipe: Recipe, out: Path, can_search: bool, read_only: bool):
        self.recipe, self.out, self.can_search, self.read_only = recipe, out, can_search, read_only
        self._start = functools.cache(self._load_start)

    # -- what everything of a seed starts from ---------------------------------------------------------------------

    def fine_tuning(self, seed: int) -> dict:
        """The summary of [sft]; of one that ran elsewhere, where that left its checkpoint."""
        folder = self.out / f"sft-{seed}"
        if (folder / STARTED_FILE).exists():
            return json.loads((folder / STARTED_FILE).read_text(encoding="utf-8"))
        self._need(folder, f"SFT, seed {seed}")
        return lengthened.fine_tune(self.recipe.sft_arguments(seed), folder)

    def start_model(self, seed: int) -> str:
        """The model that the runs of a seed start from, after [sft]; "" where that is the recipe's."""
        return self.fine_tuning(seed)["checkpoint"] if self.recipe.sft else ""

    def start_from(self, start: Path, seed: int) -> None:
        """Take what [sft] left elsewhere for that of this seed.

        Raises:
            ValueError: this seed has another start already.
        """
        folder, found = self.out / f"sft-{seed}", {"checkpoint": str(start.resolve())}
        if folder.exists() and (not (folder / STARTED_FILE).exists() or self.fine_tuning(seed) != found):
            raise ValueError(f"{folder} is there already: leave out --start, or give another --out")
        folder.mkdir(parents=True, exist_ok=True)
        durable.write_text(folder / STARTED_FILE, json.dumps(found))

    def _base_model(self, seed: int) -> str:
        """What an adapter that [sft] left elsewhere is put on, whatever it names: the recipe's model; else ""."""
        started = (self.out / f"sft-{seed}" / STARTED_FILE).exists()
        is_adapter = started and (Path(self.fine_tuning(seed)["checkpoint"]) / "adapter_config.json").is_file()
        return self.recipe.base(seed).model if is_adapter else ""

    def _load_start(self, seed: int) -> tuple[Policy, float]:
        """The policy before any training, and the seconds that its cold start took."""
        base = replace(self.recipe.base(seed), lora_rank=0)
        return start_policy(base, train_envs(base), base.seed)

    def _save_start(self, seed: int) -> str:
        """A checkpoint of the policy before any training, kept beside the runs."""
        folder = self.out / f"start-{seed}"
        if not checkpoint.is_checkpoint(folder):
            policy, seconds = self._start(seed)
            extra = {"seconds": seconds}
            checkpoint.save(folder, model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=0, extra=extra)
        return str(folder)

    def forget_start(self) -> None:
        """Give back the memory of the policy that `_load_start` loaded."""
        self._start.cache_clear()

    # -- runs ------------------------------------------------------------------------------------------------------

    def train_run(self, name: str, seed: int) -> dict:
        """Train one run of the recipe, or go on with it, or find it in its folder.

        Returns:
            Its summary, with the ``seconds`` that its rollouts and updates took, its learning ``curve`` and what the
            episodes were like on the way (``process``).

        Raises:
            ValueError: the folder holds a run with other settings.
        """
        folder, title = self.out / f"{name}-{seed}", self.recipe.title_of(name)
        self._need(folder, f"{title}, seed {seed}")
        args = self.recipe.run_arguments(name, seed, self.start_model(seed))
        args = replace(args, base_model=self._base_model(seed))
        if not (folder / "summary.json").exists():
            was_interrupted = checkpoint.latest(folder) is not None
            train = ALGORITHMS[self.recipe.runs[name].algorithm][0]
            train(replace(args, resume=folder) if was_interrupted else replace(args, out=folder))
            gc.collect()  # before the next one takes as much memory
        summary, lines = lengthened.read_summary(folder), read_metrics(folder / METRICS_FILE)
        check_settings(folder, summary, args)
        curve = read_curve(lines, summary, greedy=not args.eval_temperature)
        process = {key: read_process(lines, key) for key in PROCESS}
        return summary | {"seconds": curve[-1].seconds, "curve": curve, "process": process}

    def budget(self, seed: int) -> float:
        """For how many seconds the baselines train that are trained for as long as a run: as the recipe's ``budget``, or its
        ``budget_seconds``, or the slowest of those that are there."""
        recipe = self.recipe
        if recipe.budget_seconds:
            return float(recipe.budget_seconds)
        if recipe.budget:
            if seed not in recipe.seeds_of(recipe.budget):
                raise NotThere(f"{recipe.title_of(recipe.budget)} has no seed {seed} to take as long as")
            return self.train_run(recipe.budget, seed)["seconds"]
        done = [name for name in recipe.runs if (self.out / f"{name}-{seed}" / "summary.json").exists()]
        if not done:
            raise NotThere(f"a run of seed {seed} to take as long as")
        return max(self.train_run(name, seed)["seconds"] for name in done)

    # -- baselines that are trained --------------------------------------------------------------------------------

    def train_lengthened(self, name: str, seed: int) -> dict:
        """Train a baseline for as long as a run; returns its ``checkpoint``, and ``seconds`` among what it took."""
        recipe, folder, seconds = self.recipe, self.out / f"{name}-{seed}", self.budget(seed)
        if name == "imitation":
            return self._imitate(seed, seconds, folder)
        self._need(
            folder if name == "more-sft" else folder / f"round-{lengthened.ROUNDS - 1}",
            f"{BASELINES[name]}, seed {seed}",
        )
        start = self.start_model(seed) or self._save_start(seed)
        changes: dict[str, Any] = {"model": start, "base_model": self._base_model(seed)}
        changes |= {"lora_rank": 0} if recipe.sft.get("lora_rank") else {}
        args = recipe.sft_arguments(seed, name == "rejection-sampling", **changes)
        if name == "more-sft":
            played = self.out / f"sft-{seed}"
            return lengthened.more_sft(args, played if (played / FILE).exists() else None, seconds, folder)
        return lengthened.rejection_sampling(args, recipe.base(seed).group_size, seconds, folder)

    def _imitate(self, seed: int, seconds: float, folder: Path) -> dict:
        base = self.recipe.base(seed)
        if not imitation.is_done(folder, seconds):
            if self.read_only:
                raise NotThere(f"{BASELINES['imitation']}, seed {seed}")
            envs, (policy, took) = train_envs(base), self._start(seed)
            pace = took / (base.cold_start_steps or curriculum.default_steps(envs))
            probability = base.cold_start_continue_probability
            imitation.continue_imitation(policy, envs, base.seed, seconds, pace, folder, probability)
        return checkpoint.read_extra(folder) | {"checkpoint": str(folder)}

    # -- rows of the table -----------------------------------------------------------------------------------------

    def add(self, name: str, seed: int | None, results: dict) -> None:
        """Make a run or a baseline, and append it to ``results``.

        Args:
            seed: None for a baseline that no seed changes.
        """
        if name not in self.recipe.runs:
            self.add_baseline(name, seed, results)
        elif seed is not None:
            self.add_run(name, seed, results)

    def add_run(self, name: str, seed: int, results: dict) -> None:
        """Train and evaluate a run, and append it to ``results``."""
        summary, folder, title = self.train_run(name, seed), self.out / f"{name}-{seed}", self.recipe.title_of(name)
        args, last = self.recipe.base(seed), checkpoint.latest(folder)
        assert last is not None, f"{folder} has a summary and no checkpoint"
        row = self._evaluate(title, folder, digest(last), args, lambda: load_policy(last, dtype=args.dtype))
        kept = {key: summary[key] for key in ("seconds", "episodes", "symptoms")} | {"folder": str(folder)}
        append(results, title, seed, row, kept)
        results["curves"].setdefault(title, []).append(summary["curve"])
        results["process"].setdefault(title, []).append(summary["process"])

    def add_baseline(self, name: str, seed: int | None, results: dict) -> None:
        """Evaluate a baseline, and append it to ``results``.

        Args:
            seed: None for one that no seed changes.
        """
        recipe, title, spent = self.recipe, BASELINES[name], None
        base, folder = recipe.base(seed or 0), self.out / (name if seed is None else f"{name}-{seed}")
        load: Callable[[], Policy] | None
        if name in WITHOUT_POLICY:
            identity, load = name, None
        elif name in LENGTHENED or name == "sft":
            assert seed is not None, f"{name} starts from a policy of a seed"
            spent = self.train_lengthened(name, seed) if name in LENGTHENED else self.fine_tuning(seed)
            last = Path(spent["checkpoint"])
            base_model = self._base_model(seed) if name == "sft" else ""
            identity = digest(last)
            load = functools.partial(load_policy, last, dtype=base.dtype, base_model=base_model or None)
        else:
            identity, load = start_identity(base, seed), lambda: self._start(base.seed)[0]
        row = self._evaluate(title, folder, identity, base, load, name)
        keys = ("seconds", "asked", "steps", "updates", "episodes", "sampled", "kept", "heldout_loss")
        kept = {key: spent[key] for key in keys if key in spent} if spent else {}
        append(results, title, seed, row, kept or None)  # what ran elsewhere says nothing of what it took
        # A line in the picture of the curves; greedy play says nothing beside curves of sampled play.
        if not base.eval_temperature and (name in LENGTHENED or (name == "naive-rag" and self.can_search)):
            columns = {"": (recipe.held_out, base.eval_questions)}
            level = self._evaluate(title, folder, identity, base, load, name, columns)[""]["score"]
            results["levels"].setdefault(title, []).append(level)

    def _evaluate(
        self, title: str, folder: Path, identity: str, args: TrainArgs, load: Callable[[], Policy] | None,
        name: str = "", columns: Columns | None = None,
    ) -> dict:  # fmt: skip
        def player() -> Player:
            if load is None:
                return script_player(WITHOUT_POLICY[name])
            make = naive_rag_player if name == "naive-rag" else policy_player
            return make(load(), args.max_new_tokens)

        columns = columns or {column: (task, self.recipe.questions) for column, task in self.recipe.tasks.items()}
        kept = folder / "evaluations"
        return evaluate_columns(
            title, columns, args.max_new_tokens, kept, f"{name}:{identity}", None if self.read_only else player
        )  # fmt: skip

    def _need(self, folder: Path, what: str) -> None:
        """Raise `NotThere` where nothing is to be made, and ``folder`` holds no finished run."""
        if self.read_only and not (folder / "summary.json").exists():
            lines = read_metrics(folder / METRICS_FILE) if (folder / METRICS_FILE).exists() else []
            raise NotThere(f"{what} (stopped after {lines[-1]['step']} updates)" if lines else what)


def append(results: dict, title: str, seed: int | None, row: dict, training: dict | None) -> None:
    """Add the row of an agent with one seed."""
    results["rows"].setdefault(title, []).append(row)
    results["seeds"].setdefault(title, []).append(seed)
    if training is not None:
        results["training"].setdefault(title, []).append(training)


def collect(comparison: Comparison, part: Recipe, left_out: Iterable[str]) -> dict:
    """The results of the runs, baselines and seeds of ``part``; what is not there is named under ``missing``."""
    results: dict = {"recipe": asdict(comparison.recipe), "missing": []}
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
    """Run the comparison; returns what results.json holds, or with ``dry_run`` what it would take.

    Raises:
        ValueError: the recipe is not one, or cannot run with these arguments.
        FileNotFoundError: data is missing; the message says how to get it.
        SystemExit: SIGTERM or SIGINT came. What was run and played until then is not run again.
    """
    with stopping.handle_signals():
        return _compare(args)


def _compare(args: Args) -> dict:
    part, whole = read_recipe(args), read_recipe(args, whole=True)
    if args.dry_run:
        return dry_run.report(part, args.flops_per_second)
    checked = check.check(whole)
    if checked.missing:
        raise FileNotFoundError("\n".join(checked.missing))
    out, left_out = args.out or Path("runs") / whole.name, check.unfit_baselines(whole, checked)
    can_search = check.has_questions(checked.held_out)
    if not args.report:
        comparison = Comparison(whole, out, can_search, read_only=False)
        if args.start:
            comparison.start_from(args.start, args.seeds[0])
        collect(comparison, part, left_out)
    results = collect(Comparison(whole, out, can_search, read_only=True), whole, left_out)
    if not results["rows"]:
        raise FileNotFoundError(f"{out} holds no result of this recipe yet; missing: {'; '.join(results['missing'])}")
    results = to_json_types(results | {"left_out": left_out})
    write(out, results)
    failures.write(out, results)
    trained = [Path(run["folder"]) for runs in results["training"].values() for run in runs if run.get("folder")]
    if trained:
        html_report.write_beside(out, trained)
    return results


def start_identity(args: TrainArgs, seed: int | None) -> str:
    """All that the policy before any training depends on."""
    if seed is None:
        return json.dumps([args.model, args.dtype])
    start = [args.model, args.dtype, args.cold_start_steps, args.cold_start_continue_probability, args.seed]
    return json.dumps([args.env, json.loads(args.env_kwargs), *start])


def train_envs(args: TrainArgs) -> ToolVectorEnv:
    """Training environments for one batch of episodes."""
    return make_envs(args.env, args.env_kwargs, "train", args.questions_per_update * args.group_size)


def read_curve(lines: Iterable[Mapping], summary: Mapping, greedy: bool = True) -> list[Point]:
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


if __name__ == "__main__":
    main(ARGS)
