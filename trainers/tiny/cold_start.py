"""Make the policy that training starts from: a given model, or the tiny one, made from scratch and trained by SFT.

For MiniWiki with its default arguments, the package ships the tiny policy after its cold start: `SHIPPED`. The README.md there
states how it was made.
"""

import contextlib
import hashlib
import itertools
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import gymnasium
import torch

from agent_envs.data.local import cache_folder
from agent_envs.generators.miniwiki import World, questions, vocabulary
from agent_envs.tasks.qa import QAEnv
from agent_envs.vector import ToolVectorEnv
from trainers.algorithms.losses import aggregate
from trainers.checkpoints import checkpoint
from trainers.checkpoints.lock import check_writable, wait_for
from trainers.config import DEMONSTRATOR, Demonstrator
from trainers.evaluation.evaluator import data_digest
from trainers.models.hidden_states import recompute_activations
from trainers.models.loading import default_device, load_policy
from trainers.models.policy import Policy
from trainers.runtime import distributed, integrity, retry
from trainers.runtime.errors import UserError
from trainers.runtime.progress import Progress
from trainers.runtime.signals import TrainingStopped
from trainers.tiny import curriculum, lessons
from trainers.tiny import model as tiny
from trainers.tiny.curriculum import Teacher
from trainers.tiny.muon import Muon
from trainers.trajectory import BatchRow, collate_rows

START = "start"  # the folder of the cold start, inside the folder of a run
VERSION = 3  # of cold starts: if lessons, model or optimizer change, add 1 and make `SHIPPED` again
_NOT_DECISIVE = {"rewards", "num_envs", "vectorization_mode"}  # demonstrations are imitated regardless of rewards
SHIPPED = Path(__file__).parent / "miniwiki"
Report = Callable[[int, str, float], None]  # called as report(step, lesson, loss) after each gradient step


def start_policy(args: Any, envs: ToolVectorEnv, run: Path | None = None) -> tuple[Policy, float]:
    """Return the policy that training starts from, the same in all processes, and the duration of its cold start in seconds.

    ``run``: the folder of the run, which keeps a copy of the cold start. A resumed run starts from this copy: the cache may have
    lost it, and a cold start on another machine would give other weights.

    Raises:
        TrainingStopped: the loss of the cold start is not finite, or a tool that its demonstrator needs fails for too long.
    """
    with distributed.first_before_others():
        is_kept = run and (args.resume or (distributed.rank() and args.model == "tiny"))  # by the first process
        kept = read(run / START) if run and is_kept else None
        policy, seconds = kept or _make_start(args, envs)
        if run and not kept and args.model == "tiny" and not distributed.rank():
            save(run / START, policy, seconds)
    policy.check_turn_length(args.max_new_tokens)
    distributed.broadcast_weights(policy.model)
    distributed.reseed(args.seed)
    return policy, seconds


def _make_start(args: Any, envs: ToolVectorEnv) -> tuple[Policy, float]:
    if args.model != "tiny":
        if integrity.is_written_here(args.model):
            integrity.verify(args.model)
            thought = checkpoint.read_extra(args.model).get("thinking", "auto")
            if thought != args.thinking and not distributed.rank():
                told = f"Warning: {args.model} was trained with --thinking {thought}, and this run has {args.thinking}"
                print(told, file=sys.stderr)
        policy = load_policy(
            args.model, None, args.dtype, args.lora_rank, args.lora_alpha, args.base_model or None, args.chat_template,
            args.thinking,
        )  # fmt: skip
        if args.gradient_checkpointing:
            recompute_activations(policy.model)
        return policy, 0.0
    demonstrator = args.demonstrator()
    if args.cold_start_steps is None and demonstrator == DEMONSTRATOR and _is_shipped_task(envs):
        print(f"The tiny policy starts from the shipped cold start {SHIPPED}", file=sys.stderr)
        integrity.verify(SHIPPED)
        return load_policy(SHIPPED), 0.0
    _check_demonstrator(envs, demonstrator)
    steps = args.cold_start_steps or curriculum.choose_curriculum(envs).steps
    with Progress(steps, description="cold start") as progress:

        def report(step: int, lesson: str, loss: float) -> None:
            if not math.isfinite(loss):
                raise TrainingStopped(f"the loss of the cold start is {loss} at step {step}: try another --seed")
            progress.update(step, loss=loss)

        return run_cold_start(envs, args.seed, steps, report, demonstrator, args.tool_outage_minutes)


