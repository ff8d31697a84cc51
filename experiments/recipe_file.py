"""Read and check a recipe: a TOML file that says what is compared.

    title = "GRPO with and without its mask"
    question = "What does the loss mask do?"
    seeds = [0, 1, 2]
    baselines = ["naive-rag", "base", "imitation"]
    reference = "grpo"                      # a run or baseline, or several: the table gets all differences to it
    reach = "grpo"                          # a run: how many episodes do the others take to come as far as its end?

    pooled = ["2 hops", "4 hops"]           # columns whose questions are also scored as one: differences are of these
    budget = "grpo"                         # a run: baselines that train for as long as a run take as long as this one
    budget_seconds = 3600                   # or so many seconds: then they need not wait for that run
    [own_seeds]                             # of runs and baselines that have not all of them
    no-mask = [0]

    [env_kwargs]                            # of training
    hops = [2, 3]
    [sft]                                   # supervised fine-tuning of a pretrained model, from which every run starts
    script = "oracle"                       # any option of trainers.sft
    [rejection_sampling]                    # likewise in the baseline of that name, over those of [sft]
    lr = 1e-3
    rounds = 3                              # of sampling and learning; 2 by default
    sampling = 0.8                          # the share of each that goes into sampling; half by default
    [arguments]                             # of every run that has them: any option of its algorithm's command
    updates = 25
    [tasks."4 hops"]                        # a column of the table, and what is other in it than in training
    env_kwargs = { hops = 4 }
    [runs.grpo]
    algorithm = "grpo"
    [runs.no-mask]
    title = "GRPO without loss mask"
    algorithm = "grpo"
    loss_mask = false

A column with an ``env`` of its own is given its own ``env_kwargs`` alone; after training on a mixture, over those that
all tasks of the mixture share. A run's own ``env_kwargs`` are put over the recipe's in its training, never in a column.
What a run starts from and how it is evaluated is the same for all: only [arguments] and [sft] say it. The `model` of
[arguments] is what [sft] starts from; where that leaves an adapter, the runs train it further. A run that gives a baseline
its seconds must have the seeds of the baseline.
"""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from experiments.recipe import (
    AFTER_SFT,
    ALGORITHMS,
    BASELINES,
    MIXTURE,
    ROUNDS,
    SET_BY_COMPARISON,
    SHARED,
    EnvConfig,
    Recipe,
    RecipeRun,
)
from experiments.recipe_source import read_source
from trainers import inputs, sft


def read(
    name_or_path: str, *, seeds: Iterable[int] = (), runs: Iterable[str] = (), updates: int | None = None,
    questions: int | None = None, env_kwargs: Mapping | None = None, arguments: Mapping | None = None,
) -> Recipe:  # fmt: skip
    """A shipped recipe by its name, or a file, with what the command line wants otherwise.

    Args:
        runs: those wanted, and the baselines wanted; all if none is named.
        updates: of every run.
        env_kwargs: put over the recipe's and under those of a run or a column; ``arguments`` likewise.

    Raises:
        ValueError: there is no such recipe, or the file is not one: unknown keys are named beside the known ones.
    """
    name, content = read_source(name_or_path)
    recipe = make(name, content)
    for agent, own in recipe.own_seeds.items():  # of the file: the command line may ask for others
        if not set(own) & set(recipe.seeds):
            raise ValueError(
                f"the recipe {name!r}: own_seeds of {agent} must be among the seeds, {recipe.seeds}, got {own}"
            )
    if unknown := set(runs) - set(named := [*recipe.runs, *recipe.baselines]):
        raise ValueError(f"the recipe {name!r} has no runs {sorted(unknown)}; it has {named}")
    if updates is not None:
        arguments = {**(arguments or {}), "updates": updates}
        content["runs"] = {n: {k: v for k, v in run.items() if k != "updates"} for n, run in content["runs"].items()}
    base = recipe.arguments
    if (arguments or {}).get("model", "tiny") != "tiny":  # which has no cold start
        base = {option: value for option, value in base.items() if not option.startswith("cold_start_")}
    baselines = recipe.baselines
    if (arguments or {}).get("model", "tiny") != "tiny" and not recipe.sft and "rejection-sampling" in baselines:
        warnings.warn(
            "rejection sampling from a pretrained model needs [sft] in the recipe: it is left out", stacklevel=2
        )
        baselines = [name for name in baselines if name != "rejection-sampling"]
    changes = {
        "baselines": baselines,
        "reference": [name for name in recipe.reference if name in (*baselines, *recipe.runs)],
        "own_seeds": {name: own for name, own in recipe.own_seeds.items() if name in (*baselines, *recipe.runs)},
        "seeds": list(seeds) or recipe.seeds,
        "questions": recipe.questions if questions is None else questions,
        "env_kwargs": recipe.env_kwargs | dict(env_kwargs or {}),
        "arguments": base | dict(arguments or {}),
    }
    recipe = make(name, content | changes)
    kept = {name: run for name, run in recipe.runs.items() if not runs or name in runs}
    baselines = [name for name in recipe.baselines if not runs or name in runs]
    reference = [name for name in recipe.reference if name in kept or name in BASELINES]
    reach = recipe.reach if recipe.reach in kept else ""
    return replace(recipe, runs=kept, baselines=baselines, reference=reference, reach=reach)


