"""SFT: supervised fine-tuning on demonstrations, top to bottom. What takes a pretrained model to its first tool call.

Each gradient step minimises, over the taught tokens of some episodes,

    L = − Σ log π(token) / (taught tokens of the step)

Taught are the assistant's own tokens: what a script wrote, what a file of messages holds as the assistant's, or what the
policy itself sampled. Instructions, questions and what tools returned are context, as in reinforcement learning. Demonstrations
come from

- a task's scripts (--script oracle), which play the training questions; those that were not solved are dropped;
- files of messages (--messages FILE.jsonl) in OpenAI's format, with tool calls, or in TRL's;
- the policy itself (--sample N): the best of N attempts at each question (rejection sampling, or best-of-N), id by id;
- an earlier run (--episodes RUN).

A share of the questions is held out. The loss on them says when to stop (--patience), and which weights are kept. Steps hold
episodes of about the same length; the learning rate warms up and decays, over the updates or, with --max-seconds, over time.

    python -m trainers.sft --script oracle --model PATH_OR_ID --dtype bfloat16 --env AgentR1/HotpotQA-v0
    python -m trainers.grpo --model runs/sft-…/best                     # and every other trainer, and evaluate
    torchrun --standalone --nproc-per-node 8 -m trainers.sft …          # several GPUs, with the steps of one process
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

if __name__ == "__main__" and not __package__:  # run as a file: the packages lie beside its folder
    sys.path[:1] = [str(Path(__file__).resolve().parents[1]), str(Path.cwd())]

import tyro

from trainers import inputs
from trainers.cli import parse
from trainers.config import Checks, EnvironmentArgs, ModelArgs, OutputArgs


@dataclass(kw_only=True)
class DemonstrationArgs:
    """What is imitated."""

    GROUP: ClassVar = "demonstrations"
    script: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A script of the task, such as oracle or scripted, that plays the training questions. Repeat the option to imitate
    several. Where nothing else is imitated either, oracle."""
    messages: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A JSONL file of conversations: "messages" in OpenAI's format, or "prompt" and "completion" as in TRL."""
    tool_calls: Literal["environment", "template"] = "environment"
    """How the tool calls in --messages are written: in the format of the environment, or by the tokenizer's template."""
    sample: int = 0
    """Attempts of the policy itself at each question (rejection sampling)."""
    episodes: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """The folder of an earlier run: what was played there, and all that it held."""
    demonstrations: int = 0
    """Questions for each script and for --sample, drawn by the seed; 0 plays each question of the training split once."""
    only_solved: bool = True
    """Imitate only episodes whose primary metric is 1."""
    min_reward: float | None = None
    """Imitate only episodes that were paid at least this in all."""
    keep: int = 1
    """With --sample, the episodes kept of each question: those with the highest returns, no two alike. 0 keeps all."""
    temperature: float = 1.0
    """Of --sample."""
    max_new_tokens: int = 128
    """Longest turn of --sample, in tokens."""
    max_length: int = 4096
    """Longer episodes are left out, and counted; in tokens."""


@dataclass(kw_only=True)
class FittingArgs:
    """Gradient steps."""

    GROUP: ClassVar = "optimisation"
    epochs: float = 2.0
    """Passes over the demonstrations."""
    updates: int = 0
    """Gradient steps, in place of --epochs."""
    max_seconds: float = 0.0
    """Train for so many seconds, evaluations included, in place of --epochs; the learning rate follows the clock."""
    lr: float = 1e-4
    """Learning rate of AdamW at its highest. For all weights of a model; with --lora-rank ten times as much."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the learning rate falls to zero after its warm-up."""
    warmup: float = 0.05
    """Share of the training in which it rises from zero."""
    tokens_per_update: int = 2500
    """Tokens of a gradient step, padding included: about four episodes of two searches."""
    max_tokens_per_micro_batch: int = 8192
    """Tokens (padding included) in one forward and backward pass: memory, not results, depends on it."""
    max_grad_norm: float = 1.0
    """Gradient clipping."""


@dataclass(kw_only=True)
class HeldOutArgs:
    """Held-out demonstrations."""

    GROUP: ClassVar = "evaluation"
    held_out: float = 0.05
    """Share of the questions whose demonstrations are held out, to measure the loss on; 0 turns that off."""
    eval_every: int = 25
    """Gradient steps between two measurements."""
    patience: int = 4
    """Stop after so many measurements without a new lowest; 0 never stops early."""


