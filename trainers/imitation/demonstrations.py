"""Demonstrations for supervised fine-tuning: episodes as token sequences with an action mask.

They come from a task's scripts, are sampled from the policy itself and selected, or are read from files. A token is a target if
and only if the assistant wrote it.
"""

import hashlib
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from agent_envs.utils.scripts import ScriptMaker, roll_out_many
from agent_envs.vector import ToolVectorEnv
from retrieval_index import durable
from trainers.engines.engine import Engine
from trainers.engines.transformers_engine import TransformersEngine
from trainers.imitation.conversations import read_conversations
from trainers.inputs import DEMONSTRATIONS_FILE
from trainers.models.policy import Policy
from trainers.rollouts.rollout import rollout
from trainers.runtime import distributed, retry
from trainers.runtime.errors import UserError
from trainers.runtime.progress import Progress
from trainers.trajectory import BatchRow, Step, to_rows

T = TypeVar("T")
FILE = DEMONSTRATIONS_FILE
MOST_HELD_OUT = 100  # questions: measuring the loss of more would take longer than the updates in between


@dataclass(slots=True, kw_only=True)
class Demonstration:
    """An episode to imitate."""

    question: str  # the first observation or message; all episodes of one question are held out together
    rows: list[BatchRow]  # several if the context was rewritten
    score: float = 1.0  # the task's primary metric; 1 for conversations
    episode_return: float | None = None  # None for conversations
    calls: int | None = field(default=None, compare=False)  # number of tool calls, if known
    instance: int | None = field(default=None, compare=False)  # number of the instance, if sampled


