"""Model cards, the README.md of a checkpoint with metadata for the Hugging Face hub; and uploads. Imports no torch."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
from huggingface_hub import HfApi, ModelCardData

import agent_envs  # noqa: F401  (registers the ids)
from agent_envs.data.catalog import CATALOG
from retrieval_index import durable, hub
from trainers.checkpoints.settings import ARGUMENTS_FILE, select_interface
from trainers.episodes.report import tables
from trainers.runtime.integrity import CARD_FILE, CHECKSUMS_FILE, STATE_FILE, STEP_FOLDER, step_folders, step_of

_PRIVATE = STATE_FILE, CHECKSUMS_FILE, ARGUMENTS_FILE  # only for training to continue here
_HIDDEN = {
    "out", "resume", "config", "report_to", "push_to_hub", "vllm_url", "save_total_limit", "save_every",
}  # fmt: skip


def make_card(
    arguments: Mapping[str, Any], run: Path, folder: str, base_model: str | None, summary: Mapping | None = None
) -> str:
    """Make the text of the card of the checkpoint ``folder`` of a ``run``, with the ``summary`` of a finished run.
    ``base_model``: the folder or hub id of the model that the checkpoint is an adapter of; None for a whole model."""
    env, algorithm, step = (
        _without_folders(arguments["env"]),
        str(arguments["algorithm"]),
        STEP_FOLDER.fullmatch(folder),
    )
    kwargs = json.loads(arguments["env_kwargs"])
    which = f"after {step[1]} updates" if step else "that did best on held-out questions"
    given = f" with `{json.dumps(_without_folders(kwargs), ensure_ascii=False)}`" if kwargs else ""
    interface = {"tasks": kwargs["tasks"]} if "tasks" in kwargs else {}  # a mixture needs them
    interface |= select_interface(arguments["env_kwargs"])
    use = f" --env-kwargs {shlex.quote(json.dumps(interface, ensure_ascii=False))}" if interface else ""
    # On the hub a folder has no state of the trainer, which says so otherwise.
    acts = {name: arguments[name] for name in ("thinking", "max_new_tokens") if name in arguments["changed"]}
    use += "".join(f" --{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in acts.items())
    what, command = "a [Gymnasium](https://gymnasium.farama.org) environment of text", "trainers.play"
    if env.endswith(".jsonl"):
        what, command = "a file of tasks for a program", f"trainers.evaluate --agent {shlex.quote(arguments['agent'])}"
    parts = [
        f"---\n{_describe_metadata(arguments, base_model)}\n---",
        f"# {_describe_model(arguments, base_model)}, trained with {algorithm.upper()}",
        f"A language model that uses tools over many turns. The weights {which}.",
        f"## Task\n\n`{env}`{given}, {what}.",
        _describe_evaluation(run, folder, summary or {}),
        f"## Command\n\n{_write_command(arguments)}",
        "## Use\n\n```bash\npip install agent-r1-envs\n"
        f"python -m {command} --checkpoint FOLDER_OR_ID --env {env}{use}\n```\n\n"
        "Give the environment the arguments that the model was trained with: they decide what it reads.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def make_card_of(folder: Path, base_model: str = "") -> str:
    """Make the card of a checkpoint in the folder of its run. For an adapter, ``base_model`` replaces the one that it names."""
    arguments = _read(folder / ARGUMENTS_FILE)
    adapter, summary = _read(folder / "adapter_config.json"), _read(folder.parent / tables.SUMMARY_FILE)
    base = (base_model or adapter["base_model_name_or_path"] or "") if adapter else None
    return make_card(arguments, folder.parent, folder.name, base, summary)


def write_cards(run: Path) -> None:
    """Write the cards of all checkpoints of a finished run again, with its closing table."""
    for folder in (*step_folders(run), run / "best"):
        if _read(folder / ARGUMENTS_FILE):  # else missing or damaged
            durable.write_text(folder / CARD_FILE, make_card_of(folder))


def push(folder: Path, repository: str) -> bool:
    """Upload a checkpoint without files that only training needs; return whether it succeeded. Failures print a warning."""
    try:
        made = HfApi().create_repo(repository, private=True, exist_ok=True)
        HfApi().upload_folder(repo_id=made.repo_id, folder_path=folder, ignore_patterns=[*_PRIVATE, ".*"])
    except Exception as error:  # the hub, the network or the library may fail in any way
        fault = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        again = f"hf upload {repository} {shlex.quote(str(folder))} . --exclude {' '.join(_PRIVATE)}"
        print(f"Warning: {folder} is not on the hub ({fault}). To try again: {again}", file=sys.stderr)
        return False
    print(f"{folder} is on the hub: {made}", file=sys.stderr)
    return True


def _describe_metadata(arguments: Mapping[str, Any], base_model: str | None) -> str:
    """Return the YAML head of a card. The hub accepts only its own names of models and data sets: others are left out."""
    is_adapter, start = base_model is not None, base_model or str(arguments["model"])
    kind = ["lora"] if is_adapter else []
    on_hub = start != "tiny" and hub.is_hub_id(start) and "/" in start
    tasks = json.loads(arguments["env_kwargs"]).get("tasks")
    specs = [gymnasium.registry.get(id) for id in (arguments["env"], *(tasks if isinstance(tasks, Mapping) else ()))]
    names = dict.fromkeys(str(spec.kwargs.get("benchmark")) for spec in specs if spec)
    data = ModelCardData(
        library_name="peft" if is_adapter else "transformers",
        pipeline_tag="text-generation",
        base_model=start if on_hub else None,
        base_model_relation=("adapter" if is_adapter else "finetune") if on_hub else None,
        tags=["agent-r1-envs", "reinforcement-learning", "tool-use", "agent", arguments["algorithm"], *kind],
        datasets=[CATALOG[name].repository for name in names if name in CATALOG] or None,
    )
    return data.to_yaml()


def _describe_model(arguments: Mapping[str, Any], base_model: str | None) -> str:
    if base_model is not None:
        return f"A LoRA adapter of {_without_folders(base_model) or 'a model'}"
    return "A tiny policy" if arguments["model"] == "tiny" else str(_without_folders(str(arguments["model"])))


def _describe_evaluation(run: Path, folder: str, summary: Mapping) -> str:
    """Return the closing table of a run. Cards of other weights than its last also state which ones were evaluated."""
    if not summary.get("rows"):
        return ""
    last = max(map(step_of, step_folders(run)), default=0)
    whose = "" if folder == f"checkpoint-{last}" else f" The trained policy is that after {last} updates."
    return f"## Evaluation\n\nAll questions are held out. Source: {summary['source']}.{whose}\n\n{tables.table(summary['rows'])}"


def _write_command(arguments: Mapping[str, Any]) -> str:
    """Return the command of a run: the options that differ from their defaults, without the folders of the machine; and the
    file of those that no command line takes."""
    words, in_file = ["python", "-m", f"trainers.{arguments['algorithm']}"], list[str]()
    for name in dict.fromkeys(("env", "model", *arguments["changed"])):
        value, option = arguments[name], f"--{name.replace('_', '-')}"
        if name in _HIDDEN:
            continue
        if name.endswith("env_kwargs"):
            value = json.dumps(_without_folders(json.loads(value)), ensure_ascii=False)
        else:
            value = _without_folders(value)
        if name in arguments.get("config_only", ()):
            in_file.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
        elif isinstance(value, bool):
            words.append(option if value else f"--no-{option[2:]}")
        else:
            for one in value if isinstance(value, list) else [value]:
                words += [option, str(one)]
    if not in_file:
        return f"```bash\n{shlex.join(words)}\n```"
    lines = "\n".join(in_file)
    return f"```bash\n{shlex.join([*words, '--config', 'FILE.toml'])}\n```\n\nFILE.toml:\n\n```toml\n{lines}\n```"


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _without_folders(value: Any) -> Any:
    """Return a value without the folders of its paths: no one else has them."""
    if isinstance(value, Mapping):
        return {name: _without_folders(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(item) for item in value]
    if not isinstance(value, str) or "://" in value:
        return value
    is_path = value.startswith(("/", "~", ".")) or value.count("/") > 1 or ("/" in value and Path(value).exists())
    return Path(value).name if is_path else value