@dataclass(kw_only=True)
class Args(OutputArgs, HeldOutArgs, FittingArgs, DemonstrationArgs, ModelArgs, EnvironmentArgs, Checks):
    """Teach a policy by imitation: demonstrations of scripts, of files of messages, or its own best episodes."""

    # Unlike in reinforcement learning: the schedule depends on the first three, and what is learned from on the last.
    FIXED: ClassVar = {"updates", "max_seconds", "eval_every", "keep"}

    def __post_init__(self):
        super().__post_init__()
        self.check_least(seed=0, save_every=1, eval_every=1, patience=0, updates=0, max_seconds=0, demonstrations=0)
        self.check_least(sample=0, keep=0, max_new_tokens=1, max_length=2, tokens_per_update=1)
        self.check_least(save_every_minutes=0, tool_outage_minutes=0)
        self.check_least(max_tokens_per_micro_batch=1)
        self.check_positive("lr", "epochs", "temperature", "max_grad_norm")
        self.check_share("warmup", "held_out")
        self.check_model()
        self.check_choices()
        if self.updates and self.max_seconds:
            raise ValueError("updates and max_seconds both say how long to train: give one")

    def check_inputs(self) -> None:
        if not self.resume:  # which brings the arguments of its run, and those of a comparison's were never typed
            self._check_idle()
        inputs.check_run(self.out, self.resume, self.log, self.push_to_hub)
        for file in self.messages if not self.resume else ():  # a run that goes on has what it imitates in its folder
            if not Path(file).is_file():
                raise ValueError(f"there is no file of messages {file}")
        for run in self.episodes if not self.resume else ():
            inputs.check_demonstrations(Path(run))
        inputs.check_training(self.model, self.base_model, self.lora_rank)
        inputs.check_environment(self.env, self.env_kwargs, "train")

    def _check_idle(self) -> None:
        """Raise a ValueError where an option of the command line makes no difference."""
        self.check_unused(not (self.updates or self.max_seconds), "with updates or max_seconds", "epochs")
        self.check_unused(self.held_out, "where nothing is held out", "patience")
        plays = self.script or self.sample or not (self.messages or self.episodes)
        self.check_unused(plays, "where nothing is played", "demonstrations")
        self.check_unused(plays or self.episodes, "to files of messages", "only_solved", "min_reward")
        self.check_unused(self.messages, "without messages", "tool_calls")
        self.check_unused(self.sample, "without sample", "keep", "temperature", "max_new_tokens")
        inputs.check_idle(self)


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "sft")  # before torch is imported: --help and mistakes answer at once

import itertools
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from trainers.algorithms.losses import aggregate
from trainers.algorithms.schedules import learning_rate_factor
from trainers.checkpoints import card, checkpoint, run_dir
from trainers.checkpoints.settings import settings
from trainers.episodes.report import page as html_report
from trainers.episodes.report import tables as report
from trainers.factory import make_envs
from trainers.grpo import make_optimizer
from trainers.imitation.demonstrations import (
    FILE,
    Demonstration,
    choose_scripts,
    collect,
    hold_out,
    read_demonstrations,
    taught_spans,
    write_demonstrations,
)
from trainers.loop.logger import Logger
from trainers.loop.metrics import find_not_finite
from trainers.models.fsdp import ShardedPolicy, clip_gradients
from trainers.models.lora import trainable_parameters
from trainers.models.micro_batches import compute_logprobs, micro_batches
from trainers.models.policy import Policy
from trainers.runtime import distributed, signals
from trainers.runtime.errors import UserError
from trainers.runtime.progress import METRICS_FILE, Progress, read_metrics
from trainers.tiny.cold_start import start_run
from trainers.tiny.curriculum import split_by_length
from trainers.trajectory import Sequence, collate_sequences

BEST = "best"  # the folder in that of a run with the weights of the lowest held-out loss, or the last
EVAL_LOSS = "eval/loss"


def update(args: Args, policy: Policy, optimizer: torch.optim.Optimizer, episodes: list[Sequence]) -> dict[str, float]:
    """One gradient step on the taught tokens of some episodes; returns metrics."""
    batch = collate_sequences(episodes, list(range(len(episodes))), policy.pad_id).to(policy.device)
    tokens = int(batch.mask.sum())  # of the whole step, so that any split into micro-batches gives one gradient
    optimizer.zero_grad()
    total = 0.0
    rows, max_tokens = torch.arange(len(episodes)).to(policy.device), args.max_tokens_per_micro_batch
    for part, scale in micro_batches(batch, rows, max_tokens, policy.token_cost):
        logprobs, _ = policy.logprobs(part)
        loss = aggregate(-logprobs, part.mask, tokens)  # the mask is applied here
        (loss * scale).backward()  # the scale is 1 but with several processes; 0 where a part counts for nothing
        total += loss.item() if scale else 0.0
    total = distributed.all_reduce_sums({"loss": total})["loss"]
    norm = clip_gradients(trainable_parameters(policy.model), args.max_grad_norm)
    if norm.isfinite():  # a gradient that is not would destroy the weights
        optimizer.step()
    return {
        "train/loss": total, "policy/grad_norm": float(norm), "policy/lr": optimizer.param_groups[0]["lr"],
        "tokens/action": float(tokens), "tokens/all": float(sum(len(s.ids) for s in episodes)),
    }  # fmt: skip


