"""Train in several processes that torchrun started: the number of a process, and communication between them.

Each process rolls out its own episodes. Then all hold the same batch and share only the passes through a model. With one
process, all functions return their input. With several, all processes must call the functions in the same order, except
`rank`, `world_size` and `shard`.
"""

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
from torch import distributed

from retrieval_index.verified_array import usable_memory

T = TypeVar("T")
_TIMEOUT = timedelta(hours=2)  # the first process may train the tiny policy, or write a checkpoint, while others wait
_alone = False  # whether this process is inside `first_before_others`


def rank() -> int:
    """Number of this process. The first one, 0, writes all output: metrics, checkpoints and reports."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def world_size() -> int:
    """Number of processes."""
    return distributed.get_world_size() if distributed.is_initialized() and not _alone else 1


def memory_share() -> int:
    """Bytes of the machine's memory for this process: an equal part of what all of them may use."""
    return usable_memory() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


@contextlib.contextmanager
def join_processes() -> Iterator[None]:
    """Join the processes that torchrun started, if any, each with its own GPU. Inside, only the first one prints."""
    started = distributed.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1
    if distributed.is_initialized() or not started:
        yield
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"  # gloo sends episodes between CPUs, without copies to the GPU
    hook = sys.excepthook
    distributed.init_process_group(backend, timeout=_TIMEOUT)
    sys.excepthook = hook  # torch's own would lose the message that the command's hook prints before it exits
    with contextlib.ExitStack() as stack:
        if rank():
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        yield
    distributed.destroy_process_group()


@contextlib.contextmanager
def first_before_others() -> Iterator[None]:
    """Run the body in the first process, then in the others, which find its result in a cache."""
    global _alone
    if rank():
        distributed.barrier()
    _alone = True
    try:
        yield
    finally:
        _alone = False
    if world_size() > 1 and not rank():
        distributed.barrier()


def shard(items: list[T]) -> list[T]:
    """Select this process's slice; the lengths of the slices differ by at most one."""
    number = 0 if _alone else rank()
    return items[number * len(items) // world_size() : (number + 1) * len(items) // world_size()]


def all_gather(items: list[T]) -> list[T]:
    """Concatenate the lists of all processes, in the order of their numbers: the inverse of `shard`."""
    if world_size() == 1:
        return items
    lists: list[list[T]] = [[] for _ in range(world_size())]
    distributed.all_gather_object(lists, items)
    return [item for each in lists for item in each]


def broadcast(value: T) -> T:
    """Return the ``value`` of the first process."""
    if world_size() == 1:
        return value
    values = [value]
    distributed.broadcast_object_list(values)
    return values[0]


def all_reduce_sums(sums: dict[str, float]) -> dict[str, float]:
    """Sum each name over all processes. A name that a process lacks counts as 0."""
    everyone = all_gather([sums])
    return {name: sum(each.get(name, 0.0) for each in everyone) for name in dict.fromkeys(itertools.chain(*everyone))}


def all_reduce_sum(values: torch.Tensor) -> torch.Tensor:
    """Sum a tensor over all processes, in place."""
    if world_size() > 1:
        distributed.all_reduce(values)
    return values


def broadcast_weights(model: torch.nn.Module) -> None:
    """Give all processes the weights of the first; weights made from one seed on different machines may differ."""
    if world_size() > 1:
        for parameter in model.parameters():
            distributed.broadcast(parameter.data, 0)


def reseed(*seed: int, alone: bool = False) -> None:
    """Seed each of several processes differently, so that they do not sample with the same noise. ``alone``: seed a single
    process too."""
    if alone or world_size() > 1:
        torch.manual_seed(int(np.random.SeedSequence([*seed, rank()]).generate_state(1, np.uint64)[0] >> 1))
