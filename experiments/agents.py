"""The agents of a comparison: runs and baselines, found in their folder, or trained and evaluated."""

import functools
import gc
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from agent_envs.vector import ToolVectorEnv
from experiments import imitation, lengthened
from experiments.columns import (
    Columns,
    NotThere,
    Player,
    digest,
    evaluate_columns,
    fingerprint_weights,
    naive_rag_player,
    policy_player,
    script_player,
)
from experiments.curves import PROCESS, Point, read_process
from experiments.recipe import ALGORITHMS, BASELINES, LENGTHENED, WITHOUT_POLICY, Recipe
from retrieval_index import durable
from trainers.checkpoints import checkpoint, lock
from trainers.checkpoints.settings import SettingsDiffer, check_settings
from trainers.config import TrainArgs
from trainers.factory import make_envs
from trainers.imitation.demonstrations import FILE
from trainers.models.loading import load_policy
from trainers.models.policy import Policy
from trainers.runtime.progress import METRICS_FILE, read_metrics
from trainers.tiny.cold_start import start_policy

STARTED_FILE = "start.json"  # in the folder of a fine-tuning that ran elsewhere: where that left its checkpoint


class Comparison:
    """The results of a recipe in a folder: found there, or made.

    Args:
        recipe: all of it.
        out: its folder, with one for each run or baseline of each seed.
        read_only: make nothing: what is not there raises `NotThere`.
        data: what tells whether the data of a column is as it was; see `evaluate_columns`.
    """

    def __init__(
        self, recipe: Recipe, out: Path, can_search: bool, read_only: bool, data: Mapping[str, str] | None = None
    ):
        self.recipe, self.out, self.can_search, self.read_only = recipe, out, can_search, read_only
        self.data = data
        self._start = functools.cache(self._load_start)
        if not read_only:
            out.mkdir(parents=True, exist_ok=True)  # for the locks in it

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
            ValueError: this seed has another start already, or the recipe none that is fine-tuned.
        """
        if not self.recipe.sft:
            raise ValueError(f"the recipe {self.recipe.name!r} has no [sft], whose result --start takes: leave it out")
        folder, found = self.out / f"sft-{seed}", {"checkpoint": str(start.resolve())}
        if folder.exists() and (not (folder / STARTED_FILE).exists() or self.fine_tuning(seed) != found):
            raise ValueError(f"{folder} is there already: leave out --start, or give another --out")
        folder.mkdir(parents=True, exist_ok=True)
        durable.write_text(folder / STARTED_FILE, json.dumps(found))

    def _base_model(self, seed: int) -> str:
        """What an adapter that [sft] left elsewhere is put on, whatever it names: the recipe's model; else the base that the
        recipe names."""
        started = (self.out / f"sft-{seed}" / STARTED_FILE).exists()
        is_adapter = started and (Path(self.fine_tuning(seed)["checkpoint"]) / "adapter_config.json").is_file()
        base = self.recipe.base(seed)
        return base.model if is_adapter else base.base_model

    def _load_start(self, seed: int) -> tuple[Policy, float]:
        """The policy before any training, and the seconds that its cold start took."""
        base = replace(self.recipe.base(seed), lora_rank=0)
        return start_policy(base, train_envs(base), base.seed)

    def _save_start(self, seed: int) -> str:
        """A checkpoint of the policy before any training, kept beside the runs."""
        folder = self.out / f"start-{seed}"
        with lock.wait_for(folder, "the same start"):
            if not checkpoint.is_checkpoint(folder):
                policy, seconds = self._start(seed)
                extra = {"seconds": seconds, "start": start_settings(self.recipe.base(seed))}
                checkpoint.save(
                    folder, optimizers=[], step=0, model=policy.model, tokenizer=policy.tokenizer, extra=extra
                )
            self._check_start(folder, seed)
        return str(folder)

    def _check_start(self, folder: Path, seed: int) -> None:
        """Raise `SettingsDiffer` where what is kept in ``folder`` came from another cold start than the recipe's."""
        wanted = start_settings(self.recipe.base(seed))
        if (kept := checkpoint.read_extra(folder).get("start", wanted)) != wanted:  # an earlier version kept none
            raise SettingsDiffer(f"{folder} came from another start ({kept}, not {wanted}): give another --out")

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
        seconds = sum(line.get("time/rollout", 0.0) + line.get("time/update", 0.0) for line in lines)
        return summary | {"seconds": seconds, "curve": curve, "process": process}

    def budget(self, seed: int) -> float:
        """For how many seconds the baselines train that are trained for as long as a run: as the recipe's ``budget``, or its
        ``budget_seconds``, or the slowest of those that were there when one first trained, which is kept: they stay as long
        where slower runs come later."""
        recipe = self.recipe
        if recipe.budget_seconds:
            return float(recipe.budget_seconds)
        if recipe.budget:
            if seed not in recipe.seeds_of(recipe.budget):
                raise NotThere(f"{recipe.title_of(recipe.budget)} has no seed {seed} to take as long as")
            return self.train_run(recipe.budget, seed)["seconds"]
        kept = self.out / f"budget-{seed}.json"
        if kept.exists():
            return json.loads(kept.read_text(encoding="utf-8"))["seconds"]
        done = [name for name in recipe.runs if (self.out / f"{name}-{seed}" / "summary.json").exists()]
        if not done:
            raise NotThere(f"a run of seed {seed} to take as long as")
        seconds = max(self.train_run(name, seed)["seconds"] for name in done)
        if not self.read_only:
            durable.write_text(kept, json.dumps({"seconds": seconds, "runs": done}))
        return seconds

    # -- baselines that are trained --------------------------------------------------------------------------------

    def train_lengthened(self, name: str, seed: int) -> dict:
        """Train a baseline for as long as a run; returns its ``checkpoint``, and ``seconds`` among what it took."""
        recipe, folder, seconds = self.recipe, self.out / f"{name}-{seed}", self.budget(seed)
        if name == "imitation":
            return self._imitate(seed, seconds, folder)
        self._need(
            folder if name == "more-sft" else folder / f"round-{recipe.rounds - 1}",
            f"{BASELINES[name]}, seed {seed}",
        )
        start = self.start_model(seed) or self._save_start(seed)
        changes: dict[str, Any] = {"model": start, "base_model": self._base_model(seed)}
        changes |= {"lora_rank": 0} if recipe.sft.get("lora_rank") else {}
        args = recipe.sft_arguments(seed, name == "rejection-sampling", **changes)
        if name == "more-sft":
            played = self.out / f"sft-{seed}"
            return lengthened.more_sft(args, played if (played / FILE).exists() else None, seconds, folder)
        with nullcontext() if self.read_only else lock.wait_for(folder, "the same rejection sampling"):
            base = recipe.base(seed)
            shape = base.group_size, seconds, recipe.rounds
            return lengthened.rejection_sampling(args, *shape, folder, base.questions_per_update, recipe.sampling)

    def _imitate(self, seed: int, seconds: float, folder: Path) -> dict:
        base = self.recipe.base(seed)
        if not imitation.is_done(folder, seconds):
            if self.read_only:
                raise NotThere(f"{BASELINES['imitation']}, seed {seed}")
            with lock.wait_for(folder, "the same imitation"):
                policy, _ = self._start(seed)
                imitation.continue_imitation(
                    policy, train_envs(base), base.seed, seconds, folder, base.demonstrator(), {"start": start_settings(base)}
                )  # fmt: skip
        self._check_start(folder, seed)
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
        # Of what ran elsewhere nothing is known: {}.
        append(results, title, seed, row, kept if spent else None)
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
            title, columns, args.max_new_tokens, kept, f"{name}:{identity}", None if self.read_only else player, self.data
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


