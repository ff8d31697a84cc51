"""Batches of episodes for the updates of a run, played when they are needed or one ahead."""

import copy
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from agent_envs.vector import ToolVectorEnv
from trainers import distributed
from trainers.algorithms.selection import refilled
from trainers.engines.engine import Engine
from trainers.models.policy import Policy
from trainers.rollout import rollout
from trainers.runs.arguments import TrainArgs
from trainers.runs.monitoring import rollout_statistics
from trainers.runs.timing import Timing
from trainers.trajectory import Trajectory


@dataclass(slots=True, kw_only=True)
class Batch:
    """``played``: all episodes; ``episodes``: those to learn from; ``rng``: what the update shuffles them with; and
    ``metrics`` of how they were played."""

    played: list[Trajectory]
    episodes: list[Trajectory]
    rng: np.random.Generator
    metrics: dict[str, float]


def play(args: TrainArgs, envs: ToolVectorEnv, policy: Policy, engine: Engine, number: int) -> Batch:
    """The batch of update ``number``, with the same questions in every run of a seed."""
    timing, rng = Timing(), np.random.default_rng([args.seed, number])
    policy.fed.clear()
    distributed.reseed(args.seed, number)

    def some() -> list[Trajectory]:
        seeds = rng.integers(2**31, size=args.questions_per_update).tolist()
        own = rollout(
            envs, policy, engine, seeds=distributed.own(seeds), group_size=args.group_size,
            max_new_tokens=args.max_new_tokens, temperature=args.temperature, timing=timing,
        )  # fmt: skip
        played = distributed.joined(own)
        for i, trajectory in enumerate(played):
            trajectory.group = i // args.group_size
        return played

    played = some()
    seen = rollout_statistics(envs, played)  # before a refill, whose questions are chosen
    played, episodes, of_refill = refilled(played, some, args)
    fed = {f"tokens/computed_{phase}": float(tokens) for phase, tokens in policy.fed.items() if phase != "steps"}
    fed |= {"train/decode_steps": float(policy.fed["steps"])} if "steps" in policy.fed else {}
    return Batch(played=played, episodes=episodes, rng=rng, metrics=seen | of_refill | timing.pop_metrics() | fed)


class Batches:
    """One batch for each update.

    With ``args.one_step_off_policy``, while an update learns from one batch, the next is played with the weights from before
    that update, by a copy of the policy. So a batch is one update old when it is learned from, never more; the ratio of
    the surrogate is to the probabilities that it was sampled with, and ``importance`` can cut what it weighs.

    Attributes:
        policy: who plays; the policy itself, or its copy.
    """

    def __init__(self, args: TrainArgs, policy: Policy):
        self.policy, self._trained, self._args = policy, policy, args
        self._following: Future[Batch] | None = None
        if args.one_step_off_policy:
            self.policy = copy.copy(policy)
            self.policy.model, self.policy.fed = copy.deepcopy(policy.model), policy.fed.copy()
        self._pool = ThreadPoolExecutor(1)

    def next(self, envs: ToolVectorEnv, engine: Engine, number: int) -> Batch:
        """The batch of update ``number``, and the ``time/rollout`` that it was waited for."""
        begin = time.monotonic()
        following = self._following
        if following is None:
            self.catch_up()  # a run that goes on has got its weights since
        batch = following.result() if following else play(self._args, envs, self.policy, engine, number)
        self._following = None
        if self._args.one_step_off_policy and number + 1 < self._args.updates:
            self.catch_up()
            self._following = self._pool.submit(play, self._args, envs, self.policy, engine, number + 1)
        batch.metrics["time/rollout"] = time.monotonic() - begin
        return batch

    @torch.no_grad()
    def catch_up(self) -> None:
        """Wait for what is being played, and let the copy have the newest weights."""
        if self._following:
            self._following.exception()  # raised where the batch is asked for
        if self.policy is not self._trained:
            for ours, theirs in zip(self.policy.model.parameters(), self._trained.model.parameters(), strict=True):
                ours.copy_(theirs)
