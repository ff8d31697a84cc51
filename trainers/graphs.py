"""Decoding steps as CUDA graphs: hundreds of small kernels that the GPU is given at once."""

import warnings
from collections.abc import Callable
from functools import cache

import torch

Step = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def recordable(device: torch.device) -> bool:
    return device.type == "cuda"


def bucket(size: int, least: int) -> int:
    """The next size that steps are recorded for: ``least`` times a power of two, or half way between two of them."""
    power = least
    while power < size:
        power *= 2
    return power * 3 // 4 if power > least and power * 3 // 4 >= size else power


@cache
def _pool() -> tuple[int, int]:
    """One for all graphs: they run one after another, and what each leaves is read before the next one runs."""
    return torch.cuda.graph_pool_handle()


def record(function: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
    """What repeats the kernels of a function, on the tensors that it used, and where it leaves its result."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    caching = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # or weights that were rounded before would not be rounded again
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(_pool(), "thread_local")  # another thread may be training
            try:
                result = function()
            finally:
                graph.capture_end()
    finally:
        torch.set_autocast_cache_enabled(caching)
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay, result


class Graphs:
    """A step, recorded for each number of rows and each width that comes up twice.

    Each recording is compared with the step itself. Where that fails, steps go on as they are, and a warning says so.

    Args:
        step: ids [m, 1], their places [m, 1] and a width to hidden states [m, 1, H]; it may be repeated.
    """

    def __init__(self, step: Step):
        self._step, self._failed = step, False
        self.clear()

    def clear(self) -> None:
        """Forget what was recorded: it is about tensors that are no more."""
        self._recorded: dict[tuple[int, int], tuple | None] = {}
        self._version = -1

    def __call__(self, ids: torch.Tensor, places: torch.Tensor, width: int, version: int) -> torch.Tensor:
        """The step's result, good until the next call. ``version``: another number where other tensors are used."""
        if version != self._version:
            self.clear()
            self._version = version
        size = len(ids), width
        if self._failed or size not in self._recorded:
            self._recorded[size] = None
            return self._step(ids, places, width)
        if self._recorded[size] is None:
            return self._record(ids, places, width)
        own_ids, own_places, replay, result = self._recorded[size]
        own_ids.copy_(ids)
        own_places.copy_(places)
        replay()
        return result

    def _record(self, ids: torch.Tensor, places: torch.Tensor, width: int) -> torch.Tensor:
        expected = self._step(ids, places, width)
        try:
            own = ids.clone(), places.clone()
            replay, result = record(lambda: self._step(*own, width))
            replay()
            difference = float((result - expected).abs().max() / expected.abs().max())
            if not difference <= 1e-2:
                raise ValueError(f"it differs from the step by {difference:.2g}")
        except Exception as error:  # whatever a model does that cannot be recorded
            self._failed = True
            warnings.warn(f"decoding goes on without CUDA graphs: {error}", stacklevel=2)
            return expected
        self._recorded[len(ids), width] = (*own, replay, result)
        return expected
