"""A batch of episodes on one rank or several, as a trainer on several ranks does it. Imports torch only, to start fast."""

import torch
from torch import distributed

from trainers.algorithms.advantages import reinforce_plus_plus_baseline
from trainers.algorithms.losses import aggregate, clipped_policy_loss
from trainers.trajectory import Step, Trajectory, collate, pack, unpack


def make_model(vocabulary: int = 11) -> torch.nn.Module:
    torch.manual_seed(0)

    class Causal(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mix = torch.nn.Embedding(vocabulary, 8), torch.nn.GRU(8, 8, batch_first=True)
            self.head = torch.nn.Linear(8, vocabulary)

        def forward(self, ids):
            return self.head(self.mix(self.embed(ids))[0]).log_softmax(-1)

    return Causal()


def make_episodes(count: int = 7) -> list[Trajectory]:
    """Episodes of several turns, of different lengths; the groups lie across the ranks, and one context is rewritten."""
    generator = torch.Generator().manual_seed(3)

    def some(least: int, most: int) -> list[int]:
        size = int(torch.randint(least, most, (1,), generator=generator))
        return torch.randint(1, 11, (size,), generator=generator).tolist()

    made = []
    for i in range(count):
        trajectory, context = Trajectory(group=i % 3), some(1, 4)
        for turn in range(1 + i % 3):
            tokens = some(1, 6)
            reward = float(torch.randint(0, 3, (1,), generator=generator))
            step = Step(prompt=context, tokens=tokens, logprobs=[-2.0 - 0.1 * i] * len(tokens), reward=reward)
            trajectory.steps.append(step)
            context = some(1, 3) if (i, turn) == (5, 0) else context + tokens + some(0, 4)
        made.append(trajectory)
    return made


def gradient(rank: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and gradient of the whole batch, of which this rank sees each ``ranks``-th episode."""
    episodes = make_episodes()
    mine = list(range(rank, len(episodes), ranks))
    batch = collate([episodes[i] for i in mine], pad_id=0)
    packed = pack(batch.rewards, batch), pack(batch.mask, batch), torch.tensor([episodes[i].group for i in mine])
    everyone = [packed] * ranks
    tokens = batch.mask.sum().float()
    if ranks > 1:
        distributed.all_gather_object(everyone, packed)
        distributed.all_reduce(tokens)
    rewards, mask, groups = joined(everyone)
    start = sum(len(own[0]) for own in everyone[:rank])
    advantages = reinforce_plus_plus_baseline(rewards, mask, groups)[start : start + len(mine), : packed[1].shape[1]]

    model = make_model()
    logprobs = model(batch.ids)[:, :-1].gather(-1, batch.ids[:, 1:, None])[..., 0]
    logprobs = torch.nn.functional.pad(logprobs, (1, 0))
    per_token = clipped_policy_loss(logprobs, batch.logprobs, unpack(advantages, batch), 0.2, 0.28)
    loss = aggregate(per_token, batch.mask, tokens)
    loss.backward()
    flat = torch.cat([loss.detach()[None], *(p.grad.flatten() for p in model.parameters())])
    if ranks > 1:
        distributed.all_reduce(flat)
    return flat[0], flat[1:]


def joined(parts: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
    """The ranks' packed rewards, masks and groups as one batch."""
    width = max(part[0].shape[1] for part in parts)

    def wide(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (0, width - x.shape[1])) if x.ndim == 2 else x

    return [torch.cat([wide(x) for x in column]) for column in zip(*parts, strict=True)]
