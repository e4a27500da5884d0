"""CUDA graphs, and calls in order on whatever streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor


def record(work: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """``work``, which has run before, as a graph. Waits for the device."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # Relaxed: other threads may allocate meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
            work()
    return graph


class InOrder:
    """Puts every call behind the one before, whichever streams they are on. Inside a graph that the caller records the
    order is the caller's; on other devices than CUDA's calls are in order anyway."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._done: torch.cuda.Event | None = None
        self._seen: set[int] = set()

    def forget(self) -> None:
        """The tensors are others from now on, on every stream."""
        self._seen.clear()

    @contextmanager
    def __call__(self, tensors: Callable[[], Iterator[Tensor]]) -> Iterator[None]:
        """``tensors``: what the call uses; once it is let go, its memory waits for the streams it was used on."""
        on_gpu = self._device.type == "cuda"
        here = torch.cuda.device(self._device) if on_gpu else nullcontext()
        with torch.inference_mode(False), torch.no_grad(), here:
            if not on_gpu or torch.cuda.is_current_stream_capturing():
                yield
                return
            stream = torch.cuda.current_stream()
            if self._done is not None:
                stream.wait_event(self._done)
            try:
                yield
            finally:
                self._done = stream.record_event()
                if stream.cuda_stream not in self._seen:
                    self._seen.add(stream.cuda_stream)
                    for tensor in tensors():
                        tensor.record_stream(stream)
