"""Checkpoints: a folder that Hugging Face loads as a model, with the state of the trainer beside the weights.

The folder is written beside its destination and published by one rename, after all of it is on the disk. A kill or power
loss leaves the previous checkpoint. State is tensors and JSON, read with `weights_only=True`: it cannot run code.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers.utils import cached_file

from retrieval_index import durable
from retrieval_index.publish import exchange
from trainers.models import fsdp
from trainers.models.policy import check_finite
from trainers.runtime import distributed
from trainers.runtime.errors import UserError
from trainers.runtime.integrity import (
    CARD_FILE,
    STATE_FILE,
    STEP_FOLDER,
    is_checkpoint,
    is_written_here,
    step_folders,
    step_of,
    verify,
    write_checksums,
)


def save(
    folder: str | Path,
    *,
    model,
    tokenizer,
    optimizers: Sequence[torch.optim.Optimizer],
    step: int,
    extra: dict[str, Any],
    keep_last: int = 1,
    modules: Mapping[str, torch.nn.Module] | None = None,
    texts: Mapping[str, str] | None = None,
) -> Path:
    """Write a checkpoint, atomically replacing one that is already there. The first of several processes writes it.

    Args:
        folder: `RUN/checkpoint-<step>`, or any other name for a checkpoint by itself.
        model: if it has a LoRA adapter, only the adapter is written.
        tokenizer: None for an adapter that uses that of its base.
        extra: what else the trainer needs to continue, in the types of JSON; tuples come back as lists.
        modules: what was trained beside the model, such as a critic, by name; frozen weights are left out.
        keep_last: how many checkpoints of earlier steps stay beside this one.
        texts: other files by name.
    """
    folder = Path(folder).absolute()
    state = {"step": step, "extra": json.dumps(extra), "rng": _rng_state()}
    state["optimizers"] = [fsdp.gather_state(optimizer.state_dict()) for optimizer in optimizers]
    state["modules"] = {name: fsdp.gather_state(_split(module)[0]) for name, module in (modules or {}).items()}
    if distributed.rank():
        return folder
    if folder.exists() and not is_written_here(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not a checkpoint: it will not be overwritten")
    staging = folder.with_name(f".{folder.name}.saving")
    shutil.rmtree(staging, ignore_errors=True)  # what a killed save left
    durable.make_folder(staging)
    try:
        with open(staging / STATE_FILE, "wb") as file:  # given a path, torch does not report why it cannot write
            torch.save(state, file)
        if unsafe := torch.serialization.get_unsafe_globals_in_checkpoint(staging / STATE_FILE):
            raise TypeError(f"the optimizer state holds {unsafe}, which could not be loaded again without running code")
        with warnings.catch_warnings():  # peft looks for the configuration of a base that may be a GGUF file
            warnings.filterwarnings("ignore", "Could not find a config file")
            model.save_pretrained(staging)
        if model.name_or_path and getattr(model.config, "vision_config", None) and not hasattr(model, "peft_config"):
            _copy_processor(model.name_or_path, staging)
        if tokenizer is not None:
            tokenizer.save_pretrained(staging)
        (staging / CARD_FILE).unlink(missing_ok=True)  # peft's card is empty and names a folder of this machine
        for name, text in (texts or {}).items():
            (staging / name).write_text(text, encoding="utf-8")
        write_checksums(staging)
        _publish(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if STEP_FOLDER.fullmatch(folder.name):
        _prune(folder, step, keep_last)
    return folder


def load_state(
    folder: str | Path,
    optimizers: Sequence[torch.optim.Optimizer],
    modules: Mapping[str, torch.nn.Module] | None = None,
) -> tuple[int, dict[str, Any]]:
    """Verify a checkpoint, restore optimizers, modules and random states; return `(step, extra)`.

    Raises:
        CheckpointDamaged: a file is missing or changed, including the list of checksums.
        ValueError: the optimizers or modules are not those that were saved, or what was saved is NaN or infinite.
    """
    verify(folder)
    # Processes of one machine share the mapped pages, and each reads only its own part of them.
    mapped = distributed.world_size() > 1
    state = torch.load(Path(folder) / STATE_FILE, map_location="cpu", weights_only=True, mmap=mapped)
    check_finite(_tensors(state["optimizers"], "optimizers"), folder)
    check_finite(_tensors(state["modules"], "modules"), folder)
    saved = state["optimizers"]
    if len(saved) != len(optimizers):
        raise UserError(f"{folder} holds the states of {len(saved)} optimizers, got {len(optimizers)}")
    for optimizer, optimizer_state in zip(optimizers, saved, strict=True):
        for group, own in zip(optimizer_state["param_groups"], optimizer.param_groups, strict=False):
            group |= {"fused": own["fused"]} if "fused" in own else {}  # the device may be of another kind than before
        optimizer.load_state_dict(fsdp.shard_state(optimizer_state, optimizer))
    modules = modules or {}
    if set(modules) != set(state["modules"]):
        raise UserError(f"{folder} holds the modules {sorted(state['modules'])}, got {sorted(modules)}")
    for name, module in modules.items():
        trained, frozen = _split(module)
        saved = state["modules"][name]
        module.load_state_dict({**frozen, **{n: fsdp.match_sharding(v, trained.get(n, v)) for n, v in saved.items()}})
    _set_rng_state(state["rng"])
    return state["step"], json.loads(state["extra"])


def read_extra(folder: str | Path, verified: bool = False) -> dict[str, Any]:
    """Read the saved `extra`, without restoring anything. Raises as `load_state` does. ``verified``: its files were checked."""
    if not verified:
        verify(folder)
    return json.loads(torch.load(Path(folder) / STATE_FILE, map_location="cpu", weights_only=True, mmap=True)["extra"])


def _copy_processor(path_or_id: str, folder: Path) -> None:
    """Copy what prepares pictures, if it is there: without it vLLM takes no model that reads them."""
    for name in ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"):
        with suppress(OSError):  # the folder is gone, or the hub does not answer
            if found := cached_file(path_or_id, name, _raise_exceptions_for_missing_entries=False):
                shutil.copyfile(found, folder / name)


def _split(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Split the state of a module into what training changes and the frozen weights."""
    state, frozen = module.state_dict(), {name for name, p in module.named_parameters() if not p.requires_grad}
    return {n: v for n, v in state.items() if n not in frozen}, {n: v for n, v in state.items() if n in frozen}


