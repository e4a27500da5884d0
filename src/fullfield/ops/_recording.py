"""Recording of CUDA graphs, and ordering of calls across streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor


def record_cuda_graph(launch: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """Record ``launch``, which must have run before, as a CUDA graph. Waits for the device."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # Relaxed, because other threads may allocate meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
            launch()
    return graph


class StreamOrderedCalls:
    """Context manager that runs every call after the previous one, on any streams.

    While the caller records a CUDA graph, the order is the caller's. On devices other than CUDA calls are in order
    anyway.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._finished: torch.cuda.Event | None = None
        self._recorded_streams: set[int] = set()

    def clear_recorded_streams(self) -> None:
        """Forget which streams hold the tensors: they have changed, and every stream's next call records them."""
        self._recorded_streams.clear()

    @contextmanager
    def __call__(self, tensors: Callable[[], Iterator[Tensor]]) -> Iterator[None]:
        """Enclose a call.

        Args:
            tensors: returns the tensors that the call uses. Their memory is reused only after the streams that used
                them have finished.
        """
        on_gpu = self._device.type == "cuda"
        on_device = torch.cuda.device(self._device) if on_gpu else nullcontext()
        with torch.inference_mode(False), torch.no_grad(), on_device:
            if not on_gpu or torch.cuda.is_current_stream_capturing():
                yield
                return
            stream = torch.cuda.current_stream()
            if self._finished is not None:
                stream.wait_event(self._finished)
            try:
                yield
            finally:
                self._finished = stream.record_event()
                if stream.cuda_stream not in self._recorded_streams:
                    self._recorded_streams.add(stream.cuda_stream)
                    for tensor in tensors():
                        tensor.record_stream(stream)
