"""SFT: supervised fine-tuning on demonstrations, top to bottom. It teaches a pretrained model its first tool calls.

Each gradient step minimises, over the taught tokens of some episodes,

    L = − Σ log π(token) / (taught tokens of the step)

Only the assistant's own tokens are taught. Instructions, questions and tool output are context, as in RL. Demonstrations:

- a task's scripts (--script oracle) on the training questions; unsolved episodes are dropped;
- files of messages (--messages FILE.jsonl) in OpenAI's format, with tool calls, or in TRL's;
- the policy itself (--sample N): the best of N rollouts of each question (rejection sampling), with their sampled token ids;
- an earlier run (--episodes RUN).

The loss on held-out questions decides when to stop (--patience) and which weights are kept in best. A step holds episodes of
about the same length. The learning rate warms up and decays, over the updates or --max-seconds.

    python -m trainers.sft --script oracle --model PATH_OR_ID --dtype bfloat16 --env AgentR1/HotpotQA-v0
    python -m trainers.grpo --model runs/sft-…/best                     # and every other trainer, and evaluate
    torchrun --standalone --nproc-per-node 8 -m trainers.sft …          # several GPUs, with the steps of one process
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from trainers import inputs
from trainers.cli import parse
from trainers.config import (
    Checks,
    Count,
    EnvironmentArgs,
    ModelArgs,
    Natural,
    NotNegative,
    OutputArgs,
    Positive,
    Range,
    Share,
    option,
)
from trainers.runtime.errors import UserError


@dataclass(kw_only=True)
class DemonstrationArgs:
    """Demonstrations."""

    script: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A script of the task that demonstrates on training questions, such as scripted; may be repeated. Default: oracle, if no
    other source is given."""
    messages: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A JSONL file of conversations: "messages" in OpenAI's format, or "prompt" and "completion" as in TRL."""
    tool_calls: Literal["environment", "template"] = option("environment", advanced=True)
    """Syntax of tool calls in --messages: the environment's format, or the tokenizer's chat template."""
    sample: Natural = 0
    """Rollouts of the policy for each question (rejection sampling)."""
    episodes: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Folder of an earlier run of sft, or its demonstrations.jsonl, to use its demonstrations again."""
    demonstrations: Natural = 0
    """Questions for each script and for --sample, drawn by the seed; 0 for all training questions."""
    only_solved: bool = True
    """Keep only episodes with a primary metric of 1."""
    min_reward: float | None = option(None, advanced=True)
    """Keep only episodes with at least this return."""
    keep: Natural = option(1, advanced=True)
    """Episodes of --sample to keep for each question: different ones with the highest returns; 0 keeps all."""
    temperature: Positive = option(1.0, advanced=True)
    """Sampling temperature of --sample."""
    max_new_tokens: Count = 128
    """Longest turn of --sample, in tokens."""
    max_length: Annotated[int, Range(lambda x: x > 1, "at least 2")] = option(4096, advanced=True)
    """Longest demonstration, in tokens; longer ones are left out and counted."""


@dataclass(kw_only=True)
class FittingArgs:
    """Gradient steps."""

    epochs: Positive = 2.0
    """Passes over the demonstrations."""
    updates: Natural = 0
    """Gradient steps, instead of --epochs."""
    max_seconds: NotNegative = 0.0
    """Training time in seconds, without evaluations, instead of --epochs; the learning rate follows the clock."""
    lr: Positive = 1e-4
    """Highest learning rate of AdamW, for all weights; with --lora-rank use 1e-3."""
    schedule: Literal["linear", "cosine", "constant"] = option("linear", advanced=True)
    """Decay of the learning rate to 0 after its warm-up."""
    warmup: Share = option(0.05, advanced=True)
    """Share of the training in which the learning rate rises from 0."""
    tokens_per_update: Count = 2500
    """Tokens of a gradient step, padding included: about four episodes of two searches."""
    max_tokens_per_micro_batch: Count = option(8192, mutable_on_resume=True)
    """Tokens in one forward and backward pass, padding included (gradient accumulation): changes memory, not results."""
    max_grad_norm: Positive = option(1.0, config_only=True)
    """Largest norm of the gradient; longer ones are scaled down."""
    held_out: Share = 0.05
    """Share of the questions held out to measure the loss, at most 100 questions; 0 for none."""
    eval_every: Count = 25
    """Gradient steps between measurements of the held-out loss."""
    patience: Natural = 4
    """Measurements without a new lowest held-out loss before the run stops; 0 never stops early."""


@dataclass(kw_only=True)
class Args(OutputArgs, FittingArgs, DemonstrationArgs, ModelArgs, EnvironmentArgs, Checks):
    """Fine-tune on demonstrations of scripts, files or the policy itself."""

    def __post_init__(self):
        super().__post_init__()
        self.check_model()
        self.check_thinking(self.max_new_tokens if self.sample else None)
        if self.updates and self.max_seconds:
            raise UserError("updates and max_seconds both say how long to train: give one")

    def check_inputs(self) -> None:
        """Check the files, folders, model and environment that the arguments name."""
        if not self.resume:  # a resumed run has its demonstrations in its folder, and its arguments were checked
            self._check_idle()
            for file in self.messages:
                if not Path(file).is_file():
                    raise UserError(f"there is no file of messages {file}")
            for run in map(Path, self.episodes):
                if not run.is_file() and not (run / inputs.DEMONSTRATIONS_FILE).is_file():
                    raise UserError(
                        f"{run} is not the folder of a run of sft: there is no {inputs.DEMONSTRATIONS_FILE}"
                    )
        inputs.check_run(self.out, self.resume, self.report_to, self.push_to_hub)
        inputs.check_training(self)
        inputs.check_environment(self.env, self.env_kwargs, "train")

    def _check_idle(self) -> None:
        """Raise a UserError if an option of the command line makes no difference."""
        self.check_unused(not (self.updates or self.max_seconds), "with updates or max_seconds", "epochs")
        self.check_unused(self.held_out, "where nothing is held out", "patience")
        acts = self.script or self.sample or not (self.messages or self.episodes)
        self.check_unused(acts, "without script or sample", "demonstrations")
        self.check_unused(acts or self.episodes, "to files of messages", "only_solved", "min_reward")
        self.check_unused(self.messages, "without messages", "tool_calls")
        self.check_unused(self.sample, "without sample", "keep", "temperature", "max_new_tokens")


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "sft")  # before torch is imported, so that --help and errors appear at once

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from trainers.algorithms.losses import aggregate
from trainers.checkpoints import card
from trainers.checkpoints.settings import list_changed, settings
from trainers.episodes.report import page, tables
from trainers.factory import make_envs
from trainers.grpo import make_optimizer
from trainers.imitation.demonstrations import (
    FILE,
    Demonstration,
    choose_scripts,
    collect,
    hold_out,
    read_demonstrations,
    split_by_length,
    target_spans,
    write_demonstrations,
)
from trainers.lifecycle.run import Run, open_run_dir
from trainers.models.fsdp import ShardedPolicy, clip_gradients
from trainers.models.lora import trainable_parameters
from trainers.models.micro_batches import compute_logprobs, micro_batches
from trainers.models.policy import Policy
from trainers.rollouts.formats import choose_format
from trainers.runtime import distributed, signals
from trainers.runtime.integrity import BEST
from trainers.runtime.progress import Progress
from trainers.runtime.provenance import describe_process
from trainers.tiny.cold_start import start_policy
from trainers.trajectory import BatchRow, collate_rows


def update(args: Args, policy: Policy, optimizer: torch.optim.Optimizer, episodes: list[BatchRow]) -> dict[str, float]:
    """Take one gradient step on the taught tokens of some episodes; returns metrics."""
    batch = collate_rows(episodes, list(range(len(episodes))), policy.pad_id).to(policy.device)
    tokens = int(batch.mask.sum())  # of the whole step, so that any split into micro-batches gives the same gradient
    optimizer.zero_grad()
    total = 0.0
    rows, max_tokens = torch.arange(len(episodes)).to(policy.device), args.max_tokens_per_micro_batch
    for part, scale in micro_batches(batch, rows, max_tokens, policy.token_cost):
        logprobs, _ = policy.logprobs(part)
        loss = aggregate(-logprobs, part.mask, tokens)  # the mask is applied here
        (loss * scale).backward()  # the scale is 1 except with several processes; 0 if a part does not count
        total += loss.item() if scale else 0.0
    total = distributed.all_reduce_sums({"loss": total})["loss"]
    norm = clip_gradients(trainable_parameters(policy.model), args.max_grad_norm)
    if norm.isfinite():  # a gradient that is not finite would destroy the weights
        optimizer.step()
    sizes = {"tokens/action": float(tokens), "tokens/all": float(sum(len(s.ids) for s in episodes))}
    return {"train/loss": total, "policy/grad_norm": float(norm), **sizes}


def batches(args: Args, episodes: list[BatchRow]) -> Iterator[list[BatchRow]]:
    """Yield the episodes of one gradient step after the other, without end."""
    for epoch in itertools.count():
        rng = random.Random(f"sft:{args.seed}:{epoch}")
        parts = split_by_length(rng.sample(episodes, len(episodes)), args.tokens_per_update)
        rng.shuffle(parts)
        yield from parts


class HeldOutLoss:
    """The loss on held-out demonstrations, to choose the best weights and when to stop (`trainers.lifecycle.run.Evaluation`)."""

    key, sign, at_end = "eval/loss", -1, True

    def __init__(self, args: Args, policy: Policy, episodes: list[BatchRow]):
        self.args, self.policy, self.episodes = args, policy, episodes
        self.losses: dict[int, float] = {}  # by the number of updates, in nats per taught token

    def evaluate(self, done: int) -> dict[str, float]:
        """Compute the mean negative log-probability of the taught tokens; empty if no demonstration is held out."""
        if not self.episodes:
            return {}
        batch = collate_rows(self.episodes, list(range(len(self.episodes))), self.policy.pad_id)
        batch = batch.to(self.policy.device)
        total = compute_logprobs(self.policy, batch, 1.0, self.args.max_tokens_per_micro_batch).sum()
        return {self.key: -float(total / batch.mask.sum())}

    def observe(self, done: int, metrics: Mapping[str, float | None], progress: Progress | None) -> bool:
        """Record the loss; return whether none of the last ``patience`` losses was the lowest so far."""
        if (loss := metrics.get(self.key)) is None:
            return False
        self.losses[done] = loss
        values, patience = list(self.losses.values()), self.args.patience
        return 0 < patience < len(values) and min(values[-patience:]) > min(values)

    def prepare_save(self) -> None:
        """Do nothing: no work is pending between updates."""

    def describe(self) -> dict[str, Any]:
        """Return entries of the summary, also for the page of an unfinished run."""
        args = self.args
        return {
            "algorithm": "sft", "env": args.env, "seed": args.seed, "settings": settings(args),
            "changed": list_changed(args), **describe_process(),
        }  # fmt: skip


def fit(args: Args, sampler: Policy, demonstrations: list[Demonstration], folder: Path) -> dict[str, Any]:
    """Train a policy on demonstrations; with ``args.resume``, from the latest checkpoint of the folder. Returns the summary. Its
    ``checkpoint`` has the weights of the lowest ``heldout_loss``, or the last weights if nothing is held out."""
    learned, held_out = hold_out(demonstrations, args.held_out, args.seed)
    taught, tested = [s for one in learned for s in one.rows], [s for one in held_out for s in one.rows]
    longest = max(end - begin for one in demonstrations for s in one.rows for begin, end in target_spans(s.mask))
    updates = math.inf if args.max_seconds else args.updates
    updates = updates or math.ceil(args.epochs * len(split_by_length(taught, args.tokens_per_update)))
    policy: Policy = ShardedPolicy(sampler) if distributed.world_size() > 1 else sampler
    optimizer = make_optimizer(policy, [{"params": trainable_parameters(policy.model), "lr": args.lr}])
    evaluation = HeldOutLoss(args, policy, tested)
    with Run(
        args, "supervised fine-tuning", folder, policy, optimizer, evaluation, updates=updates, sampler=sampler,
        extra={"longest_turn": longest},
    ) as run:  # fmt: skip
        for step, episodes in zip(run.steps(), itertools.islice(batches(args, taught), run.first, None), strict=False):
            step.log(update(args, policy, optimizer, episodes))
            step.figures = {"train loss": step.metrics["train/loss"]}
        losses = evaluation.losses
        loss = run.best if losses else None
        if loss is None:  # nothing is held out
            run.save_best(run.done, None)
    if loss is not None and loss >= losses.get(0, math.inf) and not distributed.rank():
        rose = f"from {losses[0]:.3f} to {loss:.3f} at best"
        print(f"Warning: the held-out loss rose, {rose}: nothing was learned. Try a lower --lr", file=sys.stderr)
    return evaluation.describe() | {
        "folder": str(folder), "checkpoint": str(folder / BEST), "seconds": run.seconds, "updates": run.done,
        "heldout_loss": loss, "heldout_loss_before": losses.get(0),
        "episodes": len(learned), "episodes_held_out": len(held_out),
        "tokens_taught": sum(sum(s.mask) for s in taught),
    }  # fmt: skip


def train(args: Args, folder: Path) -> dict[str, Any]:
    """Collect the demonstrations and train on them, in the folder of the run; returns the summary."""
    envs = make_envs(args.env, args.env_kwargs, "train", 64)
    choose_scripts(args, envs)  # an error appears before the model is loaded or trained
    policy, _ = start_policy(args, envs, folder)
    choose_format(policy, args.model, args.env_kwargs, envs)
    if args.resume:
        demonstrations = read_demonstrations(folder, policy)
    else:
        demonstrations = collect(args, policy, envs)
        if not distributed.rank():
            folder.mkdir(parents=True, exist_ok=True)
            write_demonstrations(folder / FILE, demonstrations, policy)
    with signals.deferring():  # a signal ends the run after the current update, or at the end once all is written
        summary = fit(args, policy, demonstrations, folder)
        if not distributed.rank():
            tables.write_summary(folder, summary)
            page.write_beside(folder)
            card.write_cards(folder)
            if args.push_to_hub:
                card.push(folder / BEST, args.push_to_hub)
        distributed.broadcast(None)  # all wait for these files: torchrun ends the others once one has ended
    print(json.dumps({name: value for name, value in summary.items() if name != "settings"}, indent=2))
    print(f"Everything is in {folder}: {BEST}, report.html, summary.json, metrics.jsonl, {FILE}.", file=sys.stderr)
    return summary


def main(args: Args) -> dict[str, Any]:
    """Run the command; returns the summary, which the folder of the run holds as summary.json."""
    with open_run_dir(args, "sft") as folder:
        if args.resume and (folder / tables.SUMMARY_FILE).exists():
            raise UserError(f"{folder} is finished: to train its weights further, give them as model, and an --out")
        return train(args, folder)


if __name__ == "__main__":
    main(ARGS)
