"""All that the reference tests know of the trainer's own interface: episodes go in and out as `reference`
has them, options by the names of the command line.

`run_update` promises the whole update of an algorithm, optimizer and all, with nothing replaced; `play_episodes` the
rollout; `collect_batch` the batch of episodes that a run plays for an update.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from reference import Episode, Turn

from trainers import gigpo, grpo, ppo, reinforce, rloo
from trainers.engines.engine import Completion
from trainers.engines.transformers_engine import TransformersEngine
from trainers.lifecycle.run import UpdateStep
from trainers.models.policy import Policy
from trainers.rollouts import collector
from trainers.rollouts.rollout import rollout
from trainers.trajectory import Step, Trajectory

ALGORITHMS = {"grpo": grpo, "rloo": rloo, "reinforce": reinforce, "gigpo": gigpo, "ppo": ppo}


@dataclass
class UpdateResult:
    """``gradients``: of each step by name, clipped, as the optimizer got them; ``weights``: after the last step. Names are
    those of the model's parameters, and "critic." before the critic's. ``metrics``: of each batch."""

    gradients: list[dict[str, torch.Tensor]]
    weights: dict[str, torch.Tensor]
    metrics: list[dict[str, float]]


def run_update(
    algorithm: str, options: dict[str, Any], policy: Policy, played: list[list[Episode]], critic_head=None
) -> UpdateResult:
    """Updates of a copy of the policy by one run; that of batch ``i`` is shuffled by ``default_rng(i)``."""
    run = PlayedRun(copy.deepcopy(policy), played, critic_head)
    with pytest.MonkeyPatch.context() as patch:
        for module in (grpo, ppo):
            patch.setattr(module, "open_setup", lambda *arguments: run)
            patch.setattr(module, "RLRun", run.start)
        ALGORITHMS[algorithm].main(ALGORITHMS[algorithm].Args(**options))
    return UpdateResult(run.gradients, {name: p.detach() for name, p in run.named.items()}, run.metrics)


class PlayedRun:
    """Takes the place of a run and its setup: episodes that were played before, and a look at what the optimizer gets."""

    def __init__(self, policy: Policy, played: list[list[Episode]], critic_head):
        self.policy, self.played, self.critic_head = policy, played, critic_head
        self.named, self.gradients, self.metrics = dict(policy.model.named_parameters()), [], []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def start(self, setup, optimizer, critic=None, kl=None):
        if critic is not None:
            with torch.no_grad():
                for own, given in zip(critic.head.parameters(), self.critic_head, strict=True):
                    own.copy_(given)
            self.named |= {f"critic.{name}": p for name, p in critic.named_parameters()}
        step = optimizer.step

        def recorded():
            named = self.named.items()
            self.gradients.append({n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in named})
            step()

        optimizer.step = recorded
        return self

    def steps(self):
        for number in range(len(self.played)):
            update = UpdateStep(number=number, rng=np.random.default_rng(number))
            yield update
            self.metrics.append(update.metrics)

    def close(self):
        return {}

    def collect(self, step):
        return [to_trajectory(episode) for episode in self.played[step.number]]


def play_episodes(envs, policy: Policy, said: list[list[str]] | None = None, **options) -> list[Episode]:
    """An episode in each environment. ``said``: each one's turns, in place of those that the policy would sample;
    ``options``: seeds, group_size, max_new_tokens, temperature."""
    engine = TransformersEngine(policy, envs.envs[0].stop) if said is None else Scripted(policy, said)
    return [to_episode(t) for t in rollout(envs, policy, engine, **options)]


def collect_batch(options: dict[str, Any], envs, policy: Policy, number: int) -> list[Episode]:
    """The episodes of update ``number``."""
    engine = TransformersEngine(policy, envs.envs[0].stop)
    return [
        to_episode(t) for t in collector.collect_batch(grpo.Args(**options), envs, policy, engine, number).trajectories
    ]


def to_trajectory(e: Episode) -> Trajectory:
    steps = [Step(prompt=t.prompt, tokens=t.tokens, logprobs=t.logprobs, reward=t.reward) for t in e.turns]
    return Trajectory(steps=steps, group=e.group, anchors=e.anchors, failed=e.failed)


def to_episode(t: Trajectory) -> Episode:
    turns = [Turn(s.prompt, s.tokens, s.logprobs, s.reward) for s in t.steps]
    return Episode(turns, t.group, t.anchors, t.failed)


class Scripted:
    """An engine that says what it is told to, all turns at once."""

    max_length = math.inf

    def __init__(self, policy: Policy, said: list[list[str]]):
        self.policy, self.said = policy, [iter(turns) for turns in said]
        self.reset()

    def submit(self, prompts, params):
        self.open += prompts

    def wait(self):
        tokens = {key: self.policy.encode(next(self.said[key])) for key in self.open}
        self.open = []
        return {
            key: Completion(tokens=ids, logprobs=[0.0] * len(ids), finish_reason="stop") for key, ids in tokens.items()
        }

    def reset(self):
        self.open = []
