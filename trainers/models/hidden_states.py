"""The forward pass without the head: in bfloat16, over prefix trees, with gradient checkpointing."""

import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from trainers.models import flex_attention, llama_parts, row_attention
from trainers.models.architecture import layer_kinds, local_widths
from trainers.models.prefix_trees import TOKEN_COST, TOKEN_COST_WITHOUT_MASK, build_trees
from trainers.trajectory import Batch, BatchRow, collate_rows


def has_bfloat16_products(device: str | torch.device) -> bool:
    """Return whether a device has bfloat16 matmul. CPUs that emulate it take 5 (AVX-512) to 80 times as long as in float32."""
    if torch.device(device).type != "cpu":
        return True
    if platform.machine().lower() in ("x86_64", "amd64") and not (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    ):
        return False
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Return a context in which matrix products and attention run in ``dtype``; weights, norms and sums stay as they are."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


def round_frozen(model: PreTrainedModel) -> None:
    """Store the frozen linear layers in bfloat16, in place, as `autocast` would round them in each pass. This halves their
    memory. The embedding and the head stay float32."""
    head = model.get_output_embeddings()
    kept = set() if head is None else {*head.modules()}  # including the layers of its adapter
    for module in model.modules():
        for parameter in module.parameters(recurse=False) if isinstance(module, torch.nn.Linear) else ():
            if module not in kept and not parameter.requires_grad:
                parameter.data = parameter.data.to(torch.bfloat16)


def round_experts(model: PreTrainedModel) -> None:
    """Store frozen experts, which are stacked in single tensors, in bfloat16, in place: their products run in that dtype."""
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False) if name.endswith("experts") else ():
            if not parameter.requires_grad:
                parameter.data = parameter.data.to(torch.bfloat16)


def recompute_activations(model: PreTrainedModel) -> None:
    """Turn on gradient checkpointing (Chen et al. 2016) in `compute_hidden_states`.

    Raises:
        ValueError: the model has no layers that support it.
    """
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    # Layers draw no random numbers. Another thread may be sampling, and its generator must not be reset.
    enable({"use_reentrant": False, "preserve_rng_state": False})
    if not (layers := _checkpointed_layers(model)):
        raise ValueError(f"{type(model).__name__} has no layers whose activations could be recomputed")
    for layer in layers:  # some drop out by themselves in training mode, which `_recompute_in_training` puts them into
        for name in [name for name, value in vars(layer).items() if "dropout" in name and isinstance(value, float)]:
            setattr(layer, name, 0.0)


HiddenStates = tuple[torch.Tensor, torch.Tensor]
"""The result of `compute_hidden_states`: hidden states [N, H], and the index of each token's hidden state [B, T]."""


def compute_hidden_states(
    backbone: torch.nn.Module, batch: Batch, dtype: torch.dtype, tree_attention: str
) -> HiddenStates:
    """Compute the last hidden states of a model without its head, in ``dtype``.

    Args:
        tree_attention: a result of `choose_tree_attention`; "" runs each row by itself.

    Returns:
        float32 [N, H], one for each node of the trees or each token; and each token's index among them, int64 [B, T].
    """
    token_cost = token_cost_of(tree_attention)
    trees = None if token_cost is None else build_trees(batch, token_cost)
    inputs: dict[str, Any]
    if _text_config(backbone).model_type in llama_parts.MODEL_TYPES:
        llama_parts.use_fused_layers(backbone, tree_attention == "fused")
    if trees is None or (tree_attention == "masked" and len(trees.ids) == len(batch.ids)):
        # Rows are padded on the right and attention is causal, so no real token attends to padding: no mask is needed.
        inputs, node_index = {"input_ids": batch.ids}, torch.arange(batch.ids.numel(), device=batch.ids.device)
    elif tree_attention in ("packed", "fused"):
        # Set each time: copies of the model are made before the attention is known.
        _text_config(backbone)._attn_implementation = flex_attention.ATTENTION_NAME
        inputs, node_index = flex_attention.pack_trees(trees)
    elif tree_attention == "rows":
        _text_config(backbone)._attn_implementation = row_attention.ATTENTION_NAME
        inputs, node_index = row_attention.pack_rows(trees, batch.lengths)
    else:
        inputs = {"input_ids": trees.ids, "attention_mask": trees.attention_mask, "position_ids": trees.positions}
        node_index = trees.node_index
    with autocast(batch.ids.device, dtype), _recompute_in_training(backbone):
        hidden = backbone(**inputs, use_cache=False).last_hidden_state
    return hidden.float().flatten(0, 1), node_index.view_as(batch.ids)


def token_cost_of(tree_attention: str) -> int | None:
    """Return the token cost of `prefix_trees.group_by_prefix` for this tree attention; None without trees."""
    if not tree_attention:
        return None
    return TOKEN_COST if tree_attention == "masked" else TOKEN_COST_WITHOUT_MASK


