"""Decoding steps as CUDA graphs: hundreds of small kernels that the GPU is given at once."""

import warnings
from collections.abc import Callable

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


class Recorder:
    """Records on one stream into one pool of memory, which graphs share: they run one after another, and what each leaves
    is read before the next one runs. When they are dropped the pool is no more, and another recorder is needed."""

    def __init__(self, device: torch.device):
        # The current device is each thread's own, and steps may be taken by another one than that which chose it.
        self._device = device
        with torch.cuda.device(device):
            self._stream, self._pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """What repeats the kernels of a function, on the tensors that it used, and where it leaves its result."""
        caching = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # or weights that were rounded before would not be rounded again
        try:
            with torch.cuda.device(self._device):
                graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
                self._stream.wait_stream(current)
                with torch.cuda.stream(self._stream):
                    graph.capture_begin(self._pool, "thread_local")  # another thread may be training
                    try:
                        result = function()
                    finally:
                        graph.capture_end()
                current.wait_stream(self._stream)
        finally:
            torch.set_autocast_cache_enabled(caching)
        return graph.replay, result


class Graphs:
    """A step, recorded for each number of rows and each width that comes up twice.

    Each recording is compared with the step itself. Where that fails, steps go on as they are, and a warning says so.
    """

    def __init__(self):
        self._failed = False
        self.clear()

    def clear(self) -> None:
        """Forget what was recorded: it is about tensors that are no more."""
        self._recorded: dict[tuple[int, int], tuple | None] = {}
        self._recorder: Recorder | None = None
        self._version = -1

    @property
    def count(self) -> int:
        """How many are recorded."""
        return sum(recorded is not None for recorded in self._recorded.values())

    def __call__(self, step: Step, ids: torch.Tensor, places: torch.Tensor, width: int, version: int) -> torch.Tensor:
        """A step's result, good until the next call.

        Args:
            step: ids [m, 1], their places [m, 1] and a width to hidden states [m, 1, H]; it may be repeated.
            version: another number where the step uses other tensors.
        """
        if version != self._version:
            self.clear()
            self._version = version
        size = len(ids), width
        if self._failed or size not in self._recorded:
            self._recorded[size] = None
            return step(ids, places, width)
        if self._recorded[size] is None:
            return self._record(step, ids, places, width)
        own_ids, own_places, replay, result = self._recorded[size]
        own_ids.copy_(ids)
        own_places.copy_(places)
        replay()
        return result

    def _record(self, step: Step, ids: torch.Tensor, places: torch.Tensor, width: int) -> torch.Tensor:
        expected = step(ids, places, width)
        own = ids.clone(), places.clone()
        try:
            self._recorder = self._recorder or Recorder(ids.device)
            replay, result = self._recorder(lambda: step(*own, width))
            result.fill_(torch.nan)  # what was computed while recording is no proof
            replay()
            difference = float((result - expected).abs().max() / expected.abs().max())
            if not difference <= 1e-2:
                raise ValueError(f"it differs from the step by {difference:.2g}")
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a model does that cannot be recorded
            self._failed = True
            warnings.warn(f"decoding goes on without CUDA graphs: {error}", stacklevel=2)
            return expected
        self._recorded[len(ids), width] = (*own, replay, result)
        return expected
