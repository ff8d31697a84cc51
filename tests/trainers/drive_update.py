"""All that the reference tests know of the trainer's own interface: episodes go in and out as `tests.trainers.reference`
has them, options by the names of the command line.

`run_update` promises the whole update of an algorithm, optimizer and all, with nothing replaced; `play_episodes` the
rollout; `play_batch` the batch of episodes that a run plays for an update.
"""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from reference import Episode, Turn

from trainers import batches, gigpo, grpo, ppo, reinforce, rloo
from trainers.engine import Completion, TransformersEngine
from trainers.optimize import policy_learner
from trainers.policy import Policy
from trainers.rollout import rollout
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
    """Updates of a copy of the policy by one learner; that of batch ``i`` is shuffled by ``default_rng(i)``."""
    module, policy = ALGORITHMS[algorithm], copy.deepcopy(policy)
    args = module.Args(**options)
    learner = (
        ppo.start(args, policy)
        if algorithm == "ppo"
        else policy_learner(args, partial(module.advantages, args), policy)
    )
    (optimizer,), named, gradients = learner.optimizers, dict(policy.model.named_parameters()), []
    if algorithm == "ppo":
        critic = learner.modules["critic"]
        with torch.no_grad():
            for own, given in zip(critic.head.parameters(), critic_head, strict=True):
                own.copy_(given)
        named |= {f"critic.{name}": p for name, p in critic.named_parameters()}
    step = optimizer.step

    def recorded():
        zero = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in named.items()}
        gradients.append(zero)
        step()

    optimizer.step = recorded
    metrics = [
        learner.update([to_trajectory(e) for e in episodes], np.random.default_rng(i))
        for i, episodes in enumerate(played)
    ]
    return UpdateResult(gradients, {name: p.detach() for name, p in named.items()}, metrics)


def play_episodes(envs, policy: Policy, said: list[list[str]] | None = None, **options) -> list[Episode]:
    """An episode in each environment. ``said``: each one's turns, in place of those that the policy would sample;
    ``options``: seeds, group_size, max_new_tokens, temperature."""
    engine = TransformersEngine(policy, envs.envs[0].stop) if said is None else Scripted(policy, said)
    return [to_episode(t) for t in rollout(envs, policy, engine, **options)]


def play_batch(options: dict[str, Any], envs, policy: Policy, number: int) -> list[Episode]:
    """The episodes of update ``number``."""
    engine = TransformersEngine(policy, envs.envs[0].stop)
    return [to_episode(t) for t in batches.play(grpo.Args(**options), envs, policy, engine, number).episodes]


def to_trajectory(e: Episode) -> Trajectory:
    steps = [Step(prompt=t.prompt, tokens=t.tokens, logprobs=t.logprobs, reward=t.reward) for t in e.turns]
    return Trajectory(steps=steps, group=e.group, anchors=e.anchors, failed=e.failed)


def to_episode(t: Trajectory) -> Episode:
    turns = [Turn(s.prompt, s.tokens, s.logprobs, s.reward) for s in t.steps]
    return Episode(turns, t.group, t.anchors, t.failed)


class Scripted:
    """An engine that says what it is told to, all turns at once."""

    def __init__(self, policy: Policy, said: list[list[str]]):
        self.policy, self.said = policy, [iter(turns) for turns in said]
        self.reset()

    def submit(self, prompts, max_new_tokens, temperature):
        self.open += prompts

    def finished(self):
        tokens = {key: self.policy.encode(next(self.said[key])) for key in self.open}
        self.open = []
        return {key: Completion(tokens=ids, logprobs=[0.0] * len(ids)) for key, ids in tokens.items()}

    def reset(self):
        self.open = []
