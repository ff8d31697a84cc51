"""Before a recipe runs: can its environments be made, are its columns held out, and which baselines make sense?"""

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium

from agent_envs.data.catalog import CATALOG
from agent_envs.data.sources import DATA_VARIABLE
from agent_envs.tasks.qa import QAEnv
from agent_envs.tool_env import ToolEnv
from experiments.recipe import MIXTURE, WITHOUT_POLICY, EnvConfig, Recipe
from trainers.evaluation.evaluator import can_be_searched_for, data_digest
from trainers.factory import make_envs
from trainers.models import gguf
from trainers.rollouts.rollout import check_formats

STAND_IN, _SMALL = "AgentR1/MiniWiki-Easy-v0", {"entities": 200, "questions": 20}
_DATA = ("data", "corpus", "source", "index")  # arguments that say where a benchmark comes from


@dataclass(kw_only=True)
class CheckedRecipe:
    """The environments that a recipe is played on.

    Attributes:
        training: one environment of each kind that a run is trained on; of a mixture, one of each task. Where the data
            of a benchmark is missing, MiniWiki stands in with the same arguments, so that these are checked; nothing is
            ever measured on it.
        held_out: those of the learning curves, likewise.
        columns: by name, those of each column, likewise.
        missing: what data is missing, and how to get it.
    """

    training: list[ToolEnv] = field(default_factory=list)
    held_out: list[ToolEnv] = field(default_factory=list)
    columns: dict[str, list[ToolEnv]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def has_questions(envs: Sequence[ToolEnv]) -> bool:
    """Whether the environments ask the questions of one task, which Naive RAG could search for."""
    return len(envs) == 1 and can_be_searched_for(envs[0])


def check(recipe: Recipe) -> CheckedRecipe:
    """Make every environment of a recipe.

    Raises:
        ValueError: an environment rejects its arguments, or a column asks questions that are trained on; or turns are
            written in a format that can't be trained.
        TypeError: it does not know them.
    """
    checked, train = CheckedRecipe(missing=_lacks_model(recipe)), set()
    for where, envs, task, split in _list_environments(recipe, checked):
        made, missing = [], []
        for part in mixture_parts(task):
            env, problem = _make_or_stand_in(part, split)
            made.append(env)
            missing += [problem] if problem else []
            missing += [problem] if (problem := _lacks_index(part)) else []
        checked.missing = list(dict.fromkeys([*checked.missing, *missing]))
        envs += made
        if missing:
            continue
        if task.env == MIXTURE:
            make_envs(task.env, json.dumps(task.env_kwargs), split, 1)
        with_questions = [env for env in made if isinstance(env, QAEnv)]
        questions = {(env.task.name, question.id) for env in with_questions for question in env.questions}
        if split == "train":
            train |= questions
        elif shared := questions & train:
            raise ValueError(f"{len(shared)} questions of {where} are training questions too")
    return checked


def digest_data(checked: CheckedRecipe) -> dict[str, str]:
    """By column, `data_digest` of what it is played on; "" is the learning curves'."""
    return {name: "".join(map(data_digest, envs)) for name, envs in ({"": checked.held_out} | checked.columns).items()}


def unfit_baselines(recipe: Recipe, checked: CheckedRecipe) -> dict[str, str]:
    """Those of the recipe's baselines that make no sense here, and why."""
    unfit, model = {}, recipe.base(0).model
    if columns := [column for column in recipe.tasks if not has_questions(checked.columns[column])]:
        unfit["naive-rag"] = f"{', '.join(columns)}: no question that could be searched for"
    for baseline, script in WITHOUT_POLICY.items():
        if columns := [c for c in recipe.tasks if any(script not in env.SCRIPTS for env in checked.columns[c])]:
            unfit[baseline] = f"{', '.join(columns)}: no script {script!r}"
    if model != "tiny":
        unfit["imitation"] = f"{model} is pretrained: there is no cold start to continue"
    return {name: why for name, why in unfit.items() if name in recipe.baselines}


def mixture_parts(task: EnvConfig) -> list[EnvConfig]:
    """The environments of a mixture's tasks; of anything else, itself."""
    tasks = task.env_kwargs.get("tasks")
    if task.env != MIXTURE or not isinstance(tasks, dict):
        return [task]
    common = {name: value for name, value in task.env_kwargs.items() if name != "tasks"}
    own = {id: part.get("kwargs", {}) if isinstance(part, dict) else {} for id, part in tasks.items()}
    return [EnvConfig(env=id, env_kwargs={**common, **kwargs}) for id, kwargs in own.items()]


def _list_environments(recipe: Recipe, checked: CheckedRecipe) -> Iterator[tuple[str, list[ToolEnv], EnvConfig, str]]:
    """All that is played, training first: its name for messages, the list of ``checked`` that its environments go to, the
    environment and its split."""
    own = [recipe.sft.get("env_kwargs", {}), *(run.env_kwargs for run in recipe.runs.values())]
    kinds = {json.dumps(kwargs, sort_keys=True): kwargs for kwargs in own}
    for kwargs in kinds.values():
        yield (
            "training",
            checked.training,
            EnvConfig(env=recipe.env, env_kwargs={**recipe.env_kwargs, **kwargs}),
            "train",
        )
    yield "the learning curves", checked.held_out, recipe.held_out, "validation"
    for column, task in recipe.tasks.items():
        yield f"the column {column!r}", checked.columns.setdefault(column, []), task, "validation"


def _make_or_stand_in(task: EnvConfig, split: str) -> tuple[ToolEnv, str]:
    """An environment, and what is missing if it is only a stand-in for it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a stand-in, which `problem` says instead
            env = _make_env(task.env, task.env_kwargs, split)
        if not getattr(getattr(env, "task", None), "warning", ""):
            return env, ""
        problem = f"the {split} split of {_benchmark(task.env)} was found nowhere"
    except gymnasium.error.UnregisteredEnv as error:
        raise ValueError(f"there is no environment {task.env!r}: {error}") from error
    except (OSError, ImportError) as error:
        problem = str(error)
        if not _benchmark(task.env):
            raise ImportError(f"{task.env}: {problem}") from error
    common = {name: value for name, value in task.env_kwargs.items() if name not in _DATA}
    of = "train" if task.env_kwargs.get("holdout") else split  # a part of the training questions that is held out
    return _make_env(STAND_IN, {**_SMALL, **common}, split), f"{problem}\n{_remedy(task.env, of)}"


def _make_env(env: str, env_kwargs: dict, split: str) -> ToolEnv:
    envs = make_envs(env, json.dumps(env_kwargs), split, 1)
    check_formats(envs)
    return envs.envs[0]


def _benchmark(env: str) -> str:
    spec = gymnasium.registry.get(env.split(":")[-1])  # of an id "module:name", whose module may be what is missing
    name = spec.kwargs.get("benchmark", "") if spec else ""
    return name if name in CATALOG else ""


def _remedy(env: str, split: str) -> str:
    entry = CATALOG[_benchmark(env)]
    files = " or ".join(entry.official_files.get(split, ("(it has no such split)",)))
    return (
        f"Get {files} from {entry.homepage}, and name its folder: export {DATA_VARIABLE}=FOLDER. Or, where "
        f'huggingface.co can be reached, --env-kwargs \'{{"source": "hub"}}\' downloads {entry.repository}.'
    )


def _lacks_model(recipe: Recipe) -> list[str]:
    model = recipe.base(0).model
    if not gguf.is_gguf(model) or Path(model).is_file():
        return []
    return [f"there is no model file {model}" + f"\nGet it: {recipe.model_hint}" * bool(recipe.model_hint)]


def _lacks_index(task: EnvConfig) -> str:
    index = str(task.env_kwargs.get("index") or "")
    if not index or index.startswith(("http://", "https://")) or Path(index).is_dir():
        return ""
    return (
        f"there is no index {index}\nBuild it: python -m retrieval_index build --corpus CORPUS --out {index}. Or search "
        'elsewhere: --env-kwargs \'{"index": "FOLDER or URL"}\'.'
    )