def _is_shipped_task(envs: ToolVectorEnv) -> bool:
    """Whether ``envs`` are MiniWiki with its default arguments, or with other rewards."""
    if envs.spec is None or envs.spec.id != "AgentR1/MiniWiki-v0":
        return False
    return _select_decisive(envs.spec.kwargs) == gymnasium.spec(envs.spec.id).kwargs | {"split": "train"}


def _select_decisive(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Select the arguments of environments that affect a cold start."""
    return {name: value for name, value in kwargs.items() if name not in _NOT_DECISIVE}


def _check_demonstrator(envs: ToolVectorEnv, demonstrator: Demonstrator) -> None:
    """Raise an error if the tiny policy's demonstrator cannot be used, before minutes are spent."""
    if envs.spec is None:
        raise UserError(
            "the tiny policy is taught by the task's own scripted agents, which a hosted environment does not have: give a "
            "model, a folder or a hub id"
        )
    task = envs.envs[0]
    if task.questions is None and (missing := {"random", "scripted"} - set(task.SCRIPTS)):
        raise UserError(
            f"the tiny policy is taught by a task's own scripted agents, and {type(task).__name__}.SCRIPTS lacks "
            f"{' and '.join(map(repr, sorted(missing)))}: add them, or give a model, a folder or a hub id"
        )
    curriculum.choose_script(envs, demonstrator)
    with curriculum.open_demonstration_envs(envs, demonstrator):
        pass


def run_cold_start(
    envs: ToolVectorEnv, seed: int, steps: int, report: Report, demonstrator: Demonstrator = DEMONSTRATOR,
    outage_minutes: float = retry.MINUTES,
) -> tuple[Policy, float]:  # fmt: skip
    """Make the tiny policy and train it by SFT; a second call with the same arguments loads it from the cache, with the same
    random state. Returns the policy, and the seconds that its training took."""
    if envs.num_envs != curriculum.NUM_ENVS:  # so that the cold start does not depend on ``num_envs``
        with contextlib.closing(curriculum.remake(envs, num_envs=curriculum.NUM_ENVS)) as same:
            return run_cold_start(same, seed, steps, report, demonstrator, outage_minutes)
    torch.manual_seed(seed)

    def teach() -> tuple[Policy, float]:
        begin = time.monotonic()
        policy = make_policy(envs, seed)
        teacher = Teacher(policy, envs, random.Random(f"lessons:{seed}"), demonstrator, outage_minutes)
        fit(policy, curriculum.make_batches(teacher, steps), lambda step: step / steps, report)
        return policy, time.monotonic() - begin

    if (folder := _find_cache_folder(envs, seed, steps, demonstrator)) is None:
        return teach()
    check_writable(folder.parent, "set AGENT_ENVS_CACHE to another folder")
    with wait_for(folder, "the same cold start"):
        if (kept := read(folder)) is not None:
            print(f"The cold start is that of an earlier run: {folder}", file=sys.stderr)
            return kept
        policy, seconds = teach()
        save(folder, policy, seconds)
        return policy, seconds


def _find_cache_folder(envs: ToolVectorEnv, seed: int, steps: int, demonstrator: Demonstrator) -> Path | None:
    """Return the cache folder of a cold start; None for a task from outside of this suite, whose code may change."""
    task = envs.envs[0]
    if envs.spec is None or not all(type(one).__module__.startswith("agent_envs.") for one in task.members.values()):
        return None
    decisive = [
        envs.spec.id,
        _select_decisive(envs.spec.kwargs),
        data_digest(task),
        curriculum.POOL,
        seed,
        steps,
        asdict(demonstrator),
    ]
    name = hashlib.sha256(json.dumps(decisive, sort_keys=True, default=str).encode()).hexdigest()[:16]
    return cache_folder() / "tiny" / f"{VERSION}-{name}"


def save(folder: Path, policy: Policy, seconds: float) -> None:
    """Write a policy after its cold start, the duration of the cold start in seconds, and the random state."""
    extra = {"seconds": seconds}
    checkpoint.save(folder, model=policy.model, tokenizer=policy.tokenizer, optimizers=[], step=0, extra=extra)


def read(folder: Path) -> tuple[Policy, float] | None:
    """Read what `save` wrote and restore the random state; None if there is nothing, or, with a warning, if it is damaged."""
    if not integrity.is_checkpoint(folder):
        return None
    try:
        _, extra = checkpoint.load_state(folder, [])
        return load_policy(folder), extra["seconds"]
    except integrity.CheckpointDamaged as error:
        print(f"Warning: {error}: the cold start is made anew", file=sys.stderr)
        return None


def make_policy(envs: ToolVectorEnv, seed: int) -> Policy:
    """Make the tiny policy before its cold start: random weights from torch's global generator, and a vocabulary of the task."""
    wanted, world = curriculum.choose_curriculum(envs), World(3000, seed, difficulty=curriculum.difficulty_of(envs))
    tokenizer = tiny.make_tokenizer(list_texts(world, envs))
    numbers = tiny.number_tokens(tokenizer) if wanted.orders_numbers else None
    model = tiny.make_model(len(tokenizer), numbers=numbers, **wanted.size)
    # For transformers' `generate`: a turn ends with its closing tag; the chat template writes the end token after it.
    words = tokenizer.get_vocab()
    ends = sorted(words[string] for string in envs.envs[0].stop if string in words)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *ends]
    model = model.to(default_device())  # type: ignore[arg-type]  # transformers' wrapper of the method is typed without self
    return Policy(model, tokenizer)


