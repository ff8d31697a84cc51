"""The settings of a run: what a checkpoint keeps of its arguments and what a resumed run may change. Imports no torch."""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from trainers.config import TrainArgs, mutable_on_resume, select_options
from trainers.runtime.errors import UserError
from trainers.runtime.integrity import step_folders
from trainers.runtime.progress import to_json_types

ARGUMENTS_FILE = "arguments.json"  # in a checkpoint: all arguments of its run

LENGTHS = "updates", "max_seconds"  # a continued run may be given more; a finished run must match them

# Arguments of environments that decide what an agent reads and may do, but not its questions or rewards. An agent does best with
# those that it was trained with.
_INTERFACE = (
    "k", "max_chars", "passage_tokens", "read", "instructions", "format", "context", "instructions_in_observation", "max_turns",
    "max_calls", "max_total_calls", "max_tokens",
)  # fmt: skip

_OF_A_CALL = {"out", "resume", "config"}  # arguments of one call, which are not saved

Args = TypeVar("Args")


class SettingsDiffer(UserError):
    """A folder holds a run that was made with other arguments."""


def algorithm_of(args: Any) -> str:
    """Return the name of the file that defines the arguments, such as "grpo"."""
    module = sys.modules[type(args).__module__]  # that of a command is called __main__
    return Path(getattr(module, "__file__", None) or module.__name__).stem


def settings(args: Any) -> dict[str, Any]:
    """Return the arguments that a resumed run may not change, with the name of their algorithm's file."""
    chosen = {name: value for name, value in asdict(args).items() if name not in mutable_on_resume(args) | {"config"}}
    if isinstance(args, TrainArgs):  # the surrogate's defaults are settings as well
        chosen |= dict(zip(("clip_low", "clip_high"), args.clip_range, strict=True)) | {"normalize": args.mean_over}
    return chosen | {"algorithm": algorithm_of(args)}


def select_interface(env_kwargs: str) -> dict[str, Any]:
    """Select an agent's interface from the arguments of an environment, a JSON object. An interface contains no folder."""
    given = json.loads(env_kwargs or "{}")
    return {name: given[name] for name in _INTERFACE if name in given}


def warn_of_other_env_kwargs(name: str, saved: Mapping[str, Any], env: str, env_kwargs: str) -> None:
    """Warn if an agent is used in another task than it was trained on, or with other arguments of the interface.

    ``saved``: the `settings` in its checkpoint, or those of them that were exported.
    """
    if "env_kwargs" not in saved:
        return
    tasks = _list_tasks(saved["env"], saved["env_kwargs"])
    trained, here = select_interface(saved["env_kwargs"]), select_interface(env_kwargs)
    if "format" in trained:
        here = {"format": trained["format"]} | here  # if none is named, the agent keeps its own
    if trained != here or not tasks & _list_tasks(env, env_kwargs):
        print(
            f"Warning: {name} was trained on {', '.join(sorted(tasks))} with {json.dumps(trained)}, which decides what it reads "
            f"and may do; here it is {env} with {json.dumps(here)}",
            file=sys.stderr,
        )


def _list_tasks(env: str, env_kwargs: str) -> set[str]:
    """Return the id of an environment, and the ids of its tasks if it is a mixture."""
    from agent_envs.registration import full_id

    tasks = json.loads(env_kwargs or "{}").get("tasks") if "Mixture" in env else None
    name = Path(env).name if env.endswith(".jsonl") else full_id(env)  # an export does not say where a file was
    return {name, *map(full_id, tasks or ())}


def list_changed(args: Any) -> list[str]:
    """List the arguments that differ from their defaults."""
    return [f.name for f in fields(args) if f.name not in _OF_A_CALL and getattr(args, f.name) != f.default]


def describe_arguments(args: Any) -> str:
    """Return the text of `ARGUMENTS_FILE`: all arguments except the folder of the run. ``changed`` lists those that differ from
    their defaults, ``config_only`` those that no command line takes; ``algorithm`` is the name of their file."""
    kept = {name: value for name, value in asdict(args).items() if name not in _OF_A_CALL}
    described = kept | {"algorithm": algorithm_of(args), "changed": list_changed(args)}
    described |= {"config_only": select_options(args, "config")}
    return json.dumps(to_json_types(described), indent=2) + "\n"


