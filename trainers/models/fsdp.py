"""Weights, gradients and optimizer states sharded over several processes with FSDP2 (`fully_shard`).

Only a copy, which is trained, is sharded. Engines sample from the whole policy, whose weights keep their addresses. A run copies
them into the shards once, at its start, and the trained ones back after each update.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from trainers.models.hidden_states import HiddenStates
from trainers.models.lora import copy_trainable
from trainers.models.policy import Policy
from trainers.runtime.distributed import rank, world_size
from trainers.trajectory import Batch


class _Root(torch.nn.Module):
    """A module that gathers its model's weights while a function runs, which may call layers outside of the model's forward."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


class ShardedPolicy(Policy):
    """A copy of a policy to train, on several processes; a plain copy until `shard` is called."""

    def __init__(self, policy: Policy):
        self.__dict__.update(policy.__dict__)
        self.tree_attention = policy.tree_attention  # chosen while the model is whole
        self.model = copy_trainable(policy.model, policy.model)
        self._root: _Root | None = None

    def shard(self, optimizers: Iterable[torch.optim.Optimizer], modules: Iterable[torch.nn.Module]) -> None:
        """Shard the model and the other trained ``modules`` in place, layer by layer; fresh ``optimizers`` get the shards."""
        self._root = _Root(self.model)
        _shard([self._root, *(m for m in modules if list(m.parameters()))], optimizers)

    def logprobs(
        self, batch: Batch, temperature: float = 1.0, entropy_gradient: bool = False, states: HiddenStates | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        passes = partial(super().logprobs, batch, temperature, entropy_gradient, states)
        return passes() if self._root is None else self._root(passes)

    @torch.no_grad()
    def read_weights(self, policy: Policy) -> None:
        """Copy the weights of the whole policy into the shards."""
        for whole, shard in self._pairs(policy):
            shard.copy_(match_sharding(whole, shard))

    @torch.no_grad()
    def write_weights(self, policy: Policy) -> None:
        """Copy the weights of the shards into the whole policy."""
        for whole, shard in self._pairs(policy):
            whole.copy_(shard.full_tensor())

    def _pairs(self, policy: Policy) -> list[tuple[torch.Tensor, Any]]:
        assert self._root is not None
        self._root.reshard()  # type: ignore[operator]  # a pass without a gradient leaves the root's weights gathered
        pairs = zip(policy.model.parameters(), self.model.parameters(), strict=True)
        return [(whole, shard) for whole, shard in pairs if shard.requires_grad]


def clip_gradients(parameters: Iterable[torch.nn.Parameter], most: float) -> torch.Tensor:
    """Clip gradients, sharded or not, to a total norm of at most ``most``; return the norm before clipping."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, most)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _shard(roots: list[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> None:
    before = [list(root.parameters()) for root in roots]
    mesh = init_device_mesh(before[0][0].device.type, (world_size(),))
    for root in roots:
        layers = [module for module in root.modules() if isinstance(module, GradientCheckpointingLayer)]
        for module in (*reversed(layers), root):  # inner modules come first
            fully_shard(module, mesh=mesh)
    shards = {
        id(old): new
        for root, whole in zip(roots, before, strict=True)
        for old, new in zip(whole, root.parameters(), strict=True)
        if old.requires_grad
    }
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["params"] = [shards[id(parameter)] for parameter in group["params"]]


def gather_state(state: Any) -> Any:
    """Gather a state's shards on the CPU of the first process; the others must call this too and get None for them."""
    if isinstance(state, DTensor):
        tensor = state.full_tensor()
        return None if rank() else tensor.cpu()
    if isinstance(state, dict):
        return {name: gather_state(value) for name, value in state.items()}
    return [gather_state(value) for value in state] if isinstance(state, list) else state


def match_sharding(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Shard a whole tensor, which every process has, as ``like`` is sharded."""
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def shard_state(state: dict, optimizer: torch.optim.Optimizer) -> dict:
    """Shard an optimizer's whole ``state_dict`` as this process's ``optimizer`` needs it."""
    if world_size() == 1:
        return state
    parameters = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))
    of_parameters = {
        number: {n: match_sharding(v, parameters[number]) if torch.is_tensor(v) else v for n, v in values.items()}
        for number, values in state["state"].items()
        if number in parameters  # if any are missing, the optimizer reports it
    }
    return {**state, "state": of_parameters}
