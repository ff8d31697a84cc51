"""The cold start of a task, watched: the held-out loss of each kind of lesson on the way, and how fast it is.

    OMP_NUM_THREADS=1 python -m benchmarks.training.cold_start --seed 1

Lessons that are held out are of worlds and questions that the cold start never sees. The speed stands beside what matrix products
of the same shapes, as many rows as a batch has tokens, reach on this machine just before: a forward pass is one product with each
matrix of the layers, a backward pass two. The embedding, the head, attention, the optimizer and the making of demonstrations come
on top. Ends with one line of JSON.
"""

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import tyro

from agent_envs.generators.miniwiki import World
from agent_envs.vector import ToolVectorEnv
from trainers.factory import make_envs
from trainers.imitation import scripted
from trainers.models.policy import Policy
from trainers.tiny import curriculum
from trainers.trajectory import Sequence, collate_sequences

HELD_OUT = 64  # sequences of each kind
WORLD = 987_654


@dataclass(kw_only=True)
class Args:
    """Watch a cold start of MiniWiki's varied worlds."""

    seed: int = 0
    """Of the policy and of the lessons."""
    steps: int = curriculum.IN_VARIED_WORLDS.steps
    """Gradient steps."""
    every: int = 150
    """Gradient steps between two looks at the held-out lessons."""

    def __post_init__(self):
        if self.steps < 1 or self.every < 1:
            raise ValueError("steps and every must be at least 1")


def make_held_out(policy: Policy, envs: ToolVectorEnv) -> dict[str, list[Sequence]]:
    """Lessons of each kind that the cold start does not see."""
    rng, world = random.Random("held out"), World(600, WORLD, difficulty="varied")
    return {
        "pairs": scripted.pairs(HELD_OUT, world, policy, rng),
        "comparing": scripted.comparing(HELD_OUT, world, policy, rng),
        "guided": curriculum.guided(policy, envs, rng)[:HELD_OUT],
        "episodes": curriculum.episodes(policy, envs, rng)[:HELD_OUT],
    }


@torch.no_grad()
def mean_loss(policy: Policy, sequences: list[Sequence]) -> float:
    """Cross-entropy, in nats a taught token."""
    total = tokens = 0.0
    policy.model.eval()
    for rows in curriculum.split_by_length(sequences, 8000):
        batch = collate_sequences(rows, list(range(len(rows))), policy.pad_id)
        logprobs, _ = policy.logprobs(batch)
        total -= float((logprobs * batch.mask).sum())
        tokens += float(batch.mask.sum())
    policy.model.train()
    return total / tokens


def layer_matrices(policy: Policy) -> list[torch.Tensor]:
    """The weights that every token is multiplied with, but for embedding and head."""
    return [p.detach() for name, p in policy.model.named_parameters() if p.ndim == 2 and "embed" not in name]


def product_tokens_per_second(matrices: list[torch.Tensor], tokens: int, repeats: int = 20) -> float:
    """Tokens a second of the products alone that a gradient step takes of ``tokens`` rows: the best of some repeats."""
    inputs = [torch.randn(tokens, matrix.shape[1]) for matrix in matrices]
    gradients = [torch.randn(tokens, matrix.shape[0]) for matrix in matrices]
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        for x, matrix, gradient in zip(inputs, matrices, gradients, strict=True):
            x @ matrix.T
            gradient @ matrix
            gradient.T @ x
        best = min(best, time.perf_counter() - begin)
    return tokens / best


def main(args: Args) -> dict:
    envs = make_envs("AgentR1/MiniWiki-v0", "{}", "train", 64)
    torch.manual_seed(args.seed)
    policy, lessons = curriculum.make_policy(envs, args.seed), curriculum.IN_VARIED_WORLDS
    held_out, taken, made, looking = make_held_out(policy, envs), 0, 0.0, 0.0
    limit = product_tokens_per_second(layer_matrices(policy), lessons.tokens_per_step)
    curve: list[dict] = []

    def batches() -> Iterator[tuple[str, list[Sequence]]]:
        nonlocal taken, made
        source = curriculum.make_batches(policy, envs, args.seed, args.steps)
        while True:
            begin = time.perf_counter()
            kind, rows = next(source)
            made += time.perf_counter() - begin
            taken += sum(len(row.ids) for row in rows)
            yield kind, rows

    def report(step: int, kind: str, loss: float) -> None:
        nonlocal looking
        if step % args.every and step != args.steps:
            return
        now = time.perf_counter()
        curve.append({"step": step, "seconds": round(now - begin - looking, 1)})
        curve[-1] |= {name: round(mean_loss(policy, rows), 4) for name, rows in held_out.items()}
        looking += time.perf_counter() - now
        print("  ".join(f"{name} {value}" for name, value in curve[-1].items()), flush=True)

    begin = time.perf_counter()
    curriculum.fit(policy, batches(), lambda step: step / args.steps, report)
    seconds = time.perf_counter() - begin - looking
    result = {
        "seed": args.seed, "steps": args.steps, "threads": torch.get_num_threads(), "seconds": round(seconds, 1),
        "seconds_of_demonstrations": round(made, 1), "tokens": taken, "tokens_per_second": round(taken / seconds),
        "products_tokens_per_second": round(limit), "of_the_products": round(taken / seconds / limit, 3), "curve": curve,
    }  # fmt: skip
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