def measure_loss(policy: Policy, episodes: list[Sequence], max_tokens: int) -> float:
    """Mean negative log-probability of the taught tokens, in nats."""
    batch = collate_sequences(episodes, list(range(len(episodes))), policy.pad_id).to(policy.device)
    return -float(compute_logprobs(policy, batch, 1.0, max_tokens).sum() / batch.mask.sum())


def batches(args: Args, episodes: list[Sequence]) -> Iterator[list[Sequence]]:
    """The episodes of one gradient step after the other, without end. Every pass has as many of them, in an order that the
    seed and its number give."""
    for epoch in itertools.count():
        rng = random.Random(f"sft:{args.seed}:{epoch}")
        parts = split_by_length(rng.sample(episodes, len(episodes)), args.tokens_per_update)
        rng.shuffle(parts)
        yield from parts


def fit(
    args: Args, policy: Policy, demonstrations: list[Demonstration], run: Path, title: str = "supervised fine-tuning"
) -> dict:
    """Train a policy on demonstrations, in the folder ``run``; with ``args.resume``, from its latest checkpoint on.

    Returns:
        ``checkpoint``, the folder with the weights that the policy is left with: those of the lowest held-out loss, or
        the last; that ``heldout_loss``, None where nothing was held out; and what the training took.
    """
    learned, held_out = hold_out(demonstrations, args.held_out, args.seed)
    taught, tested = [s for one in learned for s in one.sequences], [s for one in held_out for s in one.sequences]
    longest = max(end - begin for one in demonstrations for s in one.sequences for begin, end in taught_spans(s.mask))
    updates = args.updates or math.ceil(args.epochs * len(split_by_length(taught, args.tokens_per_update)))
    trained = ShardedPolicy(policy) if distributed.world_size() > 1 else policy
    optimizer = make_optimizer(trained, [{"params": trainable_parameters(trained.model), "lr": args.lr}])
    if isinstance(trained, ShardedPolicy):
        trained.shard([optimizer], [])
    first = run_dir.resume(run, policy, [optimizer], {}) if args.resume else 0
    if isinstance(trained, ShardedPolicy):
        trained.read_weights(policy)
    sinks = () if distributed.rank() else args.log
    total, unit = (args.max_seconds, "s") if args.max_seconds else (float(updates), "updates")
    with (
        distributed.choose_metrics_folder(run) as metrics_folder,
        Logger(metrics_folder, sinks, asdict(args), first + 1 if first else 0) as logger,
        Progress(total, unit, title, logger.seconds_before if args.max_seconds else float(first)) as progress,
    ):
        schedule = signals.SaveSchedule(args.save_every, args.save_every_minutes)
        before = distributed.broadcast(read_metrics(metrics_folder / METRICS_FILE))  # of a run that is resumed
        losses = {line["step"]: line[EVAL_LOSS] for line in before if EVAL_LOSS in line}
        begin = time.monotonic() - (before[-1]["seconds"] if before else 0.0)
        if tested and not first:
            losses[0] = measure_loss(trained, tested, args.max_tokens_per_micro_batch)
            logger.log(0, {EVAL_LOSS: losses[0]})
        # Of an earlier run in this folder nothing counts.
        best, best_step = distributed.broadcast(read_best(run) if first else (math.inf, 0))
        for step, episodes in enumerate(itertools.islice(batches(args, taught), first, None), first + 1):
            started = time.monotonic()
            done = distributed.broadcast(started - begin) / total if args.max_seconds else (step - 0.5) / updates
            optimizer.param_groups[0]["lr"] = args.lr * learning_rate_factor(args.schedule, args.warmup, done)
            metrics = update(args, trained, optimizer, episodes)
            if isinstance(trained, ShardedPolicy):
                trained.write_weights(policy)
            if wrong := find_not_finite(metrics, {"the policy": policy.model}):
                logger.log(step, metrics)
                raise signals.TrainingStopped(f"{wrong} after update {step}, which is not saved: try a lower --lr")
            metrics["tokens/per_second"] = metrics["tokens/all"] / (time.monotonic() - started)
            spent = distributed.broadcast(time.monotonic() - begin)  # all processes stop, or none
            last = spent >= args.max_seconds if args.max_seconds else step >= updates
            if tested and (last or step % args.eval_every == 0):
                losses[step] = metrics[EVAL_LOSS] = measure_loss(trained, tested, args.max_tokens_per_micro_batch)
                last = last or is_over(losses, args.patience)
                if not last and losses[step] < best:
                    best, best_step = losses[step], step
                    save(run / BEST, policy, [], step, args, longest_turn=longest, best={"update": step, "loss": best})
            logger.log(step, metrics)
            figures = {"train loss": metrics["train/loss"], "tokens_per_s": metrics["tokens/per_second"]}
            figures |= {"held-out loss": losses[step]} if step in losses else {}
            progress.update(spent if args.max_seconds else step, **figures)
            if last:
                break
            signal = max(distributed.all_gather([signals.received()]))
            if distributed.broadcast(schedule.is_due(step)) or signal:
                path = save(run / f"checkpoint-{step}", policy, [optimizer], step, args)
            if signal:
                signals.exit_by_signal(signal, f"{path} is saved; --resume {run} goes on from there.")
    loss = losses.get(step)  # None where nothing is held out
    if loss is not None and best_step and best <= loss:
        loss = best
        run_dir.load_weights(policy, run / BEST)
    else:
        save(run / BEST, policy, [], step, args, longest_turn=longest, best={"update": step, "loss": loss})
    warn_if_worse(losses.get(0), loss)
    return {
        "checkpoint": str(run / BEST), "seconds": time.monotonic() - begin, "updates": step,
        "heldout_loss": loss, "heldout_loss_before": losses.get(0),
        "episodes": len(learned), "episodes_held_out": len(held_out),
        "tokens_taught": sum(sum(s.mask) for s in taught),
    }  # fmt: skip


