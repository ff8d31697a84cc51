"""Where the time of a run goes, and how near that is to what the machine can do.

    python -m trainers.profile runs/grpo-MiniWiki-v0-0
    python -m trainers.profile                            # the run that was written to last
    python -m trainers.profile --model PATH_OR_ID --dtype bfloat16 --lora-rank 16      # without a run

Of each phase: seconds an update, its share, the conversations' tokens, and the tokens that were *processed*, which means that
they went through the model: fewer where conversations share their beginnings or have no advantage, more by padding. Then what
these passes are in floating-point operations of the policy's layers, 2 for each weight and token forward and 6 with the
gradient (4 with an adapter: frozen weights have none), beside what a matrix product reaches on this machine now. Attention, the
head, a critic and a reference are not among them; passes without a gradient count as if they had one. Each step of decoding reads
all weights once, with the head: that is its bandwidth, beside that of a large copy; keys and values are not in it.

With ``--model`` phases are measured now, on ids drawn at random: the prefill of ``--rows`` prompts, 32 tokens decoded behind
each, and a gradient of as many conversations, in groups of 8 that have their first 300 tokens in common and 50 tokens of the
policy each. Peak memory is that of the whole process, loading included.

Run it on a run where that was made, with as many threads, and nothing beside it. With ``--one-step-off-policy`` phases overlap.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

if not __package__:  # run as a file: the packages lie beside its folder
    sys.path[:1] = [str(Path(__file__).resolve().parents[1]), str(Path.cwd())]

import tyro

from trainers import inputs
from trainers.cli import parse
from trainers.config import Checks
from trainers.runtime.progress import METRICS_FILE, read_metrics

NEW_TOKENS = 32  # that are decoded with --model


@dataclass(kw_only=True)
class Args(Checks):
    """Print where the time of a run goes."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Folder of a run; by default the one under runs/ that was written to last."""
    skip: int = 1
    """Updates to leave out at the beginning, where buffers grow and kernels are chosen."""
    model: str | None = None
    """A model to measure in place of a run: a folder or a hub id."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What its layers run in."""
    lora_rank: int = 0
    """Rank of an adapter to train in place of all of its weights; 0 for none."""
    rows: int = 16
    """Conversations that are sampled and learned from."""
    tokens: int = 540
    """Tokens of a conversation."""
    max_tokens_per_micro_batch: int = 8192
    """Tokens in one forward and backward pass."""

    def __post_init__(self):
        super().__post_init__()
        self.check_choices()
        if self.model is not None and self.run is not None:
            raise ValueError("give a run or --model, not both")
        self.check_least(skip=0)
        measured = "dtype", "lora_rank", "rows", "tokens", "max_tokens_per_micro_batch"
        self.check_unused(self.model, "without model", *measured)
        self.check_unused(self.model is None, "with model", "skip")
        if self.rows < 1 or self.tokens < 2 * NEW_TOKENS or self.lora_rank < 0:
            raise ValueError(f"--rows must be at least 1, --tokens at least {2 * NEW_TOKENS}, --lora-rank at least 0")

    def check_inputs(self) -> None:
        if self.model is None:
            read_updates(choose_run(self.run), self.skip)
        else:
            inputs.check_training(self.model, "", self.lora_rank)


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


def read_updates(run: Path, skip: int) -> list[dict]:
    """The metrics of the updates of a run. Raises a ValueError where ``skip`` of them are all."""
    lines = [line for line in read_metrics(run / METRICS_FILE) if "time/update" in line]
    if len(lines) <= skip:
        none = "holds no times of rollouts and updates"
        what = f"has {len(lines)} updates, of which --skip leaves none" if lines else none
        raise ValueError(f"{run} {what}")
    return lines


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "profile")  # before torch is imported: --help and mistakes answer at once

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, PreTrainedConfig

from trainers.checkpoints import checkpoint
from trainers.engines.engine import generate
from trainers.engines.transformers_engine import TransformersEngine
from trainers.models import gguf
from trainers.models.hidden_states import ForwardTokenMeter, has_bfloat16_products
from trainers.models.loading import default_device, load_policy
from trainers.models.lora import find_base_model, trainable_parameters
from trainers.models.micro_batches import micro_batches
from trainers.models.policy import Policy
from trainers.trajectory import Batch, Sequence, collate_sequences

