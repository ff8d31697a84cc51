"""The result of a rollout, and the tensors of a loss.

The one invariant: a token has action mask 1 if and only if the policy sampled it. Every loss, advantage, KL and entropy is
multiplied by that mask.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch


@dataclass(slots=True, kw_only=True)
class Step:
    """One turn: prompt ids, sampled ids, their log-probabilities, and the reward.

    A token with the log-probability None was not sampled: the engine closed a thought with it.
    """

    prompt: list[int]
    tokens: list[int]
    logprobs: Sequence[float | None]
    reward: float = 0.0


@dataclass(slots=True, kw_only=True)
class Trajectory:
    """One episode; the last four fields are for its record."""

    steps: list[Step] = field(default_factory=list)
    group: int = 0  # rollouts of the same question share a number
    info: dict[str, Any] = field(default_factory=dict)  # the environment's last info
    reward_terms: dict[str, float] = field(default_factory=dict)
    anchors: list[Any] = field(default_factory=list)  # for each step, a label of the state it was taken in
    truncated: bool = False
    failed: bool = False  # a tool (in ``tool_faults`` calls) or the program failed: not learned from
    score: float = 0.0  # the task's primary metric at the end
    tool_faults: int = 0
    instance: dict[str, Any] = field(default_factory=dict)  # the number, its ``sample``, what an `EpisodeRecorder` adds
    # What the policy read and wrote, as text. A system message after the first begins a context that was rewritten.
    messages: list[dict[str, str]] = field(default_factory=list)
    # Of each turn its ``message`` (place in ``messages``), ``observation`` (read before it), ``action``, ``reward``,
    # ``reward_terms``, ``next_observation`` and what the recorder adds.
    turns: list[dict[str, Any]] = field(default_factory=list)
    # Of each row of `to_rows`, float32 [its length], once an update has computed them.
    advantages: list[torch.Tensor] = field(default_factory=list, compare=False)

    @property
    def rows(self) -> list["BatchRow"]:
        """Rows of its steps, see `to_rows`."""
        return to_rows(self.steps)

    @property
    def episode_return(self) -> float:
        """The sum of the rewards of all turns; of an episode without one, what it was paid."""
        return sum(step.reward for step in self.steps) if self.steps else sum(self.reward_terms.values())


@dataclass(slots=True, kw_only=True)
class BatchRow:
    """Consecutive steps as one sequence, in lists of equal length.

    ``rewards`` holds each turn's reward at that turn's last sampled token. ``turns`` holds the number of each action token's
    turn, from 0 over the trajectory, and -1 elsewhere. Without ``turns``, a row is one turn.
    """

    ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    rewards: list[float]
    turns: list[int] = field(default_factory=list)

    def __post_init__(self):
        self.turns = self.turns or [int(own) - 1 for own in self.mask]


def to_rows(steps: list[Step]) -> list[BatchRow]:
    """Merge each step into the newest row that its prompt extends, if there is one; else start a new one."""
    rows: list[BatchRow] = []
    for turn, step in enumerate(steps):
        if not step.prompt:
            raise ValueError("a step without a prompt: nothing predicts its first token")
        if len(step.tokens) != len(step.logprobs):
            raise ValueError(f"a step with {len(step.tokens)} tokens and {len(step.logprobs)} log-probabilities")
        sampled = [logprob is not None for logprob in step.logprobs]
        if not any(sampled):
            raise ValueError("a step without sampled tokens has nowhere to keep its reward")
        last = next((row for row in reversed(rows) if step.prompt[: len(row.ids)] == row.ids), None)
        if last is None:
            last = BatchRow(ids=[], mask=[], logprobs=[], rewards=[])
            rows.append(last)
        context = step.prompt[len(last.ids) :]
        n, m = len(context), len(step.tokens)
        last.ids += context + step.tokens
        last.mask += [False] * n + sampled
        last.logprobs += [0.0] * n + [logprob or 0.0 for logprob in step.logprobs]
        last.rewards += [0.0] * (n + m)
        last.rewards[len(last.ids) - 1 - sampled[::-1].index(True)] = step.reward
        last.turns += [-1] * n + [turn if own else -1 for own in sampled]
    return rows


@dataclass(slots=True, kw_only=True)
class Batch:
    """Right-padded sequences: tensors [B, T], zero outside the mask.

    Comments name other shapes and paddings.
    """

    ids: torch.Tensor  # int64, padded with the pad id
    lengths: torch.Tensor  # int64 [B], real tokens in each row; the pad id may equal the eos id
    mask: torch.Tensor  # bool, the action mask; mask[:, 0] is never set: nothing predicts the first token
    # float32, of the policy before the update: at sampling time, or with ``sampler_logprobs`` the trainer's
    old_logprobs: torch.Tensor
    rewards: torch.Tensor  # float32, each turn's reward at its last sampled token
    turns: torch.Tensor  # int64, each action token's turn within its trajectory, from 0; -1 where the mask is 0
    trajectory: torch.Tensor  # int64 [B], which of the collated trajectories a row belongs to
    # What an update adds, float32:
    episode_tokens: torch.Tensor | None = None  # int64 [B], the action tokens of a row's trajectory, over all its rows
    other_log_ratios: torch.Tensor | None = None  # [B], Σ log r over its tokens in other rows; for GSPO
    advantages: torch.Tensor | None = None
    importance_weights: torch.Tensor | None = None  # factors of losses where the sampler differs from the trainer
    sampler_logprobs: torch.Tensor | None = None  # at sampling time, where the trainer's own differ
    reference_logprobs: torch.Tensor | None = None  # of the reference policy of a KL penalty
    values: torch.Tensor | None = None  # the critic's estimates before the update
    value_targets: torch.Tensor | None = None

    def __getitem__(self, rows: torch.Tensor) -> "Batch":
        """Some rows, cut to the longest of them."""
        width = int(self.lengths[rows].max())
        return self._map(lambda tensor: tensor[rows] if tensor.ndim == 1 else tensor[rows, :width])

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return self._map(lambda tensor: tensor.to(device))

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: function(tensor) for name, tensor in tensors.items() if tensor is not None})


@dataclass(slots=True, kw_only=True)
class PackedTrajectories:
    """Action tokens, one trajectory a row, for advantage estimators."""

    returns: torch.Tensor  # float32 [N], of whole episodes
    rewards: torch.Tensor  # float32 [N, A], each turn's reward at its last token
    mask: torch.Tensor  # bool [N, A]
    turns: torch.Tensor  # int64 [N, A], -1 outside the mask
    groups: torch.Tensor  # int64 [N], rollouts of the same question share a number
    valid: torch.Tensor  # bool [N]; the other episodes failed
    anchors: Sequence[Sequence[Hashable]]  # for each trajectory, the label of the state before each turn


def collate(trajectories: list[Trajectory], pad_id: int) -> Batch:
    """Collate all rows of all trajectories into one batch on the CPU."""
    rows = [(i, s) for i, trajectory in enumerate(trajectories) for s in to_rows(trajectory.steps)]
    return collate_rows([s for _, s in rows], [i for i, _ in rows], pad_id)


def collate_rows(rows: list[BatchRow], owners: list[int], pad_id: int) -> Batch:
    """Collate rows into one batch on the CPU. ``owners``: the trajectory that each row belongs to."""
    width = max(len(s.ids) for s in rows)

    def padded(name: str, fill: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([getattr(s, name) + [fill] * (width - len(s.ids)) for s in rows], dtype=dtype)

    return Batch(
        ids=padded("ids", pad_id, torch.long),
        lengths=torch.tensor([len(s.ids) for s in rows]),
        mask=padded("mask", False, torch.bool),
        old_logprobs=padded("logprobs", 0.0, torch.float32),
        rewards=padded("rewards", 0.0, torch.float32),
        turns=padded("turns", -1, torch.long),
        trajectory=torch.tensor(owners),
    )


def pack(values: torch.Tensor, batch: Batch, trajectories: int | None = None, fill: float = 0) -> torch.Tensor:
    """Put the action tokens of trajectories side by side: [B, T] to [N, A].

    The tokens come from all rows of a trajectory, in the order of sampling. A: the most action tokens of a trajectory.
    Differentiable in ``values``. ``trajectories``: N, if some may have no row in the batch. ``fill``: padding; -1 for
    ``batch.turns``.
    """
    index, mask = _packing(batch, trajectories)
    return values.flatten()[index].masked_fill(~mask, fill)


def unpack(packed: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Invert `pack`: [N, A] to [B, T], zero outside the mask."""
    index, mask = _packing(batch, len(packed))
    values = torch.zeros(batch.mask.numel(), dtype=packed.dtype, device=packed.device)
    return values.index_put((index[mask],), packed[mask]).view_as(batch.mask)


def _packing(batch: Batch, trajectories: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the place of each packed token in the flattened batch, int64 [N, A], and which of these are tokens, bool [N, A]."""
    position = batch.mask.flatten().nonzero()[:, 0]
    owner, turn = batch.trajectory[position // batch.mask.shape[1]], batch.turns.flatten()[position]
    # By turn, not by row: the rows of a shuffled or sorted batch are not in the order of sampling.
    order = torch.argsort(owner * (batch.turns.max() + 1) + turn, stable=True)
    size = int(batch.trajectory.max()) + 1 if trajectories is None else trajectories
    counts = torch.bincount(owner, minlength=size)
    if len(counts) > size:
        raise ValueError(f"the batch has rows of trajectory {len(counts) - 1}, but there are {size} trajectories")
    mask = torch.arange(int(counts.max()), device=counts.device) < counts[:, None]
    return torch.zeros_like(mask, dtype=torch.long).masked_scatter(mask, position[order]), mask