def make(name: str, content: Mapping[str, Any]) -> Recipe:
    """A recipe from the content of its file.

    Raises:
        ValueError: as `read`; or a run's arguments are none that its algorithm takes.
    """
    where = f"the recipe {name!r}"
    _check_keys(where, content, [f.name for f in fields(Recipe) if f.name != "name"])
    if "title" not in content or not content.get("runs"):
        raise ValueError(f"{where} needs a title, and at least one run: [runs.NAME] with an algorithm")
    reference = content.get("reference", [])
    content = {**content, "reference": [reference] if isinstance(reference, str) else reference}
    example = Recipe(name="", title="")
    for key, value in content.items():
        _check_type(f"{where}: {key}", value, type(getattr(example, key)))
    env, env_kwargs = content.get("env", Recipe.env), content.get("env_kwargs", {})
    runs = {run: _make_run(f"run {run!r} of {where}", run, given) for run, given in content["runs"].items()}
    tasks = {
        task: _make_task(f"task {task!r} of {where}", given, env, env_kwargs)
        for task, given in (content.get("tasks") or {"As in training": {}}).items()
    }
    recipe = Recipe(name=name, **{**content, "runs": runs, "tasks": tasks})
    _check_names(where, recipe)
    known_options = {f.name for run in runs.values() for f in fields(ALGORITHMS[run.algorithm][1])} - set(
        SET_BY_COMPARISON
    )
    _check_keys(f"the arguments of {where}", recipe.arguments, sorted(known_options))
    for run in runs:
        inputs.check_sinks(recipe.run_arguments(run, 0).report_to)
    recipe.base(0)
    _check_sft(where, recipe)
    return recipe


def _check_sft(where: str, recipe: Recipe) -> None:
    """[sft] and [rejection_sampling], and the baselines that need one or make no sense beside it."""
    has_cold_start = recipe.base(0).model == "tiny"
    needing = AFTER_SFT if has_cold_start else (*AFTER_SFT, "rejection-sampling")
    needed = [name for name in recipe.baselines if name in needing]
    if needed and not recipe.sft:
        raise ValueError(f"{where}: the baselines {needed} need [sft]")
    options = sorted({f.name for f in fields(sft.Args)} - {*SET_BY_COMPARISON, "model"})
    for name, known in {"sft": ["env_kwargs", *options], "rejection_sampling": [*ROUNDS, *options]}.items():
        _check_keys(f"[{name}] of {where}", getattr(recipe, name), known)
    _check_type(f"[sft] of {where}: env_kwargs", recipe.sft.get("env_kwargs", {}), dict)
    rounds, sampling = ({**ROUNDS, **recipe.rejection_sampling}[name] for name in ROUNDS)
    _check_type(f"[rejection_sampling] of {where}: rounds", rounds, int)
    if rounds < 1:
        raise ValueError(f"{where}: rounds of [rejection_sampling] must be at least 1, got {rounds}")
    _check_type(f"[rejection_sampling] of {where}: sampling", sampling, float)
    if not 0 < sampling < 1:
        raise ValueError(f"{where}: sampling of [rejection_sampling] must be between 0 and 1, got {sampling}")
    recipe.sft_arguments(0)
    recipe.sft_arguments(0, sampled=True)
    if not recipe.sft:
        return
    if excluded := {"base", "imitation"} & set(recipe.baselines):
        raise ValueError(f"{where}: with [sft] the baselines are {list(AFTER_SFT)} in place of {sorted(excluded)}")
    if has_cold_start:
        raise ValueError(f"{where}: [sft] is for pretrained models: give arguments a model")