def _publish(staging: Path, folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        durable.sync_tree(staging)
        exchange(staging, folder)  # what lies in staging now is the old checkpoint
        durable.sync(folder.parent)
    else:
        durable.publish(staging, folder)


def _prune(newest: Path, step: int, keep_last: int) -> None:
    older = [path for path in step_folders(newest.parent) if step_of(path) < step and is_checkpoint(path)]
    for path in older[keep_last:]:
        # Out of sight first: a removal that is killed halfway must not leave half a checkpoint under its name.
        os.rename(path, newest.with_name(f".{path.name}.saving"))
        print(f"{path} is removed: the newest {keep_last + 1} are kept", file=sys.stderr, flush=True)
    for abandoned in newest.parent.glob(".checkpoint-*.saving"):
        shutil.rmtree(abandoned, ignore_errors=True)


def _tensors(state: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a nested state, each with its path in the state as a name."""
    if torch.is_tensor(state):
        yield name, state
    elif isinstance(state, dict | list):
        for key, value in state.items() if isinstance(state, dict) else enumerate(state):
            yield from _tensors(value, f"{name}.{key}")


def _rng_state() -> dict[str, Any]:
    """Return the states of the global generators: of torch as tensors, of Python and numpy as JSON."""
    kind, keys, *rest = cast("tuple[str, np.ndarray, int, int, float]", np.random.get_state())
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    numpy_and_python = json.dumps({"python": random.getstate(), "numpy": [kind, keys.tolist(), *rest]})
    return {"torch": torch.get_rng_state(), "cuda": cuda, "json": numpy_and_python}


def _set_rng_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():  # a run may continue on another machine
        torch.cuda.set_rng_state_all(state["cuda"])
    others = json.loads(state["json"])
    version, internal, gauss = others["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(tuple(others["numpy"]))