def restore(defaults: Args, run: Path) -> Args:
    """Replace ``defaults`` by the saved arguments of a run. Raises UserError if it has no checkpoint of this algorithm."""
    saved = _read_arguments(run)
    if (algorithm := saved["algorithm"]) != algorithm_of(defaults):
        raise UserError(f"{run} is a run of {algorithm}: python -m trainers.{algorithm} --resume {run}")
    known = {field.name for field in fields(defaults)} - _OF_A_CALL  # type: ignore[arg-type]
    return replace(defaults, **{n: v for n, v in saved.items() if n in known}, resume=run)  # type: ignore[type-var]


def _read_arguments(run: Path) -> dict[str, Any]:
    folders = step_folders(run)
    if not folders:
        what = "there is no checkpoint in it" if run.is_dir() else "there is no such folder"
        raise UserError(f"{run} is no run to continue: {what}")
    for folder in folders:
        try:
            return dict(json.loads((folder / ARGUMENTS_FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError):  # a damaged one is set aside when it is loaded
            continue
    raise UserError(f"no checkpoint in {run} has its {ARGUMENTS_FILE}")


def find_differences(saved: Mapping[str, object], args: Any, also: Iterable[str] = ()) -> dict[str, tuple]:
    """Find the `settings` of a saved run that differ from ``args``: (saved, wanted) by name. ``also``: further arguments to
    compare, if they were saved."""
    had = to_json_types(dict(saved))
    wanted = settings(args) | {name: getattr(args, name) for name in also if name in had and hasattr(args, name)}
    pairs = {name: (had.get(name), value) for name, value in to_json_types(wanted).items()}
    return {name: pair for name, pair in pairs.items() if not _is_same(name, *pair)}


def check_resumed(where: Path, saved: Mapping[str, object], args: Any) -> None:
    """Raise `SettingsDiffer` if a run is to continue from the checkpoint ``where`` with other settings than ``saved``."""
    if different := find_differences(saved, args):
        said = _list_differences(different)
        raise SettingsDiffer(
            f"{where} was trained with {said}: leave the option out; --help-all lists what --resume may change"
        )


def check_settings(folder: Path, summary: Mapping, args: Any) -> None:
    """Raise `SettingsDiffer` if the run of this ``summary`` was made with other arguments than ``args``."""
    saved = dict(summary["settings"]) | dict(summary.get("evaluation", {}))
    if different := find_differences(saved, args, also=(*LENGTHS, "eval_every")):
        said = _list_differences(different)
        raise SettingsDiffer(f"{folder} holds a run with other settings ({said}): give another --out")


def _list_differences(different: Mapping[str, tuple]) -> str:
    return ", ".join(f"{name}={was!r}, not {value!r}" for name, (was, value) in different.items())


_PATHS = ("model", "base_model", "chat_template", "episodes", "messages")


def _is_same(name: str, saved: Any, wanted: Any) -> bool:
    """Compare two values of an argument; spellings of the same JSON or of the same path are equal."""
    if name in _PATHS:
        had, wants = ([value] if isinstance(value, str) else value or [] for value in (saved, wanted))
        return len(had) == len(wants) and all(map(_is_same_path, had, wants))
    return _comparable(name, saved) == _comparable(name, wanted)


def _is_same_path(saved: str, wanted: str) -> bool:
    """Compare two paths; if the saved one is gone (moved with the folder of a comparison), its last two components."""
    had, wants = Path(saved), Path(wanted)
    if saved == wanted or not (wants.exists() and had.name):
        return saved == wanted
    return had.resolve() == wants.resolve() if had.exists() else had.parts[-2:] == wants.resolve().parts[-2:]


def _comparable(name: str, value: Any) -> Any:
    try:
        return json.loads(value) if name.endswith("env_kwargs") else value
    except ValueError:
        return value
