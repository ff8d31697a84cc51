"""The parts of a recipe, and the arguments that its runs get from it. `experiments.recipe_file` reads a recipe."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from trainers import gigpo, grpo, ppo, reinforce, rloo, starpo
from trainers.config import ModelArgs, SamplingArgs, TrainArgs
from trainers.sft import Args as SFTArgs

MIXTURE = "AgentR1/Mixture-v0"
BASELINES = {
    "constant": "Best constant answer",
    "rule": "Rule-based",
    "naive-rag": "Naive RAG",  # with the model before any training
    "base": "Base Tool Call",  # what the runs start from
    "zero-shot": "Base Tool Call (zero-shot)",  # the model before [sft]
    "sft": "SFT",  # what the runs start from, after [sft]
    "imitation": "Longer cold start",
    "more-sft": "More SFT",
    "rejection-sampling": "Rejection sampling",
}
SCRIPTS = {
    "constant": "constant",
    "rule": "scripted",
}  # baselines without a policy: the task's script that each one runs
COMPUTE_MATCHED = ("imitation", "more-sft", "rejection-sampling")  # trained for the same seconds as a run
NEED_SFT = ("zero-shot", "sft", "more-sft")
ALGORITHMS: dict[str, tuple[Callable[[Any], dict], TrainArgs]] = {
    **{module.__name__.split(".")[-1]: (module.main, module.Args()) for module in (grpo, ppo, reinforce, rloo, gigpo)},
    **{name: (partial(starpo.main, name), starpo.make_args(name)) for name in starpo.NAMES},
}
# Options that a recipe cannot give. Programs are not evaluated here, so they cannot be trained.
SET_BY_COMPARISON = {"config", "env", "env_kwargs", "seed", "out", "resume", "agent", "agent_timeout", "agent_calls"}


def names_of(args: Any) -> set[str]:
    """The names of the options of a dataclass."""
    return {option.name for option in fields(args)}


# Options that decide which policy training starts from; all runs of a seed have the same start.
START = {"model", "dtype", *(name for name in names_of(ModelArgs) if name.startswith("cold_start"))}
# Options of [arguments] that fine-tuning shares with the runs: the model, and how it samples.
SHARED_WITH_SFT = ({"model", "dtype"} | names_of(ModelArgs) - START | names_of(SamplingArgs)) & names_of(SFTArgs) - {
    "lora_rank"
}


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """An environment and its arguments, in TOML's types."""

    env: str
    env_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RecipeRun:
    """One run of a recipe. Its ``env_kwargs`` and ``arguments`` override those of the recipe."""

    title: str
    algorithm: str
    env_kwargs: dict[str, Any]
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A comparison. Its fields are the keys of the file, which `experiments.recipe_file` explains; ``name`` is the file's name
    without ".toml"."""

    name: str
    title: str
    question: str = ""
    env: str = TrainArgs.env
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    own_seeds: dict[str, list[int]] = field(default_factory=dict)
    baselines: list[str] = field(default_factory=lambda: ["naive-rag", "base"])
    questions: int = 500  # held out, of each column; 0 is all of them
    reference: list[str] = field(default_factory=list)
    pooled: list[str] = field(default_factory=list)
    naive_rag_of: list[str] = field(default_factory=list)
    reach: str = ""
    budget: str = ""
    note: str = ""
    hint: str = ""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    sft: dict[str, Any] = field(default_factory=dict)
    rejection_sampling: dict[str, Any] = field(default_factory=dict)
    tasks: dict[str, EnvConfig] = field(default_factory=dict)
    runs: dict[str, RecipeRun] = field(default_factory=dict)

    def title_of(self, name: str) -> str:
        """The title of a run or a baseline, by its name; "naive-rag:NAME" is Naive RAG with the model that NAME trained."""
        kind, _, trained = name.partition(":")
        if trained:
            return f"{BASELINES[kind]} ({self.title_of(trained)})"
        return self.runs[name].title if name in self.runs else BASELINES[name]

    def seeds_of(self, name: str) -> list[int | None]:
        """The seeds of a run or a baseline; [None] for a baseline that depends on no seed."""
        has_cold_start = self.base(0).model == "tiny"  # which depends on the seed
        if name in SCRIPTS or (name in ("naive-rag", "base", "zero-shot") and not has_cold_start):
            return [None]
        return list(self.own_seeds.get(name, self.seeds))

    def base(self, seed: int) -> TrainArgs:
        """The arguments of the policy that every run starts from, before [sft] if there is one."""
        given = {name: value for name, value in self.arguments.items() if name in names_of(TrainArgs)}
        return self._fill_in(TrainArgs(seed=seed), given, {})

    def run_arguments(self, name: str, seed: int, **start: Any) -> TrainArgs:
        """The arguments of one run. ``start``: those of the model after [sft], if the recipe has one."""
        run = self.runs[name]
        preset = replace(ALGORITHMS[run.algorithm][1], seed=seed)
        given = {name: value for name, value in self.arguments.items() if name in names_of(preset)}
        try:
            return self._fill_in(preset, given | run.arguments | start, run.env_kwargs)
        except ValueError as error:
            raise ValueError(f"run {name!r} of the recipe {self.name!r}: {error}") from error

    def sft_arguments(self, seed: int, sampled: bool = False, **start: Any) -> SFTArgs:
        """The arguments of SFT before all runs of a seed or, if ``sampled``, of SFT in rejection sampling."""
        given = {name: value for name, value in self.arguments.items() if name in SHARED_WITH_SFT} | self.sft
        if sampled:
            given |= self.rejection_sampling
        try:
            return self._fill_in(SFTArgs(seed=seed), given | start, {})
        except ValueError as error:
            table = "rejection_sampling" if sampled else "sft"
            raise ValueError(f"[{table}] of the recipe {self.name!r}: {error}") from error

    def _fill_in(self, preset: Any, given: Mapping[str, Any], env_kwargs: Mapping[str, Any]) -> Any:
        """Fill a preset with values of the recipe; the preset checks their types."""
        values = dict(given)
        if isinstance(preset, TrainArgs):  # a run's closing table is short, since the comparison has its own
            values.setdefault("final_questions", values.get("eval_questions", preset.eval_questions))
        return replace(preset, **values, env=self.env, env_kwargs=json.dumps({**self.env_kwargs, **env_kwargs}))
