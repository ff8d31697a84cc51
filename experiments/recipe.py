"""A recipe says what is compared; here it becomes the arguments of its runs. `experiments.recipe_file` reads one."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from trainers import gigpo, grpo, ppo, reinforce, rloo, starpo
from trainers.config import ModelArgs, TrainArgs
from trainers.sft import Args as SFTArgs

MIXTURE = "AgentR1/Mixture-v0"
BASELINES = {
    "yes": 'Always "yes"',
    "rule": "Rule-based",
    "naive-rag": "Naive RAG",  # with the model before any training
    "base": "Base Tool Call",  # what the runs start from
    "zero-shot": "Base Tool Call (zero-shot)",  # the model before [sft]
    "sft": "SFT",  # what the runs start from, after [sft]
    "imitation": "More imitation",
    "more-sft": "More SFT",
    "rejection-sampling": "Rejection sampling",
}
WITHOUT_POLICY = {"yes": "yes", "rule": "scripted"}  # baselines that are scripts of the task
AFTER_SFT = ("zero-shot", "sft", "more-sft")  # what needs [sft]
ALGORITHMS: dict[str, tuple[Callable[[Any], dict], TrainArgs]] = {
    **{module.__name__.split(".")[-1]: (module.main, module.Args()) for module in (grpo, ppo, reinforce, rloo, gigpo)},
    **{name: (partial(starpo.main, name), starpo.make_args(name)) for name in starpo.NAMES},
}
LENGTHENED = ("imitation", "more-sft", "rejection-sampling")  # trained for as many seconds as a run
# One start for each seed.
SHARED = ("model", "dtype", *sorted(field.name for field in fields(ModelArgs) if field.name.startswith("cold_start_")))
SFT_SHARED = ("model", "base_model", "dtype", "lora_alpha", "max_new_tokens")  # [arguments] of fine-tuning too
SAMPLING_SHARED = (*SFT_SHARED, "temperature")  # and of rejection sampling, which samples as the runs do
SET_BY_COMPARISON = ("env", "env_kwargs", "seed", "out", "resume")  # arguments that a recipe cannot give


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """An environment and its arguments, in TOML's types."""

    env: str
    env_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RecipeRun:
    """One run of a recipe.

    Attributes:
        env_kwargs: its own, put over the recipe's.
        larger_groups: how many times larger its groups are than the other runs', and how many times fewer, so that it
            plays as many episodes.
        arguments: its own, put over the recipe's.
    """

    title: str
    algorithm: str
    env_kwargs: dict[str, Any]
    larger_groups: int
    arguments: dict[str, Any]


