"""Facts about a model from its configuration: layers below the head, kinds of layers, longest conversation."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from transformers import PreTrainedConfig, PreTrainedModel

_WIDTH = re.compile(r"window(?!_layers|_pattern)|^attention_chunk_size$|^local_attention$")  # not numbers of layers
_LENGTHS = ("max_position_embeddings", "max_seq_len", "max_sequence_length", "n_positions", "n_ctx")


def find_backbone(model: PreTrainedModel) -> torch.nn.Module:
    """Return the layers below the head, without those for pictures: the decoder of ``base_model``, or the model inside of it
    if it has a head itself, as in Llama 4."""
    decoder = cast(PreTrainedModel, model.base_model).get_decoder()
    while decoder.get_output_embeddings() is not None:
        decoder = next(child for child in decoder.children() if isinstance(child, PreTrainedModel))
    return decoder


def layer_kinds(config: PreTrainedConfig) -> set[str]:
    """Return the kinds of layers by their names in `transformers`, such as "full_attention"."""
    if kinds := getattr(config, "layer_types", None):
        return set(kinds)
    return {"sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"}


def local_widths(config: PreTrainedConfig) -> list[int]:
    """Return the widths in tokens of windows and blocks that limit attention in any layer, found by their names in the config."""
    return [value for name, value in config.to_dict().items() if _WIDTH.search(name) and type(value) is int and value]


@contextmanager
def narrow_window(config: PreTrainedConfig, width: int) -> Iterator[None]:
    """Narrow the sliding window, if there is one, to at most ``width`` tokens: the masks of a pass are made from the config."""
    window = getattr(config, "sliding_window", None)
    if not window or window <= width:
        yield
        return
    config.sliding_window = width
    try:
        yield
    finally:
        config.sliding_window = window


def max_positions(config: PreTrainedConfig) -> float:
    """Return the most tokens that the model can read, by its positions and rope scaling; ``math.inf`` if unlimited."""
    known: list[Any] = [getattr(config, name, None) for name in _LENGTHS]
    positions: float = next((length for length in known if length), math.inf)
    rope = getattr(config, "rope_parameters", None) or {}
    kind, original = rope.get("rope_type"), rope.get("original_max_position_embeddings") or positions
    if kind in ("dynamic", "longrope"):  # beyond these, angles depend on the length, even those of cached keys
        return min(positions, original)
    if kind in ("yarn", "linear"):  # for other kinds the positions are stretched already
        return max(positions, original * rope["factor"])
    return positions
