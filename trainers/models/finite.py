"""Numbers that are NaN or infinite: a policy that holds one gives nonsense for every input, and training spreads it."""

from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor

from trainers.runtime.errors import UserError


def check_finite(tensors: Iterable[tuple[str, torch.Tensor]], where: object) -> None:
    """Raise a ValueError that names the first of these tensors that holds NaN or infinity.

    Args:
        tensors: with their names; those of integers are finite. Of one that is sharded, this process's part is looked at.
        where: what they belong to, for the message.
    """
    named = [(name, _local(tensor)) for name, tensor in tensors if tensor.is_floating_point()]
    if not named:
        return
    finite = torch.stack([tensor.isfinite().all() for _, tensor in named])
    if not finite.all():
        name = named[int(finite.int().argmin())][0]
        raise UserError(f"{where} holds numbers that are NaN or infinite, in {name}")


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