ROUNDS = {"rounds": 2, "sampling": 0.5}  # of rejection sampling, where the recipe does not say


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is compared. Its fields are the keys of the file; ``name`` is that of the file.

    Attributes:
        own_seeds: by the name of a run or baseline, those of the ``seeds`` that it has; the others have all of them.
        reference: runs or baselines that the table gives all differences to.
        pooled: columns whose questions are also scored together. Then differences are of these questions, with a
            bootstrap interval over questions and seeds, and not of the mean over all columns.
        reach: a run whose end the others are to come as far as.
        budget: the run that `LENGTHENED` baselines take as long as; by default the slowest.
        budget_seconds: how long they take, in place of ``budget``, so that they can be run beside it and not after it.
        sft: arguments of `trainers.sft`, for what every run of a seed starts from; its ``env_kwargs`` are put over the
            recipe's for its demonstrations alone.
        rejection_sampling: likewise for that baseline, put over those of ``sft`` where there are any; and its ``rounds``, and
            ``sampling``, the share of each that goes into sampling.
        model_hint: how to get the model, said where it is not there.
    """

    name: str
    title: str
    question: str = ""
    env: str = TrainArgs.env
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    own_seeds: dict[str, list[int]] = field(default_factory=dict)
    baselines: list[str] = field(default_factory=lambda: ["naive-rag", "base", "imitation"])
    questions: int = 500  # held out, of each column; 0 is all of them
    reference: list[str] = field(default_factory=list)  # the file may name a single one without brackets
    pooled: list[str] = field(default_factory=list)
    reach: str = ""
    budget: str = ""
    budget_seconds: int = 0
    symptoms: bool = False  # a column with the first symptom that the collapse monitor named
    paper: bool = False  # the paper's own figures below the table
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    sft: dict[str, Any] = field(default_factory=dict)
    rejection_sampling: dict[str, Any] = field(default_factory=dict)
    model_hint: str = ""
    tasks: dict[str, EnvConfig] = field(default_factory=dict)
    runs: dict[str, RecipeRun] = field(default_factory=dict)

    def title_of(self, name: str) -> str:
        """The title of a run or a baseline, by its name."""
        return self.runs[name].title if name in self.runs else BASELINES[name]

    def seeds_of(self, name: str) -> list[int | None]:
        """The seeds of a run or a baseline; a single None for what no seed changes."""
        own = self.own_seeds.get(name, self.seeds)
        has_start = self.base(0).model == "tiny"  # it depends on the seed
        if name in WITHOUT_POLICY or (name in ("naive-rag", "base", "zero-shot") and not has_start):
            return [None]
        return [seed for seed in own if seed in self.seeds]

    @property
    def held_out(self) -> EnvConfig:
        """What the learning curves are measured on."""
        return EnvConfig(env=self.env, env_kwargs=self.env_kwargs)

    def base(self, seed: int) -> TrainArgs:
        """The arguments of the policy that every run starts from; with [sft], before that."""
        known = {f.name for f in fields(TrainArgs)}
        return _merge(self, TrainArgs(seed=seed), {n: v for n, v in self.arguments.items() if n in known}, {})

    def _start(self, model: str) -> dict[str, Any]:
        return {"model": model} | ({"lora_rank": 0} if self.sft.get("lora_rank") else {})

    def sft_arguments(self, seed: int, sampled: bool = False, **changes: Any) -> SFTArgs:
        """The arguments of supervised fine-tuning before all runs of a seed.

        Args:
            sampled: those of rejection sampling instead, which asks the questions that the runs are trained on.
            changes: over those of the recipe.

        Raises:
            ValueError: an argument has another type or a value that `trainers.sft` rejects.
        """
        preset, names = SFTArgs(), SAMPLING_SHARED if sampled else SFT_SHARED
        shared = {n: self.arguments[n] for n in names if n in self.arguments}
        try:
            own = {**shared, **self.sft, **(self.rejection_sampling if sampled else {})}
            own = {name: value for name, value in own.items() if name not in ROUNDS}
            demonstrated = own.pop("env_kwargs", {})
            env_kwargs = self.env_kwargs if sampled else {**self.env_kwargs, **demonstrated}
            given = {n: _convert_type(n, v, getattr(preset, n)) for n, v in own.items()}
            common: dict[str, Any] = {"env": self.env, "env_kwargs": json.dumps(env_kwargs), "seed": seed}
            return replace(preset, **(common | given | changes))
        except ValueError as error:
            where = "rejection_sampling" if sampled else "sft"
            raise ValueError(f"[{where}] of the recipe {self.name!r}: {error}") from error

    @property
    def rounds(self) -> int:
        """How often rejection sampling samples and learns."""
        return int(self.rejection_sampling.get("rounds", ROUNDS["rounds"]))

    @property
    def sampling(self) -> float:
        """The share of each round of rejection sampling that is spent on sampling."""
        return float(self.rejection_sampling.get("sampling", ROUNDS["sampling"]))

    def run_arguments(self, name: str, seed: int, start: str = "") -> TrainArgs:
        """The arguments of one run.

        Args:
            start: the model that it starts from, where that is not the recipe's: one after [sft]. Where this is an
                adapter, it is trained further.

        Raises:
            ValueError: an argument has another type or a value that its algorithm rejects; the run is named.
        """
        run = self.runs[name]
        preset = ALGORITHMS[run.algorithm][1]
        known = {f.name for f in fields(preset)}
        try:
            given = {n: v for n, v in self.arguments.items() if n in known} | run.arguments
            given = {n: _convert_type(n, v, getattr(preset, n)) for n, v in given.items()}
            groups, size = (given.get(n, getattr(preset, n)) for n in ("questions_per_update", "group_size"))
            if groups % run.larger_groups:
                raise ValueError(f"{groups} questions_per_update can't be cut to 1/{run.larger_groups} (larger_groups)")
            shape = {"questions_per_update": groups // run.larger_groups, "group_size": size * run.larger_groups}
            begin = self._start(start) if start else {}
            return _merge(self, replace(preset, seed=seed), given | shape | begin, run.env_kwargs)
        except ValueError as error:
            raise ValueError(f"run {name!r} of the recipe {self.name!r}: {error}") from error


def _merge(recipe: Recipe, preset: TrainArgs, given: Mapping[str, Any], env_kwargs: Mapping[str, Any]) -> TrainArgs:
    values = {name: _convert_type(name, value, getattr(preset, name)) for name, value in given.items()}
    values.setdefault("final_questions", values.get("eval_questions", preset.eval_questions))
    return replace(preset, **values, env=recipe.env, env_kwargs=json.dumps({**recipe.env_kwargs, **env_kwargs}))


def _convert_type(name: str, value: Any, default: Any) -> Any:
    """A value of TOML in the type that its option has."""
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(value, str) and isinstance(default, tuple):
        value = (value,)
    if type(default) is float and type(value) is int:
        return float(value)
    if default is not None and type(value) is not type(default):
        raise ValueError(f"{name} must be of type {type(default).__name__}, got {value!r}")
    return value