class ForwardTokenMeter:
    """Counter of the tokens that go through a model without its head, padding included, in ``count``.

    Passes of copies and recomputed activations do not count.
    """

    def __init__(self, backbone: torch.nn.Module):
        self.count = 0
        backbone.register_forward_pre_hook(self._add, with_kwargs=True)

    def _add(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = args[0] if args else kwargs.get("input_ids")
        self.count += kwargs["inputs_embeds"][..., 0].numel() if ids is None else ids.numel()


def choose_tree_attention(backbone: torch.nn.Module, ids: list[int], dtype: torch.dtype) -> str:
    """Choose how a model runs prefix trees, by comparing each way with single sequences made of ``ids``.

    On a GPU "packed" (one row) or "fused" (the same in our own layers). On a CPU, for a wide model, "rows" (layers over nodes,
    attention over rows). Else "masked" (an attention mask) or "" (no trees). Except for "masked", gradients must agree too.
    """
    config = _text_config(backbone)
    if layer_kinds(config) != {"full_attention"} or local_widths(config):
        return ""  # a window would have to be cut out of the mask
    device, usual, starts = next(backbone.parameters()).device, config._attn_implementation, [ids]
    best: list[str] = []
    if device.type == "cuda" and usual in ("sdpa", flex_attention.ATTENTION_NAME):
        # All sequences are in one tree, with branches over many blocks.
        best, starts = ["packed"], [((ids * 60)[:60] + (ids[n:] + ids[:n]) * 500)[:500] for n in range(3)]
        if config.model_type in llama_parts.MODEL_TYPES:
            best = ["fused", "packed"]
    elif device.type == "cpu" and usual in ("sdpa", row_attention.ATTENTION_NAME):
        best = ["rows"] * (config.hidden_size >= row_attention.MIN_WIDTH)
    for name in best:
        with torch.enable_grad():
            reason = _find_difference(backbone, starts, device, dtype, name)
        if reason is None:
            return name
        warnings.warn(f"updates run without {name!r} attention, which is slower: {reason}", stacklevel=2)
    config._attn_implementation = usual
    with torch.no_grad():
        return "masked" if _find_difference(backbone, [ids], device, dtype, "masked") is None else ""


def _text_config(backbone: torch.nn.Module) -> PreTrainedConfig:
    return cast(PreTrainedModel, backbone).config.get_text_config()


def _find_difference(
    backbone: torch.nn.Module, starts: list[list[int]], device: torch.device, dtype: torch.dtype, tree_attention: str
) -> str | None:
    """Say how trees differ from single sequences; None if they agree. Each tree has a sequence and its first half twice.

    Compares hidden states and, if enabled, gradients of some weights.
    """
    rows = [row for start in starts for row in (start, start[: len(start) // 2] * 2)]
    sequences = [BatchRow(ids=r, mask=[False] * len(r), logprobs=[0.0] * len(r), rewards=[0.0] * len(r)) for r in rows]
    batch = collate_rows(sequences, list(range(len(rows))), 0).to(device)
    real = torch.arange(batch.ids.shape[1], device=device) < batch.lengths[:, None]
    weights = [p for p in backbone.parameters() if p.requires_grad][:16]  # all of a layer, with its norms

    def values(tree_attention: str) -> list[torch.Tensor]:
        hidden, node_index = compute_hidden_states(backbone, batch, dtype, tree_attention)
        found = [hidden[node_index[real]]]
        # The hidden states of a frozen copy of a model that recomputes activations have gradients, but no weight has.
        if weights and hidden.requires_grad:
            direction = torch.arange(found[0].numel(), device=device).cos().view_as(found[0])
            found += torch.autograd.grad((found[0] * direction).sum(), weights)
        return [x.detach() for x in found]

    expected = values("")
    try:
        found = values(tree_attention)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # a model may fail on such a mask in any way
        return str(error) or type(error).__name__
    # Some gradients are zero, as those of the first matrices of a new adapter.
    errors = [float((x - y).norm() / x.norm().clamp_min(1e-30)) for x, y in zip(expected, found, strict=True)]
    # In bfloat16 some gradients of single sequences, those of queries and keys, are themselves off by 0.05.
    of_values, of_gradients = (1e-3, 1e-2) if dtype == torch.float32 else (0.05, 0.25)
    if errors[0] <= of_values and all(error <= of_gradients for error in errors[1:]):  # False for NaN
        return None
    return f"hidden states and gradients differ by {errors}"


def _checkpointed_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer) and m.gradient_checkpointing]


@contextmanager
def _recompute_in_training(backbone: torch.nn.Module) -> Iterator[None]:
    """Put layers into training mode, in which the library recomputes activations, but not the dropout modules inside them."""
    layers = _checkpointed_layers(backbone) if torch.is_grad_enabled() else []
    try:
        for layer in layers:
            layer.training = True
        yield
    finally:
        for layer in layers:
            layer.training = False
