"""Collect the episodes of each update, when they are needed or one step ahead of the learner."""

import copy
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
import torch

from agent_envs.vector import ToolVectorEnv
from trainers.config import TrainArgs
from trainers.engines.engine import Engine
from trainers.models.lora import copy_trainable
from trainers.models.policy import Policy
from trainers.rollouts.agent_rollout import cause_of_failure, stop_if_all_failed
from trainers.rollouts.batching import refill_groups
from trainers.rollouts.rollout import rollout
from trainers.rollouts.statistics import rollout_statistics
from trainers.rollouts.timing import Timing
from trainers.runtime import distributed
from trainers.runtime.retry import retry_on_tool_failure
from trainers.trajectory import Trajectory

RollOut = Callable[..., list[Trajectory]]  # `rollout`, or a callable with the same arguments
PROCESSED = {  # from names of the engine's counts to names of metrics
    "prefill": "tokens/processed_prefill",
    "decode": "tokens/processed_decode",
    "decode_steps": "train/decode_steps",
}


@dataclass(slots=True, kw_only=True)
class Collected:
    """The episodes of an update."""

    sampled: list[Trajectory]  # all of them
    trajectories: list[Trajectory]  # those to learn from
    rng: np.random.Generator  # drew the questions, and will shuffle the minibatches
    metrics: dict[str, float]  # of the rollout
    seconds: float  # duration of the rollout, without failed tries and pauses


def collect_batch(
    args: TrainArgs, envs: ToolVectorEnv, policy: Policy, engine: Engine, number: int, roll_out: RollOut | None = None
) -> Collected:
    """Collect the episodes of update ``number``; every run with the same seed has the same questions. If tools failed in more
    than half of the episodes, sample them again (`retry_on_tool_failure`). Raises ToolsFailed as `stop_if_all_failed` does."""

    def failed(collected: Collected) -> float:
        sampled = collected.sampled
        stop_if_all_failed([t.failed for t in sampled], list(map(cause_of_failure, sampled)))
        return sum(t.tool_faults > 0 for t in sampled) / len(sampled)

    minutes = args.tool_outage_minutes
    return retry_on_tool_failure(lambda: _collect_once(args, envs, policy, engine, number, roll_out), failed, minutes)


def _collect_once(
    args: TrainArgs, envs: ToolVectorEnv, policy: Policy, engine: Engine, number: int, roll_out: RollOut | None
) -> Collected:
    begin, timing, rng = time.monotonic(), Timing(), np.random.default_rng([args.seed, number])
    engine.processed.clear()
    distributed.reseed(args.seed, number)

    def sample_groups() -> list[Trajectory]:
        seeds = rng.integers(2**31, size=args.questions_per_update).tolist()
        own = (roll_out or rollout)(
            envs, policy, engine, seeds=distributed.shard(seeds), group_size=args.group_size,
            max_new_tokens=args.max_new_tokens, temperature=args.temperature, top_p=args.top_p, min_p=args.min_p,
            timing=timing,
        )  # fmt: skip
        sampled = distributed.all_gather(own)
        for i, trajectory in enumerate(sampled):
            trajectory.group = i // args.group_size  # over all processes
        return sampled

    sampled = sample_groups()
    statistics = rollout_statistics(envs, sampled)  # before a refill, which selects questions
    sampled, trajectories, metrics = refill_groups(sampled, sample_groups, args)
    metrics |= statistics | timing.pop_metrics()
    metrics |= {PROCESSED[phase]: float(count) for phase, count in engine.processed.items()}
    metrics |= distributed.all_reduce_sums({n: value for n, value in metrics.items() if n.startswith("tokens/")})
    seconds = time.monotonic() - begin
    return Collected(sampled=sampled, trajectories=trajectories, rng=rng, metrics=metrics, seconds=seconds)


class Collector:
    """Collects the episodes of one update after another.

    With ``args.one_step_off_policy``, a copy of the policy samples the next batch while an update learns from the current one.
    The copy has the weights from before that update, so a batch is at most one update old when it is learned from. The
    surrogate's ratio uses the probabilities at sampling time, and ``importance`` can bound the weights. The first update of a
    process begins only after the next batch is sampled.

    The attribute ``sampler`` is the policy that samples: the given one, or its copy. ``roll_out``: by default `rollout`.
    """

    def __init__(self, args: TrainArgs, policy: Policy, roll_out: RollOut | None = None):
        self.sampler, self._trained, self._args, self._roll_out = policy, policy, args, roll_out
        self._next: Future[Collected] | None = None
        self._is_first = True
        self._waited = 0.0  # seconds that `update_weights` has waited for the next batch
        if args.one_step_off_policy:
            self.sampler = copy.copy(policy)
            self.sampler.model = copy_trainable(policy.model, policy.model)
        self._pool = ThreadPoolExecutor(1)

    def collect(self, envs: ToolVectorEnv, engine: Engine, number: int) -> Collected:
        """Return the episodes of update ``number``. Their metric ``time/rollout`` is the time spent waiting for them, in
        seconds, without outages."""
        begin = time.monotonic()
        if self._next is None:
            self.update_weights()  # a resumed run has loaded its weights after the copy was made
            collected = collect_batch(self._args, envs, self.sampler, engine, number, self._roll_out)
        else:
            collected = self._next.result()
        waited, self._next, self._waited = self._waited + time.monotonic() - begin, None, 0.0
        collected.metrics["time/rollout"] = min(waited, collected.seconds)
        if self._args.one_step_off_policy and number + 1 < self._args.updates:
            self.update_weights()
            self._next = self._pool.submit(self._collect_ahead, envs, engine, number + 1)
            if self._is_first:  # its update compiles and times kernels; no CUDA graph can be captured at the same time
                self.update_weights()
        self._is_first = False
        return collected

    def _collect_ahead(self, envs: ToolVectorEnv, engine: Engine, number: int) -> Collected:
        # A compilation in the concurrent update resets the generators of the process to their state before it.
        distributed.reseed(self._args.seed, number, alone=True)
        return collect_batch(self._args, envs, self.sampler, engine, number, self._roll_out)

    def close(self) -> None:
        """Wait for the batch in progress, and end the thread that collects it."""
        self._pool.shutdown(cancel_futures=True)

    @torch.no_grad()
    def update_weights(self) -> None:
        """Wait for the batch in progress, and copy the newest weights to the sampler."""
        if self._next:
            begin = time.monotonic()
            wait([self._next])  # `collect` raises its error, if any
            self._waited += time.monotonic() - begin
        if self.sampler is not self._trained:
            for ours, theirs in zip(self.sampler.model.parameters(), self._trained.model.parameters(), strict=True):
                if ours is not theirs:
                    ours.copy_(theirs)
