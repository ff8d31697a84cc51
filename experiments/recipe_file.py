"""Read and check a recipe: a TOML file that describes a comparison.

    title = "GRPO with and without its mask"
    question = "What does the loss mask do?"
    seeds = [0, 1, 2]
    questions = 500                         # held-out ones in each column; 0 is all of them
    baselines = ["naive-rag", "base", "imitation"]
    reference = ["grpo"]                    # runs or baselines: the table gets all differences to them
    pooled = ["2 hops", "4 hops"]           # columns whose questions are also scored as one: differences are of these
    naive_rag_of = ["grpo"]                 # trained agents whose model also answers after one search, in extra rows
    reach = "grpo"                          # a run: how many episodes do the others take to reach its final score?
    budget = "grpo"                         # a run: compute-matched baselines train for the same seconds, after it;
                                            # without it for the max_seconds of [arguments], and wait for no run
    note = "Another table."                 # Markdown below the table
    hint = "Download the data."             # printed if the model or data is missing

    [own_seeds]                             # of runs and baselines that do not have all of them
    no-mask = [0]
    [env_kwargs]                            # of training
    hops = [2, 3]
    [sft]                                   # supervised fine-tuning of a pretrained model, from which every run starts
    script = "oracle"                       # any option of trainers.sft
    [rejection_sampling]                    # the same for the baseline of that name; overrides [sft]
    lr = 1e-3
    [arguments]                             # any option of a run's command; for all runs whose algorithm has it
    updates = 25
    [tasks."4 hops"]                        # a column of the table, and how it differs from training
    env_kwargs = { hops = 4 }
    [runs.grpo]
    algorithm = "grpo"
    [runs.no-mask]
    title = "GRPO without loss mask"
    algorithm = "grpo"
    loss_mask = false

A column with an ``env`` of its own gets only its own ``env_kwargs``; after training on a mixture, also those that all tasks of
the mixture share. A run's ``env_kwargs`` override the recipe's in its training, never in a column. All runs have the same
start and evaluation, which only [arguments] and [sft] set. [sft] starts from the ``model`` of [arguments]; if it leaves an
adapter, the runs train it further. A ``budget`` run must have the seeds of the baselines.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, get_origin

from experiments.recipe import (
    ALGORITHMS,
    BASELINES,
    COMPUTE_MATCHED,
    MIXTURE,
    NEED_SFT,
    SCRIPTS,
    SET_BY_COMPARISON,
    START,
    EnvConfig,
    Recipe,
    RecipeRun,
    names_of,
)
from experiments.recipes import read_toml
from trainers import inputs, sft
from trainers.config import EvaluationArgs, check_value


def read(
    name_or_path: str, *, seeds: Iterable[int] = (), updates: int | None = None, seconds: int | None = None,
    questions: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None, arguments: Mapping[str, Any] | None = None,
) -> Recipe:  # fmt: skip
    """Read a shipped recipe by its name, or a file, with the changes of the command line.

    ``seeds`` are added to those of the recipe. ``env_kwargs`` and ``arguments`` override the recipe's, but not those of a run
    or a column. Raises a ValueError if there is no such recipe, or the file is not a valid one.
    """
    name, content = read_toml(name_or_path)
    recipe, known = make(name, content), dict(content.get("arguments", {}))
    lengths = {"updates": updates, "max_seconds": None if seconds is None else float(seconds)}
    lengths = {name: value for name, value in lengths.items() if value is not None}
    content["runs"] = {n: {k: v for k, v in run.items() if k not in lengths} for n, run in content["runs"].items()}
    new = dict(arguments or {}) | lengths
    if seconds is not None:
        content["budget"] = ""
    if new.get("model", "tiny") != "tiny":  # which has no cold start
        known = {option: value for option, value in known.items() if not option.startswith("cold_start")}
    changes = {
        "seeds": sorted({*recipe.seeds, *seeds}),
        "questions": recipe.questions if questions is None else questions,
        "env_kwargs": recipe.env_kwargs | dict(env_kwargs or {}),
        "arguments": known | new,
    }
    return make(name, content | changes)


def make(name: str, content: Mapping[str, Any]) -> Recipe:
    """Make a recipe from the content of its file. Raises a ValueError if it is not valid."""
    where = f"the recipe {name!r}"
    _check_keys(where, content, names_of(Recipe) - {"name"})
    if "title" not in content or not content.get("runs"):
        raise ValueError(f"{where} needs a title, and at least one run: [runs.NAME] with an algorithm")
    _check_types(where, content, Recipe)
    runs = {run: _make_run(f"run {run!r} of {where}", run, given) for run, given in content["runs"].items()}
    tasks = {
        task: _make_task(f"task {task!r} of {where}", given, content)
        for task, given in (content.get("tasks") or {"As in training": {}}).items()
    }
    recipe = Recipe(name=name, **{**content, "runs": runs, "tasks": tasks})
    _check_seeds(where, recipe)
    _check_names(where, recipe)
    known = set.union(*(names_of(ALGORITHMS[run.algorithm][1]) for run in runs.values())) - SET_BY_COMPARISON
    _check_keys(f"the arguments of {where}", recipe.arguments, known)
    for run in runs:
        inputs.check_sinks(recipe.run_arguments(run, 0).report_to)
    recipe.base(0)
    _check_baselines(where, recipe)
    return recipe


def _make_run(where: str, name: str, given: Any) -> RecipeRun:
    check_value(where, dict, given)
    if not re.fullmatch(r"[\w.+-]+", name) or name in BASELINES:
        raise ValueError(
            f"{where}: a run names a folder: letters, digits, '.', '+', '-', and none of {list(BASELINES)}"
        )
    if (algorithm := given.get("algorithm")) not in ALGORITHMS:
        raise ValueError(f"{where}: algorithm must be one of {list(ALGORITHMS)}, got {algorithm!r}")
    keys = {"title": name, "algorithm": algorithm, "env_kwargs": {}}
    own = keys | given
    _check_keys(where, own, {*keys, *names_of(ALGORITHMS[algorithm][1])} - (SET_BY_COMPARISON - {"env_kwargs"}))
    if shared := sorted((names_of(EvaluationArgs) - {"eval_every"} | START) & set(own)):
        raise ValueError(
            f"{where}: {shared} must be the same for all runs, under [arguments]: there is one start for each seed, and "
            "curves are compared"
        )
    _check_types(where, own, RecipeRun)
    return RecipeRun(**{k: own.pop(k) for k in keys}, arguments=own)


def _make_task(where: str, given: Any, recipe: Mapping[str, Any]) -> EnvConfig:
    check_value(where, dict, given)
    env, inherited = recipe.get("env", Recipe.env), recipe.get("env_kwargs", {})
    own: dict[str, Any] = {"env": env, "env_kwargs": {}} | given
    _check_keys(where, own, {"env", "env_kwargs"})
    _check_types(where, own, EnvConfig)
    if own["env"] != env:
        inherited = {name: value for name, value in inherited.items() if name != "tasks"} if env == MIXTURE else {}
    return EnvConfig(env=own["env"], env_kwargs={**inherited, **own["env_kwargs"]})


def _check_seeds(where: str, recipe: Recipe) -> None:
    for what, seeds in {"seeds": recipe.seeds, **{f"own_seeds of {n}": s for n, s in recipe.own_seeds.items()}}.items():
        whole = isinstance(seeds, list) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds)
        if not whole or len(set(seeds)) < len(seeds):
            raise ValueError(f"{where}: {what} must be different integers of at least 0, got {seeds!r}")
        if not set(seeds) <= set(recipe.seeds):
            raise ValueError(f"{where}: {what} must be among the seeds, {recipe.seeds}, got {seeds}")


def _check_names(where: str, recipe: Recipe) -> None:
    """Check that all runs, baselines and columns that are named exist, and that none is named twice."""
    runs, agents = list(recipe.runs), [*recipe.runs, *recipe.baselines]
    known = {
        "baselines": list(BASELINES), "reference": agents, "own_seeds": agents, "pooled": list(recipe.tasks), "reach": runs,
        "naive_rag_of": [name for name in agents if name not in (*SCRIPTS, "naive-rag", "base", "zero-shot")],
        "budget": runs,
    }  # fmt: skip
    for key, among in known.items():
        value = getattr(recipe, key)
        named = [value] * bool(value) if isinstance(value, str) else list(value)
        if unknown := [name for name in named if name not in among]:
            raise ValueError(f"{where}: {key} must be of {among}, got {unknown}")
        if len(set(named)) < len(named):
            raise ValueError(f"{where}: {key} names one twice: {named}")
    titles = [*BASELINES.values(), *(run.title for run in recipe.runs.values())]
    if len(set(titles)) < len(titles):
        raise ValueError(f"{where}: two agents have the same title: {sorted(titles)}")
    if recipe.questions < 0:
        raise ValueError(f"{where}: questions must be at least 0 (all of them), got {recipe.questions}")


def _check_baselines(where: str, recipe: Recipe) -> None:
    """Check [sft] and [rejection_sampling], and that the baselines fit them and have a budget if they need one."""
    options = names_of(sft.Args) - SET_BY_COMPARISON - {"model"}
    _check_keys(f"[sft] of {where}", recipe.sft, options)
    _check_keys(f"[rejection_sampling] of {where}", recipe.rejection_sampling, options)
    recipe.sft_arguments(0)
    recipe.sft_arguments(0, sampled=True)
    matched = [name for name in recipe.baselines if name in COMPUTE_MATCHED]
    if matched and not recipe.budget and not recipe.base(0).max_seconds:
        raise ValueError(
            f"{where}: {matched} train at equal compute: name a run as budget, or give arguments max_seconds"
        )
    if not recipe.sft:
        if needing := [name for name in recipe.baselines if name in NEED_SFT]:
            raise ValueError(f"{where}: the baselines {needing} need [sft]")
    elif recipe.base(0).model == "tiny":
        raise ValueError(f"{where}: [sft] is for pretrained models: give arguments a model")
    elif excluded := [name for name in recipe.baselines if name in ("base", "imitation")]:
        raise ValueError(f"{where}: with [sft] the baselines are {list(NEED_SFT)} instead of {excluded}")


def _check_types(where: str, given: Mapping[str, Any], described_by: type) -> None:
    for option in fields(described_by):
        if option.name in given:
            check_value(f"{where}: {option.name}", get_origin(option.type) or option.type, given[option.name])


def _check_keys(where: str, given: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(set(given) - known):
        raise ValueError(f"{where}: unknown keys {unknown}; known: {sorted(known)}")
