"""What fits a larger model into the same memory: matrix products in bfloat16, and activations that are computed twice."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from trainers import packing
from trainers.prefixes import trees_of
from trainers.trajectory import Batch, Sequence, collate_sequences


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
    # Nothing here is drawn by chance, and another thread may be drawing: its generator must not be set back.
    enable({"use_reentrant": False, "preserve_rng_state": False})
    if not _recomputed(model):
        raise ValueError(f"{type(model).__name__} has no layers whose activations could be recomputed")


def hidden_states(
    backbone: torch.nn.Module, batch: Batch, dtype: torch.dtype, trees: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The last hidden states of a model without its head, run in ``dtype``.

    Args:
        trees: how rows that begin alike are run as trees, by `tree_attention`; "" runs each by itself.

    Returns:
        float32 [N, H], and where each of the batch's tokens is among the N, int64 [B, T].
    """
    forest = trees_of(batch, alone=trees == "packed") if trees else None
    if forest is None:
        # Rows are padded on the right and attention is causal, so no real token can see padding: no mask is needed.
        inputs, where = {"input_ids": batch.ids}, torch.arange(batch.ids.numel(), device=batch.ids.device)
    elif trees == "packed":
        inputs, where = packing.packed(forest)
    else:
        inputs = {"input_ids": forest.ids, "attention_mask": forest.sees, "position_ids": forest.positions}
        where = forest.where
    with autocast(batch.ids.device, dtype), _recomputing(backbone):
        hidden = backbone(**inputs, use_cache=False).last_hidden_state
    return hidden.float().flatten(0, 1), where.view_as(batch.ids)


def tree_attention(backbone: torch.nn.Module, ids: list[int], dtype: torch.dtype) -> str:
    """How a model can be run on trees: "packed" in one row, on a GPU; "masked", by a mask that says which tokens each token
    sees; or "", not at all, as with some kinds of attention and of positions. Tried on two branches: the ids, and their first
    half twice. Packed, gradients are compared too, and the model gets the attention that it takes."""
    config = backbone.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
        return ""  # a window would have to be cut out of what each token sees
    branches = [ids, ids[: len(ids) // 2] * 2]
    sequences = [
        Sequence(ids=b, mask=[False] * len(b), logprobs=[0.0] * len(b), rewards=[0.0] * len(b)) for b in branches
    ]
    batch = collate_sequences(sequences, [0, 1], 0).to(next(backbone.parameters()).device)
    usual = config._attn_implementation
    if batch.ids.is_cuda and usual in ("sdpa", packing.NAME):
        with torch.enable_grad():
            expected = _tried(backbone, batch, dtype, "")
            config._attn_implementation = packing.NAME
            if _alike(expected, _tried(backbone, batch, dtype, "packed"), dtype):
                return "packed"
        config._attn_implementation = usual
    with torch.no_grad():
        expected, found = (_tried(backbone, batch, dtype, way) for way in ("", "masked"))
    return "masked" if _alike(expected, found, dtype) else ""


def _tried(backbone: torch.nn.Module, batch: Batch, dtype: torch.dtype, trees: str) -> list[torch.Tensor] | None:
    """The hidden states of each real token, and gradients of some weights by them; None where the model raises an error."""
    real = torch.arange(batch.ids.shape[1], device=batch.ids.device) < batch.lengths[:, None]
    try:
        hidden, where = hidden_states(backbone, batch, dtype, trees)
        found = [hidden[where[real]]]
        if hidden.requires_grad:
            weights = [p for p in backbone.parameters() if p.requires_grad][:8]
            by_chance = torch.arange(found[0].numel(), device=hidden.device).cos().view_as(found[0])
            found += torch.autograd.grad((found[0] * by_chance).sum(), weights)
    except Exception:  # whatever a model may make of such a mask
        return None
    return [x.detach() for x in found]


def _alike(expected: list[torch.Tensor] | None, found: list[torch.Tensor] | None, dtype: torch.dtype) -> bool:
    if not expected or not found:
        return False
    values, gradients = (1e-3, 1e-2) if dtype == torch.float32 else (0.05, 0.2)
    most = [values, *[gradients] * (len(found) - 1)]
    return all(float((x - y).norm()) <= m * float(x.norm()) for x, y, m in zip(expected, found, most, strict=True))


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