def _check_names(where: str, recipe: Recipe) -> None:
    """Seeds, baselines, references and titles: that they exist, and that none is there twice."""
    seeds = recipe.seeds
    if not seeds or [*map(type, seeds)] != [int] * len(set(map(str, seeds))) or min(seeds) < 0:
        raise ValueError(f"{where}: seeds must be different whole numbers from 0 on, got {seeds}")
    for key in ("baselines", "reference"):
        if len(set(map(str, named := getattr(recipe, key)))) < len(named):
            raise ValueError(f"{where}: {key} names one twice: {named}")
    for name, own in recipe.own_seeds.items():
        if name not in (agents := [*recipe.runs, *recipe.baselines]):
            raise ValueError(f"{where}: own_seeds must be of {agents}, got {name!r}")
        if not isinstance(own, list) or not own or [*map(type, own)] != [int] * len(set(map(str, own))):
            raise ValueError(f"{where}: own_seeds of {name} must be a list of different whole numbers, got {own!r}")
    if not set(recipe.pooled) <= set(recipe.tasks):
        raise ValueError(f"{where}: pooled must be columns, of {list(recipe.tasks)}, got {recipe.pooled}")
    if recipe.questions < 0:
        raise ValueError(f"{where}: questions must be at least 0 (all of them), got {recipe.questions}")
    if unknown := set(recipe.baselines) - set(BASELINES):
        raise ValueError(f"{where}: unknown baselines {sorted(unknown)}; known: {list(BASELINES)}")
    one = {key: [getattr(recipe, key)] * bool(getattr(recipe, key)) for key in ("reach", "budget")}
    for key, named in {"reference": recipe.reference, **one}.items():
        known = [*recipe.runs, *(recipe.baselines if key == "reference" else ())]
        if unknown := set(named) - set(known):
            raise ValueError(f"{where}: {key} must be one of {known}, got {sorted(unknown)}")
    if recipe.budget_seconds < 0 or (recipe.budget and recipe.budget_seconds):
        raise ValueError(f"{where}: give budget, or budget_seconds of at least 1, or neither")
    titles = [*BASELINES.values(), *(run.title for run in recipe.runs.values())]
    if len(set(titles)) < len(titles):
        raise ValueError(f"{where}: two agents have the same title: {sorted(titles)}")
    if broken := [title for title in (*recipe.tasks, *titles) if re.search(r"[|\n]", title)]:
        raise ValueError(f"{where}: a title must fit a cell of a table, without '|' and line breaks, got {broken}")


def _make_run(where: str, name: str, given: Mapping[str, Any]) -> RecipeRun:
    _check_type(where, given, dict)
    if not re.fullmatch(r"[\w.+-]+", name) or name in BASELINES:
        raise ValueError(
            f"{where}: a run names a folder: letters, digits, '.', '+', '-', and none of {list(BASELINES)}"
        )
    if (algorithm := given.get("algorithm")) not in ALGORITHMS:
        raise ValueError(f"{where}: algorithm must be one of {list(ALGORITHMS)}, got {algorithm!r}")
    keys = {"title": name, "algorithm": algorithm, "env_kwargs": {}, "larger_groups": 1}
    own, options = (
        keys | dict(given),
        sorted({f.name for f in fields(ALGORITHMS[algorithm][1])} - set(SET_BY_COMPARISON)),
    )
    _check_keys(where, own, [*keys, *options])
    evaluations = {n for n in own if n.startswith("eval_")} - {"eval_every"} | {"final_questions"}
    if shared := [n for n in own if n in SHARED or n in evaluations]:
        raise ValueError(
            f"{where}: {shared} must be the same for all runs, under [arguments]: there is one start for each seed, and "
            "curves are compared"
        )
    for key, default in keys.items():
        _check_type(f"{where}: {key}", own[key], type(default))
    if own["larger_groups"] < 1:
        raise ValueError(f"{where}: larger_groups must be at least 1, got {own['larger_groups']}")
    return RecipeRun(**{k: own[k] for k in keys}, arguments={k: v for k, v in own.items() if k not in keys})


def _make_task(where: str, given: Mapping[str, Any], env: str, env_kwargs: Mapping[str, Any]) -> EnvConfig:
    _check_type(where, given, dict)
    _check_keys(where, given, ["env", "env_kwargs"])
    own: dict[str, Any] = {"env": env, "env_kwargs": {}} | dict(given)
    for key, kind in (("env", str), ("env_kwargs", dict)):
        _check_type(f"{where}: {key}", own[key], kind)
    inherited = env_kwargs if own["env"] == env else {}
    if own["env"] != env and env == MIXTURE:
        inherited = {name: value for name, value in env_kwargs.items() if name != "tasks"}
    return EnvConfig(env=own["env"], env_kwargs={**inherited, **own["env_kwargs"]})


def _check_type(what: str, value: Any, kind: type) -> None:
    if type(value) is not kind:
        called = {dict: "a table", list: "a list", str: "a text", int: "a whole number", bool: "true or false"}[kind]
        raise ValueError(f"{what} must be {called}, got {value!r}")


def _check_keys(where: str, given: Mapping[str, Any], known: list[str]) -> None:
    if unknown := set(given) - set(known):
        raise ValueError(f"{where}: unknown keys {sorted(unknown)}; known: {known}")