def start_identity(args: TrainArgs, seed: int | None) -> str:
    """All that the policy before any training depends on."""
    if seed is None:
        return json.dumps([fingerprint_weights(args.model), args.dtype])
    start = [args.model, args.dtype, args.cold_start_steps, *_demonstrator(args), args.seed]
    return json.dumps([args.env, json.loads(args.env_kwargs), *start])


def start_settings(args: TrainArgs) -> list:
    """What decides about the policy before any training, in JSON's types, but for where a model lies."""
    own = [args.cold_start_steps, *_demonstrator(args), args.seed] if args.model == "tiny" else []
    return [args.env, json.loads(args.env_kwargs), args.dtype, *own]


def _demonstrator(args: TrainArgs) -> list:
    """How it plays, and in what other environment, if any; where it is the task itself, in the form of earlier versions."""
    *how, env_kwargs = astuple(args.demonstrator())
    where = json.loads(env_kwargs)
    return [*how, where] if where else how


def train_envs(args: TrainArgs) -> ToolVectorEnv:
    """Training environments for one batch of episodes."""
    return make_envs(args.env, args.env_kwargs, "train", args.questions_per_update * args.group_size)


def read_curve(lines: Iterable[Mapping], summary: Mapping, greedy: bool = True) -> list[Point]:
    """The held-out evaluations of a run. Where the last update had none, the closing one, which is greedy, counts as its
    own if the others are ``greedy`` too, and of no more questions."""
    seconds, points = 0.0, []
    for line in lines:
        seconds += line.get("time/rollout", 0.0) + line.get("time/update", 0.0)
        if (score := line.get(f"eval/{summary['score']}")) is not None:
            points.append(Point(int(line["episodes"]), seconds, score))
    asked = summary.get("evaluation", {})
    is_like_them = greedy and asked.get("final_questions", 0) >= asked.get("eval_questions", 0)
    if not points or (is_like_them and points[-1].episodes < summary["episodes"]):
        points.append(Point(summary["episodes"], seconds, summary[f"{summary['score']}_trained"]))
    return points
