"""Checks of what arguments name (environments, models, folders, packages), within seconds, before torch is imported.

Each function raises a ValueError in one line with the fix.
"""

import importlib.util
import json
import os
from collections.abc import Sequence
from pathlib import Path

from trainers.config import ModelArgs, TrainArgs
from trainers.runtime.errors import UserError
from trainers.runtime.integrity import is_written_here, step_folders

DEMONSTRATIONS_FILE = "demonstrations.jsonl"  # in the folder of a run of sft: its demonstrations
_WHAT = "give a folder, a GGUF file or a hub id"


def check_trainer(args: TrainArgs) -> None:
    """Check everything that the arguments of an algorithm name."""
    check_run(args.out, args.resume, args.report_to, args.push_to_hub)
    if args.engine == "vllm" and not args.vllm_url:
        check_package("vllm", "engine 'vllm' without vllm_url", "vllm")
    check_training(args)
    check_agent(args.agent, args.env)
    check_environment(args.env, args.env_kwargs, "train", "validation")


def check_environment(env: str, env_kwargs: str, *splits: str) -> None:
    """Make the environment once for each split. Its slow parts, the questions and the index, are cached for the command."""
    from trainers.factory import make_envs  # imports Gymnasium, which --help need not wait for

    for split in splits:
        try:
            make_envs(env, env_kwargs, split, 1).close()
        except TypeError as error:
            if " cannot be made: " not in str(error):  # a bug in a foreign environment
                raise
            raise UserError(str(error)) from error


def check_agent(agent: str, env: str) -> None:
    """Check that the program of ``agent`` exists, if one is named."""
    if env.endswith(".jsonl"):
        if not agent:
            raise UserError(f"the tasks of {env} are for a program of yours: give --agent my_agent:solve, or a command")
        if not Path(env).is_file():
            raise UserError(f"there is no file {env} with tasks")
    if not agent:
        return
    from trainers.agents.programs import load_program

    for package in ("fastapi", "uvicorn", "openai"):
        check_package(package, "agent", "agents")
    load_program(agent)


def check_model(path_or_id: str | Path, base_model: str = "") -> None:
    """Check that there is a model to load: a folder, a GGUF file or on the hub; ``base_model`` is the base of an adapter."""
    from retrieval_index import hub  # here: importing its package takes time

    path, name = Path(path_or_id), str(path_or_id)
    if name.lower().endswith(".gguf"):
        _check_gguf(path)
    elif path.is_dir():
        _check_model_folder(path, base_model)
    elif path.exists():
        raise UserError(f"{name} is a file and no GGUF file: {_WHAT}")
    elif not hub.is_hub_id(name) or (path.parent != Path() and path.parent.is_dir()):  # "runs/x" in a folder runs
        raise UserError(f"there is no model folder {name}: {_WHAT}")
    else:
        hub.check_model(name)


def check_chat_template(file: str) -> None:
    """Check that a chat template, if given, is a file."""
    if file and not Path(file).is_file():
        raise UserError(f"there is no file {file} with a chat template")


def check_package(package: str, what: str, extra: str) -> None:
    """Check that a package is installed, without importing it."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{what} needs {package}: pip install -e '.[{extra}]' in the clone")


def check_out(folder: Path) -> None:
    """Check that a folder can be made or written to."""
    there = next(path for path in (folder, *folder.parents, Path("/")) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        why = "may not be written to" if there.is_dir() else "is a file"
        raise UserError(f"cannot write to {folder}: {there} {why}: give another --out")


def check_sinks(names: Sequence[str]) -> None:
    """Check that the loggers exist, and their packages are installed."""
    if unknown := sorted(set(names) - {"tensorboard", "trackio", "wandb"}):
        raise ValueError(f"unknown log sinks {unknown}; known are ['tensorboard', 'trackio', 'wandb']")
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"logging to {name} needs a package: pip install {name}")


def check_folder_free(folder: Path) -> None:
    """Check that a folder holds neither a run nor an evaluation."""
    if (folder / "evaluation.json").exists():
        raise UserError(f"{folder} holds an evaluation: give another --out")
    if is_used(folder):
        raise UserError(f"{folder} holds an earlier run: give another --out, or go on with --resume {folder}")


def is_used(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return (folder / "summary.json").exists() or bool(step_folders(folder))


def check_push(name: str) -> None:
    """Check the name of a repository, and that there is a token to write to it."""
    from huggingface_hub import get_token
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(f"push_to_hub must be NAME or USER/NAME: {error}") from error
    if not get_token():
        raise UserError("push_to_hub needs a token that may write: set HF_TOKEN, or run hf auth login")


def _check_gguf(path: Path) -> None:
    check_package("gguf", f"{path.name}, a GGUF file,", "gguf")
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    with open(path, "rb") as content:
        if content.read(4) != b"GGUF":
            raise UserError(f"{path} is not a GGUF file: it does not begin with the letters GGUF")


def _check_model_folder(folder: Path, base_model: str) -> None:
    from retrieval_index import hub

    if (folder / "adapter_config.json").is_file():
        check_package("peft", f"the LoRA adapter in {folder}", "lora")
        named = _read_json(folder / "adapter_config.json").get("base_model_name_or_path")
        if base_model:
            check_model(base_model)
        elif missing := find_missing_base(folder):
            raise UserError(
                f"{folder} is an adapter of {missing}, which is not here: give its base model (--base-model, or --model "
                "with --checkpoint)"
            )
        elif named and hub.is_hub_id(named):
            hub.check_model(named)
    elif (folder / "config.json").is_file():
        _read_json(folder / "config.json")
    elif not is_written_here(folder):
        raise UserError(f"{folder} holds no model (no config.json or adapter_config.json): {_WHAT}")


def find_missing_base(folder: Path) -> str:
    """Return the base that an adapter names, if it is neither here nor a hub id; else ""."""
    from retrieval_index import hub

    config = folder / "adapter_config.json"
    named = str(_read_json(config).get("base_model_name_or_path") or "") if config.is_file() else ""
    return "" if hub.is_hub_id(named) or Path(named).exists() else named


def _read_json(file: Path) -> dict:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{file} is damaged: {error}") from error


def check_training(args: ModelArgs) -> None:
    """Check the model to train, and its packages."""
    if args.model == "tiny":
        return
    check_model(args.model, args.base_model)
    check_chat_template(args.chat_template)
    if args.lora_rank:
        check_package("peft", "a LoRA adapter", "lora")


def check_run(out: Path | None, resume: Path | None, log: Sequence[str], push_to_hub: str) -> None:
    """Check the folder of a run, and its loggers."""
    if out and not resume:
        check_out(out)
        check_folder_free(out)
    check_sinks(log)
    if push_to_hub:
        check_push(push_to_hub)