# phase: its seconds, the conversations' tokens, and those that were processed
PHASES = {
    "prefill": ("time/prefill", "tokens/prefill", "tokens/processed_prefill"),
    "decode": ("time/decode", "tokens/decode", "tokens/processed_decode"),
    "tools": ("time/tools", None, None),
    "update": ("time/update", "tokens/all", "tokens/processed_update"),
}


def mean_phases(lines: SequenceOf[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Means over updates: ``seconds``, ``tokens`` and tokens ``processed`` of each phase, and the rest of the rollout as
    ``other``. ``lines``: those of the metrics file."""

    def mean(name: str | None) -> float:
        if name is None:
            return 0.0
        earlier = name.replace("processed_", "fed_")  # what earlier versions called it
        return float(np.mean([line.get(name) or line.get(earlier) or 0.0 for line in lines]))

    found = {
        phase: {"seconds": mean(seconds), "tokens": mean(tokens), "processed": mean(processed)}
        for phase, (seconds, tokens, processed) in PHASES.items()
    }
    parts = sum(found[phase]["seconds"] for phase in ("prefill", "decode", "tools"))
    other = max(0.0, mean("time/rollout") - parts)  # tools may have run beside the decoding
    found["decode"]["steps"] = mean("train/decode_steps")
    return found | {"other": {"seconds": other, "tokens": 0.0, "processed": 0.0}}


def count_weights(folder: Path, base_model: str = "") -> tuple[int, int]:
    """`count_config_weights` of a saved model, or of the base of a saved adapter: ``base_model``, or what it names."""
    return count_config_weights(gguf.read_config(base_model or find_base_model(folder) or folder))


def count_config_weights(config: PreTrainedConfig) -> tuple[int, int]:
    """How many weights multiply each token, all but the embedding, which is looked up, and the head; and how many are in the
    head, which is only for tokens that are sampled."""
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


def make_conversations(count: int, length: int, vocab_size: int, pad_id: int) -> Batch:
    """Rows of ids drawn at random, in groups of 8 that have their first 300 tokens (at most 5/9 of them) in common; of the
    policy are 25 tokens before the middle and the last 25."""
    rng = np.random.default_rng(0)
    shared, sequences = min(300, 5 * length // 9), []
    for row in range(count):
        if row % 8 == 0:
            beginning = rng.integers(vocab_size, size=shared).tolist()
        ids = beginning + rng.integers(vocab_size, size=length - shared).tolist()
        mask = [length // 2 - 25 <= n < length // 2 or n >= length - 25 for n in range(length)]
        sequences.append(Sequence(ids=ids, mask=mask, logprobs=[0.0] * length, rewards=[0.0] * length))
    return collate_sequences(sequences, list(range(count)), pad_id)


def measure_phases(policy: Policy, args: Args) -> dict[str, dict[str, float]]:
    """What `mean_phases` finds in a run, measured now; the better of two repeats, after one that does not count."""
    vocab_size = policy.model.get_input_embeddings().weight.shape[0]
    batch = make_conversations(args.rows, args.tokens, vocab_size, policy.pad_id).to(policy.device)
    engine, prompts = TransformersEngine(policy, ()), dict(enumerate(batch.ids[:, :-NEW_TOKENS].tolist()))
    phases = {}
    first, first_fed = _sample(engine, prompts, 1)
    whole, whole_fed = _sample(engine, prompts, NEW_TOKENS)
    steps, fed = (whole_fed[name] - first_fed[name] for name in ("decode_steps", "decode"))
    read = sum(map(len, prompts.values()))
    phases["prefill"] = {"seconds": first, "tokens": read, "processed": first_fed["prefill"]}
    phases["decode"] = {"seconds": whole - first, "tokens": fed, "processed": fed, "steps": steps}
    engine.reset()

    def learn() -> None:
        for part, _ in micro_batches(
            batch, torch.arange(args.rows), args.max_tokens_per_micro_batch, policy.token_cost
        ):
            policy.logprobs(part)[0].sum().backward()
        for parameter in trainable_parameters(policy.model):
            parameter.grad = None

    _ = policy.tree_attention  # found out by passes that are not to be counted
    meter = ForwardTokenMeter(policy.model.base_model)
    meter.start()
    learn()
    nodes = meter.stop()
    seconds = _fastest(learn, policy.device.type, 2)
    phases["update"] = {"seconds": seconds, "tokens": batch.ids.numel(), "processed": nodes}
    return phases


def _sample(engine: TransformersEngine, prompts: dict[int, list[int]], new: int) -> tuple[float, dict[str, int]]:
    """Seconds, and the tokens that went through the model."""

    def once() -> None:
        engine.reset()
        engine.processed.clear()
        generate(engine, prompts, new, 1.0)

    return _fastest(once, default_device(), 2), dict(engine.processed)


def main(args: Args) -> dict:
    """Print where the time goes, and return the figures, which are the last line of the output as JSON too.

    Raises:
        ValueError: there is no such run or model, or it has too few updates.
    """
    return profile_run(args) if args.model is None else profile_model(args)


def profile_model(args: Args) -> dict:
    """`main` for a model."""
    assert args.model is not None
    policy = load_policy(args.model, dtype=args.dtype, lora_rank=args.lora_rank)
    phases, limits = measure_phases(policy, args), measure_limits(policy.device.type, policy.dtype)
    weights, head = count_config_weights(policy.model.config)
    phases["decode"]["bytes"] = phases["decode"]["steps"] * (policy.dtype.itemsize * weights + 4 * head)
    add_rates(phases, count_operations(weights, args.lora_rank > 0))
    console = Console()
    trained = f"LoRA of rank {args.lora_rank}" if args.lora_rank else "all weights"
    console.print(phase_table(phases, limits, f"{args.model}, {trained}"))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    console.print(
        f"{describe(weights, limits, str(policy.dtype).removeprefix('torch.'))} Peak memory {memory:.1f} GiB."
    )
    result = {"model": args.model, "weights": weights, "limits": limits, "phases": phases, "peak_gib": memory}
    print(json.dumps(result))
    return result


def profile_run(args: Args) -> dict:
    """`main` for a run."""
    run = choose_run(args.run)
    lines = read_updates(run, args.skip)
    phases, device = mean_phases(lines[args.skip :]), default_device()
    folder = checkpoint.latest(run)
    settings = checkpoint.read_extra(folder) if folder else {}
    weights, head = count_weights(folder, settings.get("base_model", "")) if folder else (0, 0)
    limits = measure_limits(device)
    is_rounded = settings.get("dtype") == "bfloat16" and has_bfloat16_products(device)
    phases["decode"]["bytes"] = phases["decode"]["steps"] * ((2 if is_rounded else 4) * weights + 4 * head)
    has_adapter = folder is not None and find_base_model(folder) is not None
    add_rates(phases, count_operations(weights, has_adapter))
    console = Console()
    console.print(phase_table(phases, limits, str(run)))
    console.print(f"{len(lines) - args.skip} updates; {describe(weights, limits, 'float32')}")
    result = {"run": str(run), "weights": weights, "limits": limits, "phases": phases}
    print(json.dumps(result))
    return result


def count_operations(weights: int, has_adapter: bool) -> dict[str, float]:
    """Of each phase, for a token that is processed. With an adapter the frozen weights have no gradient."""
    return {"prefill": 2.0 * weights, "decode": 2.0 * weights, "update": (4.0 if has_adapter else 6.0) * weights}


def add_rates(phases: Mapping[str, dict[str, float]], operations: Mapping[str, float]) -> None:
    """Add each phase's ``share`` and ``flops`` a second; ``operations``: for each token that is processed."""
    total = sum(phase["seconds"] for phase in phases.values())
    for name, phase in phases.items():
        done = operations.get(name, 0.0) * phase["processed"]
        phase |= {"share": phase["seconds"] / total, "flops": done / (phase["seconds"] or float("inf"))}


def describe(weights: int, limits: Mapping[str, float], dtype: str) -> str:
    """What stands below the table."""
    return (
        f"{weights:,} weights in the layers; matrix products reach {limits['flops'] / 1e9:,.0f} GFLOP/s here in {dtype}, "
        f"copies {limits['bytes'] / 1e9:,.1f} GB/s ({default_device()}, {torch.get_num_threads()} threads). Attention and "
        "the head are not among the operations."
    )


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
