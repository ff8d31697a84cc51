"""Model cards: the README.md of a checkpoint, with the metadata that the Hugging Face hub reads; and pushing it there. Nothing
here imports torch.
"""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium

import agent_envs  # noqa: F401  (registers the ids)
from agent_envs.data.catalog import CATALOG
from retrieval_index import durable
from trainers import inputs
from trainers.checkpoints.settings import ARGUMENTS_FILE, select_interface
from trainers.episodes.report import tables as report
from trainers.runtime.integrity import CARD_FILE, CHECKSUMS_FILE, CURVE_FILE, STATE_FILE, STEP_FOLDER, step_folders
from trainers.runtime.progress import METRICS_FILE, read_metrics

_PRIVATE = (STATE_FILE, CHECKSUMS_FILE, ARGUMENTS_FILE)  # for going on with training, here
_HIDDEN = {
    "out", "resume", "log", "log_project", "log_name", "log_group", "push_to_hub", "vllm_url", "keep", "save_every",
    "save_every_minutes",
}  # fmt: skip
_ADAPTER_FILE = "adapter_config.json"


def write(
    arguments: Mapping[str, Any], run: Path, folder: str, base_model: str | None, summary: Mapping | None = None
) -> str:
    """The text of the card of a checkpoint.

    Args:
        arguments: those of the run, as `trainers.checkpoints.settings.describe_arguments` has them.
        run: its folder, which holds the metrics so far.
        folder: the name of the checkpoint in it.
        base_model: the folder or hub id of the model that the checkpoint is an adapter of; None for a whole model.
        summary: of a run that has ended.
    """
    env, algorithm = str(arguments.get("env", "")), str(arguments.get("algorithm", ""))
    step, rows = STEP_FOLDER.fullmatch(folder), _name_last_weights((summary or {}).get("rows"), run, folder)
    which = f"The weights after {step[1]} updates" if step else "The weights that did best on held-out questions"
    score = f"{(summary or {}).get('source', '')}".strip()
    given = json.loads(arguments.get("env_kwargs") or "{}")
    tasks = {"tasks": given["tasks"]} if "tasks" in given else {}  # without which there is no mixture
    interface = tasks | select_interface(arguments.get("env_kwargs", "{}"))
    use = "python -m trainers.play --agent FOLDER_OR_ID"
    use += f" --env {env}" if env else ""
    use += f" --env-kwargs {shlex.quote(json.dumps(interface, ensure_ascii=False))}" if interface else ""
    parts = [
        _front_matter(_metadata(arguments, base_model)),
        f"# {_describe_model(arguments, base_model)}, trained with {algorithm.upper() or 'agent-r1-envs'}",
        f"A language model that uses tools over many turns. {which}." if algorithm else "",
        f"## Task\n\n{_describe_task(env, arguments)}" if env else "",
        f"## Evaluation\n\nAll questions are held out. Source: {score}.\n\n{report.table(rows).strip()}"
        if rows
        else "",
        _describe_curve(run, int(step[1]) if step else None, summary is not None and (run / CURVE_FILE).is_file()),
        f"## Command\n\n```bash\n{command(arguments)}\n```" if algorithm else "",
        f"## Use\n\n```bash\npip install agent-r1-envs\n{use}\n```\n\nGive the environment the arguments that the model was "
        "trained with: they decide what it reads.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def write_cards(run: Path) -> None:
    """Write the cards of all checkpoints of a run that has ended anew, with its table and its curve."""
    summary = json.loads((run / report.SUMMARY_FILE).read_text(encoding="utf-8"))
    picture = run / CURVE_FILE
    for folder in (*step_folders(run), run / "best"):
        sums = folder / CHECKSUMS_FILE
        if not (folder / ARGUMENTS_FILE).is_file() or not sums.is_file():
            continue  # of an earlier version, or damaged
        if CARD_FILE in sums.read_text(encoding="utf-8").split():
            continue  # of an earlier version
        if picture.is_file():
            (folder / CURVE_FILE).write_bytes(picture.read_bytes())
        staging = folder / f".{CARD_FILE}"
        staging.write_text(write_for(folder, summary), encoding="utf-8")
        durable.publish(staging, folder / CARD_FILE)


def write_for(folder: Path, summary: Mapping | None = None, base_model: str | None = None) -> str:
    """The card of a checkpoint that lies in the folder of its run, by what lies there; ``base_model`` is put in place of the one
    that an adapter names."""
    arguments, adapter = _read_json(folder / ARGUMENTS_FILE), _read_json(folder / _ADAPTER_FILE)
    named = (base_model or str(adapter.get("base_model_name_or_path") or "")) if adapter else None
    if summary is None:
        summary = _read_json(folder.parent / report.SUMMARY_FILE) or None
    return write(arguments, folder.parent, folder.name, named, summary)


def command(arguments: Mapping[str, Any]) -> str:
    """The command of a run: what is not as by default, without the folders of the machine."""
    words = ["python", "-m", f"trainers.{arguments['algorithm']}"]
    for name in ("env", "model", *arguments.get("changed", ())):
        value = arguments.get(name)
        if name in _HIDDEN or value is None or (name in ("env", "model") and f"--{name}" in words):
            continue
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif name == "env_kwargs":
            words += [f"--{option}", json.dumps(_without_folders(json.loads(value)), ensure_ascii=False)]
        else:
            for one in value if isinstance(value, list) else [value]:
                words += [f"--{option}", str(_without_folders(one))]
    return shlex.join(words)


def push(folder: Path, repository: str) -> bool:
    """Upload a checkpoint to the Hugging Face hub, without what only training needs. Where that fails, a warning says how to try
    again: no run is lost for it.

    Returns:
        Whether it is there now.
    """
    from huggingface_hub import HfApi, get_token

    try:
        made = HfApi().create_repo(repository, private=True, exist_ok=True)
        HfApi().upload_folder(
            repo_id=made.repo_id, folder_path=folder, ignore_patterns=[*_PRIVATE, ".*"],
            commit_message=f"{folder.name} of a run of agent-r1-envs",
        )  # fmt: skip
    except Exception as error:  # whatever the hub, the network or its library make of it
        fault = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".replace(get_token() or "\0", "…")
        again = f"hf upload {repository} {shlex.quote(str(folder))} . --exclude {' '.join(_PRIVATE)}"
        print(f"Warning: {folder} is not on the hub ({fault}). To try again: {again}", file=sys.stderr)
        return False
    print(f"{folder} is on the hub: {made}", file=sys.stderr)
    return True


def _front_matter(metadata: Mapping[str, Any]) -> str:
    """YAML, of which JSON is a part."""
    lines = (f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in metadata.items())
    return "\n".join(["---", *lines, "---"])


def _metadata(arguments: Mapping[str, Any], base_model: str | None) -> dict[str, Any]:
    """What stands at the head of a card. The hub takes only names of its own for models and data sets, so others are left out."""
    is_adapter, start = base_model is not None, base_model or str(arguments.get("model", ""))
    found: dict[str, Any] = {
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
    }
    if start != "tiny" and inputs.is_hub_id(start) and "/" in start:
        found |= {"base_model": start, "base_model_relation": "adapter" if is_adapter else "finetune"}
    tags = ["agent-r1-envs", "reinforcement-learning", "tool-use", "agent", arguments.get("algorithm", "")]
    found["tags"] = [*filter(None, tags), *["lora"] * is_adapter]
    if datasets := _find_datasets(str(arguments.get("env", "")), arguments):
        found["datasets"] = datasets
    return found


def _find_datasets(env: str, arguments: Mapping[str, Any]) -> list[str]:
    """The repositories of the benchmarks that an environment asks questions of."""
    tasks = json.loads(arguments.get("env_kwargs") or "{}").get("tasks")
    specs = [gymnasium.registry.get(id) for id in (env, *(tasks if isinstance(tasks, Mapping) else ()))]
    names = [str(spec.kwargs.get("benchmark")) for spec in specs if spec]
    return list(dict.fromkeys(CATALOG[name].repository for name in names if name in CATALOG))


def _describe_model(arguments: Mapping[str, Any], base_model: str | None) -> str:
    if base_model is not None:
        return f"A LoRA adapter of {_without_folders(base_model) or 'a model'}"
    start = str(arguments.get("model", ""))
    return "A tiny policy" if start == "tiny" else str(_without_folders(start)) or "A model"


def _describe_task(env: str, arguments: Mapping[str, Any]) -> str:
    kwargs = _without_folders(json.loads(arguments.get("env_kwargs") or "{}"))
    given = f" with `{json.dumps(kwargs, ensure_ascii=False)}`" if kwargs else ""
    return f"`{env}`{given}, a [Gymnasium](https://gymnasium.farama.org) environment of text."


def _name_last_weights(rows: list[dict] | None, run: Path, folder: str) -> list[dict] | None:
    """The rows of the table that closes a run. In the card of other weights than its last, what was evaluated is said."""
    last = max((int(name[1]) for one in step_folders(run) if (name := STEP_FOLDER.fullmatch(one.name))), default=0)
    if not rows or not last or folder == f"checkpoint-{last}":
        return rows
    trained = [row["name"].startswith("Trained with ") for row in rows]
    names = [
        f"{row['name']}, after {last} updates" if own else row["name"] for row, own in zip(rows, trained, strict=True)
    ]
    return [{**row, "name": name} for row, name in zip(rows, names, strict=True)]


def _describe_curve(run: Path, until: int | None, with_picture: bool) -> str:
    curve, called = _read_curve(run)
    curve = [point for point in curve if until is None or point[0] <= until]
    if not curve:
        return ""
    shown = dict([*curve[:: max(1, len(curve) // 10)], curve[-1]])  # about ten of them
    rows = "".join(f"| {step} | {score:.3f} |\n" for step, score in shown.items())
    picture = f"![held-out {called} in training]({CURVE_FILE})\n\n" if with_picture else ""
    return f"## Learning curve\n\n{picture}| update | held-out {called} |\n| ---: | ---: |\n{rows}".strip()


def _read_curve(run: Path) -> tuple[list[tuple[int, float]], str]:
    """(update, score) of the evaluations in training, and what the score is called; the first of a line is the task's own."""
    lines = read_metrics(run / METRICS_FILE) if (run / METRICS_FILE).is_file() else []
    key = next((name for line in lines for name in line if name.startswith("eval/")), "")
    found = [(int(line["step"]), float(line[key])) for line in lines if line.get(key) is not None]
    return found, key.removeprefix("eval/")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _without_folders(value: Any) -> Any:
    """A value without the folders in which its paths lie: nobody else has them."""
    if isinstance(value, Mapping):
        return {name: _without_folders(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(item) for item in value]
    if not isinstance(value, str) or "://" in value:
        return value
    is_path = value.startswith(("/", "~", ".")) or value.count("/") > 1 or ("/" in value and Path(value).exists())
    return Path(value).name if is_path else value
