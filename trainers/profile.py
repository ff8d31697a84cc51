"""Where the time of a run goes, and how near that is to what the machine can do.

    python -m trainers.profile runs/grpo-MiniWiki-v0-0
    python -m trainers.profile                            # the run that was written to last

Of each phase: seconds an update, its share, the conversations' tokens, and the tokens that were *processed*, which means that
they went through the model: fewer where conversations share their beginnings or have no advantage, more by padding. Then what
these passes are in floating-point operations of the policy's layers, 2 for each weight and token forward and 6 with the
gradient, beside what a matrix product reaches on this machine now. Attention, the head, a critic and a reference are not
among them; passes without a gradient count as if they had one. Each step of decoding reads all weights once, with the head:
that is its bandwidth, beside that of a large copy; keys and values are not in it.

Run it where the run was made, with as many threads, and nothing beside it. With ``--one-step-off-policy`` phases overlap.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

if not __package__:  # run as a file: the packages lie beside its folder
    sys.path[:1] = [str(Path(__file__).resolve().parents[1]), str(Path.cwd())]

import tyro

from trainers.runs.command_line import parse


@dataclass(kw_only=True)
class Args:
    """Print where the time of a run goes."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Folder of a run; by default the one under runs/ that was written to last."""
    skip: int = 1
    """Updates to leave out at the beginning, where buffers grow and kernels are chosen."""


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "profile")  # before torch is imported: --help and mistakes answer at once

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM

from trainers.models.loading import default_device
from trainers.models.lora import find_base_model
from trainers.runs import checkpoint
from trainers.runs.logger import METRICS_FILE, read_metrics

# phase: its seconds, the conversations' tokens, those that were processed, and the operations for each weight and token
PHASES = {
    "prefill": ("time/prefill", "tokens/prefill", "tokens/processed_prefill", 2),
    "decode": ("time/decode", "tokens/decode", "tokens/processed_decode", 2),
    "tools": ("time/tools", None, None, 0),
    "update": ("time/update", "tokens/all", "tokens/processed_update", 6),
}


def choose_run(run: Path | None) -> Path:
    """The folder of a run: the given one, or that under runs/ that was written to last.

    Raises:
        ValueError: there is none, or it holds no metrics.
    """
    if run is None:
        found = sorted(Path("runs").glob(f"**/{METRICS_FILE}"), key=lambda file: file.stat().st_mtime)
        if not found:
            raise ValueError("there is no run under runs/: give the folder of one")
        run = found[-1].parent
    if not (run / METRICS_FILE).exists():
        raise ValueError(f"{run} holds no {METRICS_FILE}: it is not the folder of a run")
    return run


def mean_phases(lines: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Means over updates: ``seconds``, ``tokens`` and tokens ``processed`` of each phase, and the rest of the rollout as
    ``other``. ``lines``: those of the metrics file."""

    def mean(name: str | None) -> float:
        if name is None:
            return 0.0
        earlier = name.replace("processed_", "fed_")  # what earlier versions called it
        return float(np.mean([line.get(name) or line.get(earlier) or 0.0 for line in lines]))

    found = {
        phase: {"seconds": mean(seconds), "tokens": mean(tokens), "processed": mean(processed)}
        for phase, (seconds, tokens, processed, _) in PHASES.items()
    }
    parts = sum(found[phase]["seconds"] for phase in ("prefill", "decode", "tools"))
    other = max(0.0, mean("time/rollout") - parts)  # tools may have run beside the decoding
    found["decode"]["steps"] = mean("train/decode_steps")
    return found | {"other": {"seconds": other, "tokens": 0.0, "processed": 0.0}}


def count_weights(folder: Path) -> tuple[int, int]:
    """How many weights multiply each token, all but the embedding, which is looked up, and the head; and how many are in the
    head, which is only for tokens that are sampled."""
    config = AutoConfig.from_pretrained(find_base_model(folder) or folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings().weight
    outer = {id(model.get_input_embeddings().weight), id(head)}
    return sum(p.numel() for p in model.parameters() if id(p) not in outer), head.numel()


def measure_limits(device: str, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    """What this machine reaches now: ``flops`` a second in a large matrix product, ``bytes`` a second in a large copy."""
    size = 1024 if device == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    source = torch.empty(2**26 if device == "cpu" else 2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return {
        "flops": 2 * size**3 / _fastest(lambda: torch.mm(a, b), device),
        "bytes": 2 * source.numel() / _fastest(lambda: target.copy_(source), device),
    }


def _fastest(job: Callable[[], object], device: str, repeats: int = 10) -> float:
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        job()
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return best


def main(args: Args) -> dict:
    """Print where the time goes, and return the figures, which are the last line of the output as JSON too.

    Raises:
        ValueError: there is no such run, or it has too few updates.
    """
    run = choose_run(args.run)
    lines = [line for line in read_metrics(run / METRICS_FILE) if "time/update" in line]
    if len(lines) <= args.skip:
        raise ValueError(f"{run} has {len(lines)} updates, of which --skip leaves none")
    phases, device = mean_phases(lines[args.skip :]), default_device()
    total = sum(phase["seconds"] for phase in phases.values())
    folder = checkpoint.latest(run)
    (weights, head), limits = count_weights(folder) if folder else (0, 0), measure_limits(device)
    is_rounded = folder and checkpoint.read_extra(folder).get("dtype") == "bfloat16"
    phases["decode"]["bytes"] = phases["decode"]["steps"] * ((2 if is_rounded else 4) * weights + 4 * head)
    for name, phase in phases.items():
        operations = PHASES[name][3] * weights * phase["processed"] if name in PHASES else 0.0
        phase |= {"share": phase["seconds"] / total, "flops": operations / (phase["seconds"] or float("inf"))}
    console = Console()
    console.print(phase_table(phases, limits, str(run)))
    console.print(
        f"{len(lines) - args.skip} updates; {weights:,} weights in the layers; matrix products reach "
        f"{limits['flops'] / 1e9:,.0f} GFLOP/s here in float32, copies {limits['bytes'] / 1e9:,.1f} GB/s ({device}, "
        f"{torch.get_num_threads()} threads). Attention and the head are not among the operations."
    )
    result = {"run": str(run), "weights": weights, "limits": limits, "phases": phases}
    print(json.dumps(result))
    return result


def phase_table(phases: Mapping[str, Mapping[str, float]], limits: Mapping[str, float], title: str) -> Table:
    """One row for each phase, the longest first, with its share of what the machine reaches."""
    table = Table("phase", "s / update", "share", "tokens / s", "processed / tokens", "GFLOP/s", "GB/s", title=title)
    for name, phase in sorted(phases.items(), key=lambda item: -item[1]["seconds"]):
        seconds = phase["seconds"] or float("inf")
        moved = phase.get("bytes", 0.0) / seconds
        table.add_row(
            name, f"{phase['seconds']:.3f}", f"{phase['share']:.0%}",
            f"{phase['tokens'] / seconds:,.0f}" if phase["tokens"] else "",
            f"{phase['processed'] / phase['tokens']:.2f}" if phase["tokens"] else "",
            f"{phase['flops'] / 1e9:.2f} ({phase['flops'] / limits['flops']:.0%})" if phase["flops"] else "",
            f"{moved / 1e9:.2f} ({moved / limits['bytes']:.0%})" if moved else "",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    main(ARGS)
