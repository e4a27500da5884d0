"""Pairs of any batch, one call at a time: the backend of ``TVL1Solver``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullfield.ops._launching import FRAMES
from fullfield.ops._recording import StreamOrderedCalls, record_cuda_graph
from fullfield.ops.tvl1.config import TVL1Config
from fullfield.ops.tvl1.cuda.engine import Engine
from fullfield.ops.tvl1.frames import FINITE_FLOW, QueuedFlow, check_finite, check_frame_values

if TYPE_CHECKING:
    from fullfield.ops.tvl1.frames import Progress


class CudaSolver:
    """TV-L1 solver for one size of frames, with the buffers of the last batch size.

    From its second call on a CUDA graph runs the kernels, but not with ``progress`` or while the caller records a graph
    (call once before).
    """

    def __init__(self, height: int, width: int, config: TVL1Config, device: torch.device) -> None:
        self._size, self._config, self._device = (height, width), config, device
        self._engine: Engine | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._used = self._started = False
        self._in_order = StreamOrderedCalls(device)

    def queue(
        self, frame1: Tensor, frame2: Tensor, initial_flow: Tensor | None, progress: Progress | None
    ) -> QueuedFlow:
        """Queue the flow of a batch of pairs; arguments as in ``create_solver`` in ``cpu.py``."""
        if len(frame1) == 0:
            return QueuedFlow(frame1.new_empty(0, 2, *self._size, dtype=torch.float32))
        if frame1.dtype != frame2.dtype or frame1.dtype not in FRAMES:
            frame1, frame2 = frame1.float(), frame2.float()
        flow, flags = self.launch_pair_for_flow_and_flags(frame1, frame2, initial_flow, progress)

        def raise_for_bad_input() -> None:
            if torch.cuda.is_current_stream_capturing() or not int(flags):
                return
            check_frame_values(frame1, "frame1")
            check_frame_values(frame2, "frame2")
            if initial_flow is not None:
                check_finite(initial_flow, "initial_flow")
            check_finite(flow, "flow", FINITE_FLOW)

        return QueuedFlow(flow, raise_for_bad_input)

    def launch_pair_for_flow_and_flags(
        self,
        frame1: Tensor,  # [B, C, H, W], C = 1 or 3, of the dtypes in launching.FRAMES, any strides
        frame2: Tensor,  # [B, C, H, W]
        initial_flow: Tensor | None,  # [B, 2, H, W] float32
        progress: Progress | None,
    ) -> tuple[Tensor, Tensor]:
        """Queue a pair; return the flow and an integer on the device: ``passes.BAD_FRAMES`` and ``BAD_FLOW``."""
        flow = torch.empty((len(frame1), 2, *self._size), device=self._device, dtype=torch.float32)
        with self._in_order(self._iterate_tensors):
            engine = self._get_or_replace_engine(len(frame1))
            engine.flags.zero_()
            engine.convert_frames_to_grey_and_bind_output((frame1, frame2), 0, flow, sets_flags=True)
            if initial_flow is None:
                engine.start.zero_()
            else:
                if not self._started:
                    self._in_order.clear_recorded_streams()  # of the tables that this makes
                    self._started = True
                engine.resample_to_initial_flow(initial_flow.contiguous())
            self._run_or_replay_engine_graph(engine, progress)
            return flow, engine.flags.clone()

    def _iterate_tensors(self) -> Iterator[Tensor]:
        return iter(()) if self._engine is None else self._engine.iterate_tensors()

    def _get_or_replace_engine(self, batch: int) -> Engine:
        if self._engine is None or self._engine.batch != batch:
            self._engine = self._graph = None  # frees the old buffers before the new ones are made
            self._used = self._started = False
            self._in_order.clear_recorded_streams()
            self._engine = Engine(batch, *self._size, self._config, self._device)
        return self._engine

    def _run_or_replay_engine_graph(self, engine: Engine, progress: Progress | None) -> None:
        def run_engine() -> None:
            engine.build_pyramid(0, 2)
            engine.compute_bound_flow(0, sets_flags=True, progress=progress)

        if progress is not None or not self._used or torch.cuda.is_current_stream_capturing():
            run_engine()
            self._used = True
            return
        if self._graph is None:
            self._graph = record_cuda_graph(run_engine, self._device)
        self._graph.replay()