def draw_questions(envs: ToolVectorEnv, count: int, seed: int) -> list[int]:
    """Draw numbers of ``count`` instances (0: each question once); none repeats before all have come once."""
    rng = np.random.default_rng([seed, 0])
    if (questions := envs.envs[0].questions) is None:
        if not count:
            raise UserError("this task makes its instances from seeds: give --demonstrations, how many to roll out")
        spare = 64 + count**2 // 2**31  # replace numbers that are drawn twice
        drawn = rng.integers(2**31, size=count + spare)  # a larger count begins with the same numbers
        return list(dict.fromkeys(drawn.tolist()))[:count]
    total = count or len(questions)
    rounds = -(-total // len(questions))
    return [int(i) for _ in range(rounds) for i in rng.permutation(len(questions))][:total]


def run_script(
    envs: ToolVectorEnv, policy: Policy, questions: list[int], script: ScriptMaker, seed: int,
    outage_minutes: float = retry.MINUTES,
) -> Iterator[Demonstration]:  # fmt: skip
    """Yield demonstrations of a script on numbered instances, without episodes with a tool failure. If most of a batch have one,
    it is rolled out again (`trainers.runtime.retry.retry_on_tool_failure`). Processes share the work; each gets all episodes."""
    metric, stop = envs.envs[0].PRIMARY_METRIC, envs.envs[0].stop
    policy.keep(*envs.envs[0].formats)
    at_once = envs.num_envs * distributed.world_size()
    for start in range(0, len(questions), at_once):
        own = distributed.shard(questions[start : start + at_once])
        run = partial(roll_out_many, envs, own, script, seed + start + distributed.rank() * envs.num_envs)
        for turns in _run_together(run, share_failed, outage_minutes):
            if not _has_failed(turns):
                yield Demonstration(
                    question=turns[0]["observation"], rows=episode_rows(turns, policy, stop),
                    score=float(turns[-1][metric]), episode_return=sum(turn["reward"] for turn in turns),
                    calls=turns[-1]["calls"],
                )  # fmt: skip


def sample(
    envs: ToolVectorEnv, policy: Policy, engine: Engine, questions: list[int], *, attempts: int, max_new_tokens: int,
    temperature: float, outage_minutes: float = retry.MINUTES,
) -> Iterator[Demonstration]:  # fmt: skip
    """Yield demonstrations of the policy as `run_script` does, ``attempts`` per instance; sampled ids are kept."""
    metric, at_once = envs.envs[0].PRIMARY_METRIC, envs.num_envs // attempts * distributed.world_size()
    options: Any = {"group_size": attempts, "max_new_tokens": max_new_tokens, "temperature": temperature}
    for start in range(0, len(questions), at_once):
        own = distributed.shard(questions[start : start + at_once])  # empty if there are fewer questions than processes
        run = partial(rollout, envs, policy, engine, questions=own, **options) if own else list
        for episode in _run_together(run, lambda all: sum(t.tool_faults > 0 for t in all) / len(all), outage_minutes):
            if not episode.failed:
                yield Demonstration(
                    question=episode.turns[0]["observation"], rows=to_rows(episode.steps),
                    score=float(episode.info[metric]), episode_return=episode.episode_return,
                    calls=episode.info["calls"], instance=episode.instance["instance"],
                )  # fmt: skip


def _run_together(run: Callable[[], list[T]], failed: Callable[[list[T]], float], outage_minutes: float) -> list[T]:
    return retry.retry_on_tool_failure(lambda: distributed.all_gather(run()), failed, outage_minutes)


def _has_failed(turns: list[dict[str, Any]]) -> bool:
    return any(turn["tool_faults"] for turn in turns)


def share_failed(episodes: list[list[dict[str, Any]]]) -> float:
    """Compute the share of scripted episodes with a tool failure."""
    return sum(map(_has_failed, episodes)) / max(len(episodes), 1)


def episode_rows(turns: list[dict], policy: Policy, stop: tuple[str, ...]) -> list[BatchRow]:
    """Convert the turns of a script (`roll_out_many`) to the rows of a rollout. The end token is a target if no ``stop`` string
    ends the turn."""
    steps: list[Step] = []
    instructions, tools, rewritten = turns[0]["instructions"], turns[0]["tools"], None
    context = policy.prompt_ids(instructions, turns[0]["observation"], tools)
    for turn in turns:
        *read, said = turn["chat"]
        if rewritten is not None:  # the environment has rewritten the context
            context = policy.prompt_ids(instructions, rewritten, tools)
        elif steps:
            context = context + steps[-1].tokens + policy.observation_ids(read, steps[-1].tokens, tools)
        if tools:
            tokens = policy.turn_ids(said, tools)
        else:
            tokens = policy.text_ids(turn["action"], ended=not turn["action"].endswith(stop), last=turn is turns[-1])
        steps.append(Step(prompt=context, tokens=tokens, logprobs=[0.0] * len(tokens)))
        rewritten = turn.get("context")
    return to_rows(steps)


def split_by_length(rows: list[BatchRow], tokens: int) -> list[list[BatchRow]]:
    """Split sequences into batches of about equal length, the shortest first. With padding, a batch has at most ``tokens`` tokens
    (a single row may have more)."""
    batches: list[list[BatchRow]] = [[]]
    for row in sorted(rows, key=lambda s: len(s.ids)):
        if batches[-1] and (len(batches[-1]) + 1) * len(row.ids) > tokens:
            batches.append([])
        batches[-1].append(row)
    return batches


def select(
    demonstrations: Iterable[Demonstration], only_solved: bool = True, min_reward: float | None = None, keep: int = 0
) -> list[Demonstration]:
    """Select demonstrations, in order. ``only_solved``: drop scores below 1. ``min_reward``: drop episodes with a lower
    return, but no conversations. ``keep``: the most per instance, by highest return and without duplicates; 0 keeps all."""
    least = -math.inf if min_reward is None else min_reward
    solved = [d for d in demonstrations if d.score >= 1 or not only_solved]
    good = [d for d in solved if d.episode_return is None or d.episode_return >= least]
    if not keep:
        return good
    by_instance: dict[tuple, dict[tuple, Demonstration]] = defaultdict(dict)  # the first of equal demonstrations
    for one in good:
        by_instance[one.question, one.instance].setdefault(tuple(tuple(s.ids) for s in one.rows), one)
    best = (sorted(own.values(), key=lambda d: -(d.episode_return or 0.0))[:keep] for own in by_instance.values())
    kept = {id(one) for own in best for one in own}
    return [one for one in good if id(one) in kept]


def choose_scripts(args: Any, envs: ToolVectorEnv) -> tuple[str, ...]:
    """Return the scripts to imitate, by the arguments of `trainers.sft`. Raises a UserError for an unknown script."""
    scripts = args.script or ("oracle",) * (not args.messages and not args.sample and not args.episodes)
    if unknown := sorted(set(scripts) - set(envs.envs[0].SCRIPTS)):
        raise UserError(f"{args.env} has no script {unknown[0]!r}; it has {sorted(envs.envs[0].SCRIPTS)}")
    if args.sample > envs.num_envs:
        raise UserError(f"sample must be at most {envs.num_envs}, got {args.sample}")
    return scripts


def collect(args: Any, policy: Policy, envs: ToolVectorEnv) -> list[Demonstration]:
    """Collect all demonstrations, by the arguments of `trainers.sft`. Raises a UserError if none is left."""
    scripts, minutes = choose_scripts(args, envs), args.tool_outage_minutes
    told: list[Demonstration] = []
    format_of = envs.envs[0] if args.tool_calls == "environment" else None
    for path in args.messages:  # first, so an invalid line is reported before minutes are spent on rollouts
        for question, steps in read_conversations(Path(path), policy, format_of):
            told.append(Demonstration(question=question, rows=to_rows(steps)))
    given = [one for path in args.episodes for one in read_demonstrations(Path(path), policy)]
    questions = draw_questions(envs, args.demonstrations, args.seed) if scripts or args.sample else []
    wanted, made, sampled = len(questions) * (len(scripts) + args.sample), list(given), list[Demonstration]()
    with Progress(wanted, "episodes", "demonstrations") as progress:

        def add(to: list[Demonstration], some: Iterable[Demonstration]) -> None:
            for one in some:
                to.append(one)
                progress.update(len(made) + len(sampled), solved=sum(one.score >= 1 for one in to))

        for number, name in enumerate(scripts):
            add(made, run_script(envs, policy, questions, envs.envs[0].SCRIPTS[name], args.seed + number, minutes))
        if args.sample:
            engine = TransformersEngine(policy, envs.envs[0].stop)
            add(sampled, sample(
                envs, policy, engine, questions, attempts=args.sample, max_new_tokens=args.max_new_tokens,
                temperature=args.temperature, outage_minutes=minutes,
            ))  # fmt: skip
    kept = select(made, args.only_solved, args.min_reward)
    kept += select(sampled, args.only_solved, args.min_reward, args.keep)
    longest = min(args.max_length, policy.max_length)
    short = [one for one in kept + told if max(len(s.ids) for s in one.rows) <= longest]
    if not short:
        raise UserError("there is nothing to imitate: no episode was solved, rewarded enough and short enough")
    total = len(made) + len(sampled)
    dropped, failed = total - len(kept), wanted + len(given) - total
    left_out = f"{dropped} of them unsolved, below --min-reward or beyond --keep; {len(kept) + len(told) - len(short)} too long"
    print(
        f"{len(short)} demonstrations ({total} episodes; {left_out}; {failed} more had a tool failure)", file=sys.stderr
    )
    if envs.envs[0].tools and all(one.calls == 0 for one in short):
        print("Warning: none of them calls a tool, so they teach to answer from memory", file=sys.stderr)
    return short


def hold_out(
    demonstrations: list[Demonstration], share: float, seed: int
) -> tuple[list[Demonstration], list[Demonstration]]:
    """Split demonstrations into those to learn from and those of about a ``share`` of the questions, at most `MOST_HELD_OUT`,
    held out; each part has at least one. Single demonstrations are held out if all have one question, or if the questions drawn
    have a large part of the demonstrations, as with conversations that begin alike."""
    if not share:
        return demonstrations, []
    learned, held_out = _split(demonstrations, [one.question for one in demonstrations], share, seed)
    if held_out and len(held_out) <= max(2 * share, 0.25) * len(demonstrations):
        return learned, held_out
    return _split(demonstrations, [str(number) for number in range(len(demonstrations))], share, seed)


def _split(
    demonstrations: list[Demonstration], names: list[str], share: float, seed: int
) -> tuple[list[Demonstration], list[Demonstration]]:
    """Split demonstrations into those of most ``names`` and those of about a ``share`` of them."""
    groups = sorted(set(names))
    count = min(max(1, round(share * len(groups))), len(groups) - 1, MOST_HELD_OUT)
    chosen = {groups[i] for i in np.random.default_rng([seed, 1]).permutation(len(groups))[: max(0, count)]}
    learned = [one for one, name in zip(demonstrations, names, strict=True) if name not in chosen]
    return learned, [one for one, name in zip(demonstrations, names, strict=True) if name in chosen]


def write_demonstrations(path: Path, demonstrations: Iterable[Demonstration], policy: Policy) -> None:
    """Write demonstrations as JSON lines: question, score, return, tokenizer, and each sequence's ids and target spans."""
    tokenizer = _fingerprint(policy)
    lines = []
    for one in demonstrations:
        rows = [{"ids": s.ids, "target_tokens": target_spans(s.mask)} for s in one.rows]
        line = {"question": one.question, "score": one.score, "return": one.episode_return, "tokenizer": tokenizer}
        lines.append(json.dumps(line | {"sequences": rows}) + "\n")
    durable.write_text(path, "".join(lines))


def read_demonstrations(path: Path, policy: Policy) -> list[Demonstration]:
    """Read what `write_demonstrations` wrote; ``path`` is the file, or the folder of its run. Raises a UserError if
    a line is damaged, or the ids are those of another tokenizer.
    """
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"there are no demonstrations in {path}")
    found, own = [], _fingerprint(policy)
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            rows = [_to_row(s["ids"], s["target_tokens"]) for s in line["sequences"]]
            found.append(Demonstration(
                question=line["question"], rows=rows, score=line["score"], episode_return=line["return"],
            ))  # fmt: skip
            tokenizer = line["tokenizer"]
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(f"{path}:{number} is not a demonstration: {error!r}") from error
        if tokenizer != own:
            raise UserError(f"{path}:{number} holds the ids of another tokenizer than the model's")
    return found


def _fingerprint(policy: Policy) -> str:
    """Identify the tokenizer by a hash of its vocabulary."""
    vocabulary = sorted(policy.tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()[:16]


def target_spans(mask: list[bool]) -> list[tuple[int, int]]:
    """Find the beginning and end of each run of target tokens."""
    edges = [i for i in range(len(mask) + 1) if (i and mask[i - 1]) != (i < len(mask) and mask[i])]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _to_row(ids: list[int], targets: list[tuple[int, int]]) -> BatchRow:
    mask = [False] * len(ids)
    for begin, end in targets:
        if not 0 < begin < end <= len(ids):
            raise UserError(f"tokens {begin} to {end} of {len(ids)} cannot be taught")
        mask[begin:end] = [True] * (end - begin)
    zeros = [0.0] * len(ids)
    return BatchRow(ids=ids, mask=mask, logprobs=zeros, rewards=zeros)
