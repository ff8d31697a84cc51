"""What a rollout leaves behind, and the tensors that a loss wants.

The one invariant: a token has action mask 1 if and only if the policy sampled it. Everything that reads a loss, an
advantage, a KL or an entropy off a sequence multiplies by that mask.
"""

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(slots=True, kw_only=True)
class Step:
    """One turn. ``prompt``: every id the policy saw before it; ``tokens``: the ids it sampled, never re-encoded;
    ``logprobs``: theirs, at sampling time; ``reward``: what the environment paid for the turn."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    reward: float = 0.0


@dataclass(slots=True, kw_only=True)
class Trajectory:
    """One episode. ``group``: attempts at the same question share a number. ``info``: the environment's last info."""

    steps: list[Step] = field(default_factory=list)
    group: int = 0
    info: dict[str, Any] = field(default_factory=dict)
    reward_terms: dict[str, float] = field(default_factory=dict)
    truncated: bool = False

    @property
    def episode_return(self) -> float:
        return sum(step.reward for step in self.steps)


@dataclass(slots=True, kw_only=True)
class Sequence:
    """Consecutive steps as one sequence for the model; all lists have the same length.

    ``rewards`` holds each turn's reward at that turn's last sampled token, wherever the episode ended.
    """

    ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    rewards: list[float]


def to_sequences(steps: list[Step]) -> list[Sequence]:
    """Merge each step into the sequence before it where its prompt extends that sequence; else start a new one.

    A context that only grows gives one sequence an episode; one that the environment rewrote gives several.
    """
    sequences: list[Sequence] = []
    for step in steps:
        if not step.tokens:
            raise ValueError("a step without sampled tokens has nowhere to keep its reward")
        if not step.prompt:
            raise ValueError("a step without a prompt: nothing predicts its first token")
        if len(step.tokens) != len(step.logprobs):
            raise ValueError(f"a step with {len(step.tokens)} tokens and {len(step.logprobs)} log-probabilities")
        last = sequences[-1] if sequences else None
        if last is None or step.prompt[: len(last.ids)] != last.ids:
            last = Sequence(ids=[], mask=[], logprobs=[], rewards=[])
            sequences.append(last)
        context = step.prompt[len(last.ids) :]
        n, m = len(context), len(step.tokens)
        last.ids += context + step.tokens
        last.mask += [False] * n + [True] * m
        last.logprobs += [0.0] * n + step.logprobs
        last.rewards += [0.0] * (n + m - 1) + [step.reward]
    return sequences


@dataclass(slots=True, kw_only=True)
class Batch:
    """Right-padded sequences; all tensors are [B, T] unless said otherwise.

    Attributes:
        ids: int64, padded with the pad id.
        lengths: int64 [B], real tokens in each row; padding is known by length, so the pad id may equal the eos id.
        mask: bool, the action mask. ``mask[:, 0]`` is never set: the first token has nothing to be predicted from.
        logprobs: float32, log-probabilities at sampling time; 0 where the mask is 0.
        rewards: float32, each turn's reward at its last sampled token.
        trajectory: int64 [B], which of the collated trajectories a row belongs to.
    """

    ids: torch.Tensor
    lengths: torch.Tensor
    mask: torch.Tensor
    logprobs: torch.Tensor
    rewards: torch.Tensor
    trajectory: torch.Tensor

    def __getitem__(self, rows: torch.Tensor) -> "Batch":
        """Some rows, cut to the longest of them."""
        lengths = self.lengths[rows]
        width = int(lengths.max())
        tensors = {name: getattr(self, name)[rows, :width] for name in ("ids", "mask", "logprobs", "rewards")}
        return Batch(lengths=lengths, trajectory=self.trajectory[rows], **tensors)

    def to(self, device: torch.device | str) -> "Batch":
        return Batch(**{name: getattr(self, name).to(device) for name in self.__dataclass_fields__})


def collate(trajectories: list[Trajectory], pad_id: int) -> Batch:
    """All sequences of all trajectories as one batch on the CPU."""
    rows = [(i, s) for i, trajectory in enumerate(trajectories) for s in to_sequences(trajectory.steps)]
    return collate_sequences([s for _, s in rows], [i for i, _ in rows], pad_id)


def collate_sequences(sequences: list[Sequence], owners: list[int], pad_id: int) -> Batch:
    width = max(len(s.ids) for s in sequences)

    def padded(name: str, fill: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([getattr(s, name) + [fill] * (width - len(s.ids)) for s in sequences], dtype=dtype)

    return Batch(
        ids=padded("ids", pad_id, torch.long),
        lengths=torch.tensor([len(s.ids) for s in sequences]),
        mask=padded("mask", False, torch.bool),
        logprobs=padded("logprobs", 0.0, torch.float32),
        rewards=padded("rewards", 0.0, torch.float32),
        trajectory=torch.tensor(owners),
    )


def micro_batches(batch: Batch, max_tokens: int) -> list[Batch]:
    """Rows sorted by length and cut so that no part, padding included, has more than ``max_tokens`` tokens
    (one row alone may exceed it). Every row is in exactly one part."""
    order = torch.argsort(batch.lengths, descending=True, stable=True)
    parts, start = [], 0
    while start < len(order):
        rows = max(1, max_tokens // int(batch.lengths[order[start]]))
        parts.append(batch[order[start : start + rows]])
        start += rows
    return parts
