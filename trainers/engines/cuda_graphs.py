"""Decoding steps as CUDA graphs: hundreds of small kernels that are launched at once.

With them a step of a 3 B model takes 9.7 ms on an H200 (docs/results/gpu.md).
"""

import gc
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch

SPARE = 2**30  # bytes of the device that are free before a capture, during which PyTorch gives no cached memory back
DecodeStep = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def supports_cuda_graphs(device: torch.device) -> bool:
    """Whether decoding steps on this device can be captured."""
    return device.type == "cuda"


def bucket_size(size: int, smallest: int) -> int:
    """Round up to a size that steps are captured for: ``smallest`` times a power of two, or half way between two of these."""
    power = smallest
    while power < size:
        power *= 2
    return power * 3 // 4 if power > smallest and power * 3 // 4 >= size else power


class GraphCapturer:
    """Capturer of graphs on one stream into one memory pool, which the graphs can share as they run one after another.

    Dropping all its graphs drops the pool: make a new capturer then.
    """

    def __init__(self, device: torch.device):
        # Each thread has its own current device, and another thread than this one may take the steps.
        self._device = device
        with torch.cuda.device(device):
            self._stream, self._pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """Capture the kernels of a function; return a function that replays them on the same tensors, and the result.

        After a failure, as when the allocator frees memory meanwhile, the capturer is unusable.
        """
        caching, collecting = torch.is_autocast_cache_enabled(), gc.isenabled()
        torch.set_autocast_cache_enabled(False)  # or replays would not round weights that were rounded before
        gc.disable()  # objects such as dropped graphs must not be freed during a capture
        try:
            with torch.cuda.device(self._device):
                if torch.cuda.mem_get_info()[0] < SPARE:
                    torch.cuda.empty_cache()
                graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
                self._stream.wait_stream(current)
                with torch.cuda.stream(self._stream):
                    graph.capture_begin(self._pool, "thread_local")  # another thread may be training
                    try:
                        result = function()
                    finally:
                        self._end(graph)
                current.wait_stream(self._stream)
        finally:
            torch.set_autocast_cache_enabled(caching)
            if collecting:
                gc.enable()
        return graph.replay, result

    def _end(self, graph: torch.cuda.CUDAGraph) -> None:
        try:
            graph.capture_end()
        except Exception:
            # PyTorch before 2.12 would count the capture as running, and never give cached memory back.
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
            # The device's generator is still in the state of a capture, and could draw nothing: continue with a copy of it.
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            raise


@dataclass(slots=True, frozen=True)
class _Graph:
    """``replay`` reads ``ids`` and ``columns``, and writes ``result``."""

    ids: torch.Tensor
    columns: torch.Tensor
    replay: Callable[[], None]
    result: torch.Tensor


class CUDAGraphCache:
    """Graphs of decoding steps, one for each pair of row count and width that occurs twice, compared with the step itself.

    If the comparison fails, steps run without graphs, with a warning.
    """

    def __init__(self) -> None:
        self._failed = False
        self.clear()

    def clear(self) -> None:
        """Drop all graphs, once the tensors that they read are gone."""
        self._graphs: dict[tuple[int, int], _Graph | None] = {}
        self._capturer: GraphCapturer | None = None
        self._version = -1

    @property
    def count(self) -> int:
        """Number of graphs."""
        return sum(graph is not None for graph in self._graphs.values())

    def __call__(
        self, step: DecodeStep, ids: torch.Tensor, columns: torch.Tensor, width: int, version: int
    ) -> torch.Tensor:
        """Return the result of a step, valid until the next call.

        Args:
            step: function from ids [m, 1], their columns in the cache [m, 1] and a width to hidden states [m, 1, H]. It may run
                more than once.
            version: changes when the step uses other tensors.
        """
        if version != self._version:
            self.clear()
            self._version = version
        size = len(ids), width
        if self._failed or size not in self._graphs:
            self._graphs[size] = None
            return step(ids, columns, width)
        graph = self._graphs[size]
        if graph is None:
            return self._capture(step, ids, columns, width)
        graph.ids.copy_(ids)
        graph.columns.copy_(columns)
        graph.replay()
        return graph.result

    def _capture(self, step: DecodeStep, ids: torch.Tensor, columns: torch.Tensor, width: int) -> torch.Tensor:
        expected = step(ids, columns, width)
        static_ids, static_columns = ids.clone(), columns.clone()
        try:
            self._capturer = self._capturer or GraphCapturer(ids.device)
            replay, result = self._capturer(lambda: step(static_ids, static_columns, width))
            result.fill_(torch.nan)  # so that only a replay that works gives the expected numbers
            replay()
            difference = float((result - expected).abs().max() / expected.abs().max())
            if not difference <= 1e-2:
                raise ValueError(f"it differs from the step by {difference:.2g}")
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # a model may do anything that cannot be captured
            self._failed = True
            warnings.warn(f"decoding goes on without CUDA graphs: {error}", stacklevel=2)
            return expected
        self._graphs[len(ids), width] = _Graph(static_ids, static_columns, replay, result)
        return expected
