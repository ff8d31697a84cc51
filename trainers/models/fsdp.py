"""Weights, gradients and optimizer states shared out over several processes: FSDP2 (`torch.distributed.fsdp.fully_shard`).

What is sharded is a copy to train. The policy that episodes are played with stays as it was, whole, in every process: an
engine may do with its weights what it likes and always finds them at the same address. Each update begins with its weights
and ends by bringing it those that were learned.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from trainers.distributed import rank, ranks
from trainers.models.lora import copy_trainable
from trainers.models.policy import Policy


class _Root(torch.nn.Module):
    """A model whose weights are there while a function runs, whatever way it goes through them."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


def started(start: Callable, policy: Policy):
    """The `trainers.runs.training.Learner` of a policy; with several processes, one that trains a sharded copy of it."""
    if ranks() == 1:
        return start(policy)
    trained = copy.copy(policy)
    trained.tree_attention = policy.tree_attention  # tried while the model is whole
    trained.model = copy_trainable(policy.model, policy.model)
    learner = start(trained)
    root = _Root(trained.model)
    _shard([root, *(m for m in learner.modules.values() if list(m.parameters()))], learner.optimizers)
    # The layers are called from outside of the model's own forward, so that is not what gathers the rest of its weights.
    passes = trained.logprobs
    trained.logprobs = lambda *args, **kwargs: root(partial(passes, *args, **kwargs))

    @torch.no_grad()
    def bring(back: bool) -> None:
        root.reshard()  # a pass without a gradient leaves the weights of the root gathered
        for ours, shard in zip(policy.model.parameters(), trained.model.parameters(), strict=True):
            if shard.requires_grad and back:
                ours.copy_(shard.full_tensor())
            elif shard.requires_grad:
                shard.copy_(laid_out(ours, shard))

    def update(*args) -> dict[str, float]:
        bring(back=False)
        metrics = learner.update(*args)
        bring(back=True)
        return metrics

    return replace(learner, update=update)


def _shard(roots: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer]) -> None:
    """Shard models in place, layer by layer; the optimizers, which have no state yet, go on with the shards."""
    before = [list(root.parameters()) for root in roots]
    mesh = init_device_mesh(before[0][0].device.type, (ranks(),))
    for root in roots:
        layers = [module for module in root.modules() if isinstance(module, GradientCheckpointingLayer)]
        for module in (*reversed(layers), root):  # what lies inside comes first
            fully_shard(module, mesh=mesh)
    shards = {
        id(old): new
        for root, whole in zip(roots, before, strict=True)
        for old, new in zip(whole, root.parameters(), strict=True)
        if old.requires_grad
    }
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["params"] = [shards[id(parameter)] for parameter in group["params"]]


def whole(state: Any) -> Any:
    """A state with its shards put together, on the CPU of the first process; the others, which must call this too, get None
    in their place."""
    if isinstance(state, DTensor):
        tensor = state.full_tensor()
        return None if rank() else tensor.cpu()
    if isinstance(state, dict):
        return {name: whole(value) for name, value in state.items()}
    return [whole(value) for value in state] if isinstance(state, list) else state


def laid_out(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor, which every process has, as this one holds ``like``."""
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def state_laid_out(state: dict, optimizer: torch.optim.Optimizer) -> dict:
    """A whole ``state_dict`` as this process's shards of the optimizer want it."""
    if ranks() == 1:
        return state
    parameters = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))
    of_parameters = {
        number: {n: laid_out(v, parameters[number]) if torch.is_tensor(v) else v for n, v in values.items()}
        for number, values in state["state"].items()
        if number in parameters  # where others are missing, the optimizer says so itself
    }
    return {**state, "state": of_parameters}