def list_texts(world: World, envs: ToolVectorEnv) -> Iterator[str]:
    """Yield the texts on which the vocabulary is counted: numbers, all MiniWiki words, and the environment's own passages and
    questions; or, without a corpus, the observations and actions of episodes of both splits."""
    numbers = [str(n) for n in (*range(1000), *range(1850, 2020))] + [f"1,{n}00" for n in range(10)]
    if not curriculum.has_corpus(envs):
        yield " ".join(numbers)
        for split in ("train", "validation"):
            with contextlib.closing(curriculum.remake(envs, split=split, num_envs=envs.num_envs)) as other:
                few = list(range(500 if (own := other.envs[0].questions) is None else min(500, len(own))))
                episodes = lessons.run_unbroken(other, few, lessons.noisy_expert, seed=1)
                yield from (f"{turn['observation']} {turn['action']}" for turns in episodes for turn in turns)
        return
    is_varied = world.difficulty == "varied"
    yield " ".join(vocabulary() + numbers + ["then same / earlier later"] * is_varied)
    yield from (f"{p.title} {p.text}" for p in world.passages())
    rng = random.Random(0)
    types = ("chain", "comparison", "yes_no") if is_varied else [type for type in questions.TYPES if type != "chain"]
    yield from (questions.make_question(world, type, rng).question for type in types for _ in range(500))
    task = cast(QAEnv, envs.envs[0]).task
    if task.name != "miniwiki" and hasattr(task.searcher, "corpus"):  # a server does not give its passages
        yield from (f"{p.title} {p.text}" for p in itertools.islice(task.searcher.corpus, 100_000))
    yield from (q.question for q in task.questions)


def fit(
    policy: Policy, batches: Iterator[tuple[str, list[BatchRow]]], share_done: Callable[[int], float], report: Report
) -> None:
    """Train by token-level cross-entropy on the target tokens: Muon (Jordan et al. 2024) for the matrices, AdamW for embeddings,
    norms and biases. The learning rate falls to 2%. ``share_done(step)``: the finished share of the training, 0 to 1."""
    model = policy.model.train()
    named = [(p.ndim == 2 and "embed" not in name, p) for name, p in model.named_parameters() if p.requires_grad]
    optimizers: list[torch.optim.Optimizer] = [
        Muon([p for is_matrix, p in named if is_matrix], lr=0.01),
        torch.optim.AdamW([p for is_matrix, p in named if not is_matrix], lr=8e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    base = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    for step in itertools.count():
        if (done := share_done(step)) >= 1:
            break
        factor = min(1.0, (step + 1) / 30, max(0.02, 2 * (1 - done)))
        for optimizer, lr in zip(optimizers, base, strict=True):
            optimizer.param_groups[0]["lr"] = lr * factor
        lesson, rows = next(batches)
        batch = collate_rows(rows, list(range(len(rows))), policy.pad_id).to(policy.device)
        logprobs, _ = policy.logprobs(batch)
        loss = aggregate(-logprobs, batch.mask, batch.mask.sum())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        report(step + 1, lesson, loss.item())
    model.eval()