def warn_if_worse(before: float | None, loss: float | None) -> None:
    """Say that the lowest held-out loss, where there is one, is above that before the first step."""
    if before is not None and loss is not None and loss >= before and not distributed.rank():
        rose = f"from {before:.3f} to {loss:.3f} at best"
        print(f"Warning: the held-out loss rose, {rose}: nothing was learned. Try a lower --lr", file=sys.stderr)


def read_best(run: Path) -> tuple[float, int]:
    """The lowest held-out loss after the first step, and the step whose weights had it, which `BEST` holds; infinity and 0 where
    there is none. A run that is resumed may have saved them after the checkpoint from which it goes on."""
    try:
        kept = checkpoint.read_extra(run / BEST).get("best") or {}
    except (FileNotFoundError, checkpoint.CheckpointDamaged):
        kept = {}
    return (kept["loss"], kept["update"]) if kept.get("loss") is not None else (math.inf, 0)


def is_over(losses: dict[int, float], patience: int) -> bool:
    """Whether none of the last ``patience`` losses was the lowest so far. Keys are in order."""
    values = list(losses.values())
    return 0 < patience < len(values) and min(values[-patience:]) > min(values)


def save(
    path: Path, policy: Policy, optimizers: list[torch.optim.Optimizer], step: int, args: Args, **more: Any
) -> Path:  # fmt: skip
    """Write a checkpoint that every trainer takes as its --model. ``more`` is kept beside the settings."""
    return checkpoint.save(
        path, model=policy.model, tokenizer=policy.tokenizer, optimizers=optimizers, step=step,
        extra=settings(args) | more, texts=run_dir.describe(path, policy, args),
    )  # fmt: skip


def main(args: Args) -> dict:
    """Run the command; returns the summary, which the folder of the run holds as summary.json."""
    inputs.check_sinks(args.log)
    with distributed.join_processes(), signals.handle_signals(), run_dir.claim_folder(args, "sft") as run:
        if args.resume and (run / "summary.json").exists():
            raise UserError(
                f"{run} is finished: to train its checkpoint further, give that as model, and another --out"
            )
        return train(args, run)


def train(args: Args, run: Path) -> dict:
    """Collect what is imitated and train on it, in the folder ``run``; returns the summary."""
    torch.manual_seed(args.seed)
    envs = make_envs(args.env, args.env_kwargs, "train", 64)
    choose_scripts(args, envs)  # a mistake is said before the model is loaded, or taught
    with distributed.first_before_others():
        policy, _ = start_run(args, envs, run)
    distributed.broadcast_weights(policy.model)
    distributed.reseed(args.seed)
    if args.resume:
        demonstrations = read_demonstrations(run, policy)
    else:
        demonstrations = collect(args, policy, envs)
        if not distributed.rank():
            run.mkdir(parents=True, exist_ok=True)
            write_demonstrations(run / FILE, demonstrations, policy)
    with signals.deferring():  # a signal ends it after the update in hand, and after the last one when all is written
        summary = fit(args, policy, demonstrations, run) | {
            "algorithm": "sft", "env": args.env, "seed": args.seed, "folder": str(run), "settings": settings(args),
            "command": html_report.typed_command(),
        }  # fmt: skip
        if not distributed.rank():
            report.write_summary(run, summary)
            html_report.write_beside(run)
            card.write_cards(run)
            if args.push_to_hub:
                card.push(run / BEST, args.push_to_hub)
    print(json.dumps({name: value for name, value in summary.items() if name != "settings"}, indent=2))
    return summary


if __name__ == "__main__":
    main(ARGS)
