"""Checks before a recipe runs: its environments can be made, its columns are held out, and its baselines make sense."""

import json
import warnings
from collections.abc import Iterable
from pathlib import Path

from agent_envs.tasks.qa import QAEnv
from agent_envs.tool_env import ToolEnv
from experiments.columns import Column
from experiments.recipe import SCRIPTS, EnvConfig, Recipe
from trainers.evaluation.evaluator import data_digest
from trainers.evaluation.naive_rag import can_be_searched_for
from trainers.factory import make_envs
from trainers.models import gguf


def check(recipe: Recipe) -> tuple[dict[str, Column], dict[str, str]]:
    """Make every environment of a recipe. Returns its columns, and why some of its baselines make no sense here, by name.
    Raises a ValueError if a column asks training questions, a FileNotFoundError if data or the model is missing."""
    model = recipe.base(0).model
    if gguf.is_gguf(model) and not Path(model).is_file():
        raise FileNotFoundError(f"there is no model file {model}")
    own = [{}, *(run.env_kwargs for run in recipe.runs.values())]  # demonstrations have none of their own
    kinds = {json.dumps(kwargs, sort_keys=True): kwargs for kwargs in own}
    training = [EnvConfig(env=recipe.env, env_kwargs={**recipe.env_kwargs, **kwargs}) for kwargs in kinds.values()]
    trained_on = set().union(*(_list_questions(_make(task, "train")) for task in training))
    columns = {name: _make(task, "validation") for name, task in recipe.tasks.items()}
    curves = _make(EnvConfig(env=recipe.env, env_kwargs=recipe.env_kwargs), "validation")
    for where, envs in [("the learning curves", curves), *((f"the column {n!r}", e) for n, e in columns.items())]:
        if shared := _list_questions(envs) & trained_on:
            raise ValueError(f"{len(shared)} questions of {where} are training questions too")
    checked = {
        name: Column(task=task, questions=recipe.questions, data="".join(map(data_digest, columns[name])))
        for name, task in recipe.tasks.items()
    }
    return checked, _find_unfit(recipe, columns)


def _find_unfit(recipe: Recipe, columns: dict[str, list[ToolEnv]]) -> dict[str, str]:
    """Find the recipe's baselines that make no sense here, with the reasons."""
    unfit, model = {}, recipe.base(0).model
    if others := [name for name, envs in columns.items() if len(envs) > 1 or not can_be_searched_for(envs[0])]:
        unfit["naive-rag"] = f"{', '.join(others)}: no question that could be searched for"
        if recipe.naive_rag_of:
            raise ValueError(f"naive_rag_of: {unfit['naive-rag']}; leave it out")
    for baseline, script in SCRIPTS.items():
        if others := [name for name, envs in columns.items() if any(script not in env.SCRIPTS for env in envs)]:
            unfit[baseline] = f"{', '.join(others)}: no script {script!r}"
    if model != "tiny":
        unfit["imitation"] = f"{model} is pretrained: there is no cold start to continue"
    if model != "tiny" and not recipe.sft:
        unfit["rejection-sampling"] = f"{model} is pretrained: it needs [sft] in the recipe"
    return {name: why for name, why in unfit.items() if name in recipe.baselines}


def _list_questions(envs: Iterable[ToolEnv]) -> set[tuple[str, str]]:
    return {(env.task.name, question.id) for env in envs if isinstance(env, QAEnv) for question in env.questions}


def _make(task: EnvConfig, split: str) -> list[ToolEnv]:
    """Make an environment; for a mixture, one for each of its tasks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about stand-in data, which is refused below
        envs = make_envs(task.env, json.dumps(task.env_kwargs), split, 1)
    made = list(envs.envs[0].members.values())
    for env in made:
        if warning := getattr(getattr(env, "task", None), "warning", ""):
            raise FileNotFoundError(warning)
    return made
