"""What fits a larger model into the same memory: matrix products in bfloat16, and activations that are computed twice."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from trainers.models import flex_attention as packing
from trainers.models.prefix_trees import trees_of
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
        backbone.config.get_text_config()._attn_implementation = packing.NAME  # copies are made before this is known
        inputs, where = packing.packed(forest)
    else:
        inputs = {"input_ids": forest.ids, "attention_mask": forest.sees, "position_ids": forest.positions}
        where = forest.where
    with autocast(batch.ids.device, dtype), _recomputing(backbone):
        hidden = backbone(**inputs, use_cache=False).last_hidden_state
    return hidden.float().flatten(0, 1), where.view_as(batch.ids)


def tree_attention(backbone: torch.nn.Module, ids: list[int], dtype: torch.dtype) -> str:
    """How a model can be run on trees: "packed" in one row, on a GPU; "masked", by a mask that says which tokens each token
    sees; or "", not at all, as with some kinds of attention and of positions. Tried on trees of these ids; packed, they are
    longer, and gradients are compared too."""
    config = backbone.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
        return ""  # a window would have to be cut out of what each token sees
    device, usual = next(backbone.parameters()).device, config._attn_implementation
    if device.type == "cuda" and usual in ("sdpa", packing.NAME):
        turned = [ids[n:] + ids[:n] for n in range(3)]
        with torch.enable_grad():
            reason = _differs(backbone, [(x * 500)[:500] for x in turned], device, dtype, "packed")
        if reason is None:
            return "packed"
        config._attn_implementation = usual
        warnings.warn(f"sequences are not packed for FlexAttention: {reason}", stacklevel=2)
    with torch.no_grad():
        return "masked" if _differs(backbone, [ids], device, dtype, "masked") is None else ""


def _differs(
    backbone: torch.nn.Module, starts: list[list[int]], device: torch.device, dtype: torch.dtype, trees: str
) -> str | None:
    """Why trees, each of a sequence and of its first half twice, do not give what single sequences give; None if they do.

    Compared are hidden states and, where they are on, gradients of some weights by them.
    """
    rows = [row for start in starts for row in (start, start[: len(start) // 2] * 2)]
    sequences = [Sequence(ids=r, mask=[False] * len(r), logprobs=[0.0] * len(r), rewards=[0.0] * len(r)) for r in rows]
    batch = collate_sequences(sequences, list(range(len(rows))), 0).to(device)
    real = torch.arange(batch.ids.shape[1], device=device) < batch.lengths[:, None]

    def values(trees: str) -> list[torch.Tensor]:
        hidden, where = hidden_states(backbone, batch, dtype, trees)
        found = [hidden[where[real]]]
        if hidden.requires_grad:
            weights = [p for p in backbone.parameters() if p.requires_grad][:8]
            by_chance = torch.arange(found[0].numel(), device=device).cos().view_as(found[0])
            found += torch.autograd.grad((found[0] * by_chance).sum(), weights)
        return [x.detach() for x in found]

    expected = values("")
    try:
        found = values(trees)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a model may make of such a mask
        return str(error) or type(error).__name__
    errors = [float((x - y).norm() / x.norm()) for x, y in zip(expected, found, strict=True)]
    of_values, of_gradients = (1e-3, 1e-2) if dtype == torch.float32 else (0.05, 0.1)
    if errors[0] <= of_values and max(errors[1:], default=0.0) <= of_gradients:
        return None
    return f"hidden states and gradients differ by {errors}"


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
