"""The agents of a comparison: runs and baselines, found in their folder, or trained and evaluated."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_envs.vector import ToolVectorEnv
from experiments import columns, compute_matched
from experiments.columns import Column, NotThere, Player
from experiments.curves import read_curve
from experiments.recipe import ALGORITHMS, COMPUTE_MATCHED, SCRIPTS, START, Recipe
from retrieval_index import durable
from trainers.checkpoints import checkpoint, lock
from trainers.checkpoints.settings import SettingsDiffer
from trainers.config import TrainArgs
from trainers.factory import make_envs
from trainers.models.loading import load_policy
from trainers.runtime import integrity
from trainers.runtime.progress import METRICS_FILE, read_metrics, to_json_types
from trainers.tiny.cold_start import start_policy

STARTED_FILE = "start.json"  # in the folder of an SFT that ran elsewhere: the path of its checkpoint
# Values of a run's summary that the results keep.
KEPT = ("seconds", "asked", "steps", "updates", "episodes", "sampled", "kept", "heldout_loss", "symptoms")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The results of a recipe in a folder: found there, or made."""

    recipe: Recipe
    out: Path  # its folder, with one for each run or baseline of each seed
    columns: Mapping[str, Column]
    read_only: bool = False  # make nothing: a missing result raises `NotThere`

    def add(self, name: str, seed: int | None, results: dict) -> None:
        """Train and evaluate a run or a baseline, unless its folder holds it, and append it to ``results``. ``seed``: None for a
        baseline that depends on no seed. Raises `SettingsDiffer` if the folder holds a run with other settings."""
        recipe, title = self.recipe, self.recipe.title_of(name)
        folder = self.out / (name if seed is None else f"{name}-{seed}")
        args, base_model = recipe.base(seed or 0), ""
        spent: dict[str, Any] | None = None
        with self._lock(folder.name):
            if name in SCRIPTS:
                model = ""
            elif name in recipe.runs:
                spent = self.train_run(name, args.seed) | {"folder": str(folder)}
                model = str(integrity.latest(folder))
            elif name in COMPUTE_MATCHED:
                spent = self.train_compute_matched(name, args.seed)
                model = spent["checkpoint"]
            elif name == "sft":
                spent = self.fine_tune(args.seed)
                model, base_model = spent["checkpoint"], self.start(args.seed)["base_model"]
            else:
                model, base_model = self.first_model(args.seed), args.base_model

            self._evaluate(name, name, seed, model, base_model, results)
            if spent is not None:
                kept = {key: spent[key] for key in (*KEPT, "folder") if key in spent}  # {} for training elsewhere
                results["training"].setdefault(title, []).append(kept)
                if name in recipe.runs:
                    results["curves"].setdefault(title, []).append(spent["curve"])
            if name in recipe.naive_rag_of:
                self._evaluate(f"naive-rag:{name}", name, seed, model, base_model, results)

    def _evaluate(self, agent: str, name: str, seed: int | None, model: str, base_model: str, results: dict) -> None:
        """Evaluate an agent, append its rows to ``results`` and write them to the folder of the run or baseline ``name``."""
        args, folder = self.recipe.base(seed or 0), self.out / (name if seed is None else f"{name}-{seed}")

        def make_player() -> Player:
            if agent in SCRIPTS:
                return columns.script_player(SCRIPTS[agent])
            policy = load_policy(
                model, dtype=args.dtype, base_model=base_model or None, chat_template=args.chat_template,
                thinking=args.thinking,
            )  # fmt: skip
            return columns.policy_player(policy, model, args.max_new_tokens, agent.startswith("naive-rag"))

        title = self.recipe.title_of(agent)
        template = columns.fingerprint(args.chat_template)
        identity = ":".join([agent, columns.fingerprint(model), args.dtype, args.thinking, template])
        rows = columns.evaluate(
            title, self.columns, args.max_new_tokens, folder / "evaluations", identity,
            None if self.read_only else make_player,
        )  # fmt: skip
        results["rows"].setdefault(title, []).append(rows)
        results["seeds"].setdefault(title, []).append(seed)
        if not self.read_only:
            record = json.dumps(to_json_types({"agent": agent, "seed": seed, "rows": rows}))
            durable.write_text(folder / f"result-{agent.replace(':', '-')}.json", record)

    # -- what everything of a seed starts from ---------------------------------------------------------------------

    def first_model(self, seed: int) -> str:
        """The model before any training: the recipe's, or for the tiny one a checkpoint of its cold start, beside the runs."""
        args = self.recipe.base(seed)
        if args.model != "tiny":
            return args.model
        folder = self.out / f"start-{seed}"
        wanted = {name: getattr(args, name) for name in (*sorted(START), "env", "seed")}
        wanted["env_kwargs"] = json.loads(args.env_kwargs)
        with self._lock(folder.name):
            if not integrity.is_checkpoint(folder):
                if self.read_only:
                    raise NotThere(f"the cold start of seed {seed}")
                policy, _ = start_policy(args, make_train_envs(args))
                checkpoint.save(
                    folder, optimizers=[], step=0, model=policy.model, tokenizer=policy.tokenizer, extra={"start": wanted}
                )  # fmt: skip
        if (kept := checkpoint.read_extra(folder)["start"]) != wanted:
            raise SettingsDiffer(f"{folder} came from another start ({kept}, not {wanted}): give another --out")
        return str(folder)

    def fine_tune(self, seed: int) -> dict:
        """Run [sft], or find it; return its summary, or if it ran elsewhere only its ``checkpoint``."""
        folder = self.out / f"sft-{seed}"
        if (folder / STARTED_FILE).exists():
            return json.loads((folder / STARTED_FILE).read_text(encoding="utf-8"))
        self._need(folder, f"SFT, seed {seed}")
        with self._lock(f"start-{seed}"):
            return compute_matched.fine_tune(self.recipe.sft_arguments(seed), folder)

    def start_from(self, start: Path, seed: int) -> None:
        """Use the checkpoint ``start``, made elsewhere, instead of the [sft] of this seed."""
        if not self.recipe.sft:
            raise ValueError(f"the recipe {self.recipe.name!r} has no [sft] for --start to replace: leave out --start")
        folder, found = self.out / f"sft-{seed}", {"checkpoint": str(start.resolve())}
        if folder.exists() and (not (folder / STARTED_FILE).exists() or self.fine_tune(seed) != found):
            raise ValueError(f"{folder} is there already: leave out --start, or give another --out")
        folder.mkdir(parents=True, exist_ok=True)
        durable.write_text(folder / STARTED_FILE, json.dumps(found))

    def start(self, seed: int) -> dict[str, Any]:
        """Arguments of the training after [sft]: its model, and to train its adapter further, if there is one; {} if there is
        no [sft]. An adapter from elsewhere is put on the recipe's model, whatever base it names."""
        if not self.recipe.sft:
            return {}
        args, model = self.recipe.base(seed), self.fine_tune(seed)["checkpoint"]
        is_started = (self.out / f"sft-{seed}" / STARTED_FILE).exists()
        base = args.model if is_started and (Path(model) / "adapter_config.json").is_file() else args.base_model
        start = {"model": model, "base_model": base}
        return start | {"lora_rank": 0} if self.recipe.sft.get("lora_rank") else start

    # -- what is trained -------------------------------------------------------------------------------------------

    def train_run(self, name: str, seed: int) -> dict:
        """Train one run of the recipe, or resume it, or find it in its folder. Returns its summary, with the ``seconds`` that its
        rollouts and updates took, and its learning ``curve``."""
        folder = self.out / f"{name}-{seed}"
        self._need(folder, f"{self.recipe.title_of(name)}, seed {seed}")
        args = self.recipe.run_arguments(name, seed, **self.start(seed))
        summary = compute_matched.finish(ALGORITHMS[self.recipe.runs[name].algorithm][0], args, folder)
        curve, seconds = read_curve(read_metrics(folder / METRICS_FILE), summary["score"])
        return summary | {"seconds": seconds, "curve": curve}

    def budget(self, seed: int) -> float:
        """Training time of the `COMPUTE_MATCHED` baselines, in seconds."""
        recipe = self.recipe
        if not recipe.budget:
            return recipe.base(seed).max_seconds
        if seed not in recipe.seeds_of(recipe.budget):
            raise NotThere(f"{recipe.title_of(recipe.budget)} has no seed {seed}, whose time is the budget")
        return self.train_run(recipe.budget, seed)["seconds"]

    def train_compute_matched(self, name: str, seed: int) -> dict:
        """Train a baseline at equal compute; return its ``checkpoint``, and its ``seconds`` and other costs."""
        recipe, folder, seconds = self.recipe, self.out / f"{name}-{seed}", self.budget(seed)
        if name == "imitation":
            return self._imitate(seed, seconds, folder / "model")  # a checkpoint holds no results
        last = folder if name == "more-sft" else folder / f"round-{compute_matched.ROUNDS - 1}"
        self._need(last, f"{recipe.title_of(name)}, seed {seed}")
        start = self.start(seed) or {"model": self.first_model(seed)}
        args = recipe.sft_arguments(seed, name == "rejection-sampling", **start)
        if name == "more-sft":
            return compute_matched.more_sft(args, self.out / f"sft-{seed}", seconds, folder)
        base = recipe.base(seed)
        return compute_matched.rejection_sampling(
            args, folder, seconds=seconds, attempts=base.group_size, questions=base.questions_per_update
        )

    def _imitate(self, seed: int, seconds: float, folder: Path) -> dict:
        args, first = self.recipe.base(seed), self.first_model(seed)
        start = columns.fingerprint(first)
        if not compute_matched.is_imitated(folder, seconds, start):
            if self.read_only:
                raise NotThere(f"{self.recipe.title_of('imitation')}, seed {seed}")
            envs, demonstrator = make_train_envs(args), args.demonstrator()
            compute_matched.continue_imitation(load_policy(first), envs, seed, seconds, folder, demonstrator, start)
        return checkpoint.read_extra(folder) | {"checkpoint": str(folder)}

    def _need(self, folder: Path, what: str) -> None:
        """Raise `NotThere` if nothing may be made and ``folder`` holds no finished run."""
        if self.read_only and not (folder / "summary.json").exists():
            lines = read_metrics(folder / METRICS_FILE) if (folder / METRICS_FILE).exists() else []
            raise NotThere(f"{what} (stopped after {lines[-1]['step']} updates)" if lines else what)

    def _lock(self, name: str) -> AbstractContextManager:
        """Lock what is made under this name, so that another process of the comparison waits for it."""
        if self.read_only:
            return nullcontext()
        self.out.mkdir(parents=True, exist_ok=True)
        return lock.wait_for(self.out / name, name)


def make_train_envs(args: TrainArgs) -> ToolVectorEnv:
    """Training environments for one batch of episodes."""
    return make_envs(args.env, args.env_kwargs, "train", args.questions_per_update * args.group_size)
