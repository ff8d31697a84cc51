"""What fits a larger model into the same memory: matrix products in bfloat16, and activations that are computed twice."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Inside, matrix products and attention run in ``dtype``; weights, norms and sums stay as they are."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


def round_frozen(model: PreTrainedModel) -> None:
    """Store the frozen linear layers in bfloat16, in place: the numbers that `autocast` would round them to each time,
    in half the memory. The embedding and the head stay float32."""
    head = model.get_output_embeddings()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module is not head and not module.weight.requires_grad:
            module.to(torch.bfloat16)


def recompute_activations(model: PreTrainedModel) -> None:
    """Gradient checkpointing (Chen et al. 2016): of each layer only the input is kept, and the layer runs once more in
    the backward pass. Takes effect in `hidden_states`.

    Raises:
        ValueError: the model has no layers that can do so.
    """
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    if not _recomputed(model):
        raise ValueError(f"{type(model).__name__} has no layers whose activations could be recomputed")


def hidden_states(backbone: torch.nn.Module, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The last hidden states, float32 [B, T, H], of a model without its head, run in ``dtype`` over ids [B, T]."""
    with autocast(ids.device, dtype), _recomputing(backbone):
        return backbone(ids, use_cache=False).last_hidden_state.float()


def _recomputed(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer) and m.gradient_checkpointing]


@contextmanager
def _recomputing(backbone: torch.nn.Module) -> Iterator[None]:
    """The library recomputes layers in training mode alone, where there is dropout too. So here the layers say that they
    train, and the modules in them, dropout among them, do not."""
    layers = _recomputed(backbone) if torch.is_grad_enabled() else []
    modes = [layer.training for layer in layers]
    try:
        for layer in layers:
            layer.training = True
        yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.training = mode
