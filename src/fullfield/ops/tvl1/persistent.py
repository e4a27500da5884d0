"""TV-L1 at a frame rate: a solver for one size on one GPU that owns everything it needs."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops._launching import FRAMES
from fullfield.ops._recording import StreamOrderedCalls, record_cuda_graph
from fullfield.ops.tvl1 import cuda
from fullfield.ops.tvl1.config import TVL1Config
from fullfield.ops.tvl1.cuda.engine import Engine
from fullfield.ops.tvl1.frames import add_device_index, check_frame_size

_REMEMBERED = 512  # flows whose times are kept


class Latency(NamedTuple):
    """Seconds from the first kernel of a flow to its last, on the device."""

    frames: int
    """Flows that were measured, per call: a batch counts once."""
    median: float
    p99: float


class TimeSummary(NamedTuple):
    """Summary of a list of times, in their unit."""

    median: float
    p99: float
    """99th percentile by the nearest rank, which is one of the measured times."""
    max: float


def summarize_times(times: Iterable[float]) -> TimeSummary:
    """Return the summary of at least one time."""
    ordered = sorted(times)
    rank = -(-99 * len(ordered) // 100) - 1
    return TimeSummary(statistics.median(ordered), ordered[rank], ordered[-1])


class PersistentSolver:
    """TV-L1 for frames of one shape on an NVIDIA GPU: everything is allocated, compiled and recorded once.

    ::

        solver = PersistentSolver((1, 3, 1080, 1920), TVL1Config.from_preset("fast"))
        for frame in video:                        # uint8 on the GPU
            flow = solver.step(frame)              # from the frame before to this one; None for the first
        print(solver.latency())

    A call is one kernel, which reads the frames where they lie, and one CUDA graph, which writes the flow where it is
    to be; nothing is copied, and nothing waits for the device. Frames and ``out`` may be of any library that speaks
    DLPack. They must stay alive and unchanged until the stream has passed the call. A call is ordered behind the one
    before, on whatever streams; calls from several threads wait for each other. Not to be called while the caller
    records a graph. Values are not looked at: NaN in a frame makes nonsense of the flow around it.

    Args:
        shape: of the frames, (B, C, H, W), C = 1 or 3 (RGB); at least two pixels.
        config: parameters, by default the preset ``default``.
        dtype: of the frames: uint8 of 0 ... 255, or float32, float16 or bfloat16, nominally 0 ... 1.
        device: an NVIDIA GPU.
        warm_start: whether ``step`` starts from the flow before, brought to the coarsest level like the
            ``initial_flow`` of :class:`TVL1Solver`.

    Raises InputError for bad arguments or a device that the kernels do not run on.
    """

    def __init__(
        self,
        shape: Sequence[int],
        config: TVL1Config | None = None,
        *,
        dtype: torch.dtype = torch.uint8,
        device: str | torch.device = "cuda",
        warm_start: bool = True,
    ) -> None:
        self.config = TVL1Config() if config is None else config
        _check.require(
            isinstance(self.config, TVL1Config), "config", "a TVL1Config", _check.describe_value(self.config)
        )
        self.shape = _check_frame_shape_and_convert_to_ints(shape)
        _check.check_choice(dtype, "dtype", FRAMES)
        self.dtype, self.warm_start = dtype, bool(warm_start)
        self.device = _check_and_resolve_cuda_device(device, self.config)
        batch, _, height, width = self.shape
        self._lock, self._in_order = threading.Lock(), StreamOrderedCalls(self.device)
        self._previous: int | None = None  # of the frame before
        with torch.cuda.device(self.device), torch.inference_mode(False), torch.no_grad():
            self._engine = self._create_engine(batch, height, width)
            self._compile_and_run_every_launch()
            self._pair = record_cuda_graph(partial(self._build_pyramids_solve_and_set_next_start, 0, 2), self.device)
            self._steps = [
                record_cuda_graph(partial(self._build_pyramids_solve_and_set_next_start, index, 1), self.device)
                for index in (0, 1)
            ]
        self._times: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._count = 0

    def __call__(self, frame1: Any, frame2: Any, out: Any = None) -> Tensor:
        """Compute the flow [B, 2, H, W] float32 of a pair, from zero; (u, v), x right, y down, pixels of ``frame1``.

        :meth:`step` then continues from ``frame2``. ``out`` is contiguous memory for the flow, by default new memory.

        Raises:
            InputError: if a frame has another shape, dtype or device.
        """
        frames = (
            self._check_and_convert_frame_to_tensor(frame1, "frame1"),
            self._check_and_convert_frame_to_tensor(frame2, "frame2"),
        )
        with self._lock, self._in_order(self._engine.iterate_tensors):
            flow = self._check_or_create_out(out)
            end = self._record_start_and_get_end_event()
            self._engine.start.zero_()
            self._engine.convert_frames_to_grey_and_bind_output(frames, 0, flow)
            self._pair.replay()
            self._record_end_event_and_count_flow(end)
            self._previous = 1
        return flow

    def step(self, frame: Any, out: Any = None) -> Tensor | None:
        """Compute the flow from the previous frame to ``frame`` as :meth:`__call__` does; None for the first frame.

        The pyramid of the previous frame is reused. With ``warm_start`` the previous flow is the start.
        """
        tensor = self._check_and_convert_frame_to_tensor(frame, "frame")
        with self._lock, self._in_order(self._engine.iterate_tensors):
            if self._previous is None:
                self._previous = 0
                self._engine.start.zero_()
                self._engine.convert_frames_to_grey_and_bind_output((tensor,), 0, None)
                self._engine.build_pyramid(0)
                return None
            flow = self._check_or_create_out(out)
            end = self._record_start_and_get_end_event()
            self._previous = 1 - self._previous
            self._engine.convert_frames_to_grey_and_bind_output((tensor,), self._previous, flow)
            self._steps[self._previous].replay()
            self._record_end_event_and_count_flow(end)
        return flow

    def restart(self) -> None:
        """Forget the frame before: the next ``step`` is the first of a sequence, as after a cut."""
        with self._lock:
            self._previous = None

    @property
    def memory_bytes(self) -> int:
        """Bytes held on the device, but for graphs."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._engine.iterate_tensors())

    def latency(self) -> Latency:
        """Return the latency of the last flows, at most 512, since :meth:`reset_latency`; waits for the device."""
        with self._lock:
            _check.require(self._count > 0, "latency", "at least one flow", "none")
            recent = self._times[: min(self._count, _REMEMBERED)]
            recent[(self._count - 1) % _REMEMBERED][1].synchronize()
            summary = summarize_times(start.elapsed_time(end) / 1e3 for start, end in recent)
        return Latency(len(recent), summary.median, summary.p99)

    def reset_latency(self) -> None:
        """Forget the latencies measured so far."""
        with self._lock:
            self._count = 0

    # ---- one call

    def _check_and_convert_frame_to_tensor(self, frame: Any, name: str) -> Tensor:
        tensor = _convert_dlpack_to_tensor(frame, name)
        _check.check_tensor(tensor, name, self.shape, dtypes=(self.dtype,), device=self.device)
        return tensor.detach()

    def _check_or_create_out(self, out: Any) -> Tensor:
        batch, _, height, width = self.shape
        shape = (batch, 2, height, width)
        if out is None:
            return torch.empty(shape, device=self.device, dtype=torch.float32)
        flow = _convert_dlpack_to_tensor(out, "out")
        _check.check_tensor(flow, "out", shape, dtypes=(torch.float32,), device=self.device)
        _check.require(flow.is_contiguous(), "out", "contiguous memory", f"strides {list(flow.stride())}")
        return flow

    def _record_start_and_get_end_event(self) -> torch.cuda.Event:
        at = self._count % _REMEMBERED
        if at == len(self._times):
            self._times.append((_create_timing_event(), _create_timing_event()))
        self._times[at][0].record()
        return self._times[at][1]

    def _record_end_event_and_count_flow(self, event: torch.cuda.Event) -> None:
        event.record()
        self._count += 1

    # ---- what is recorded

    def _build_pyramids_solve_and_set_next_start(self, slot: int, frame_count: int) -> None:
        """Compute the pyramids and flow of 2 frames, or the pyramid of the one at ``slot`` and the flow to it."""
        self._engine.build_pyramid(slot, frame_count)
        self._engine.compute_bound_flow(0 if frame_count == 2 else 1 - slot)
        if self.warm_start:
            self._engine.resample_last_result_to_initial_flow()

    def _create_engine(self, batch: int, height: int, width: int) -> Engine:
        """Return the engine; benchmarks override this to use another schedule."""
        return Engine(batch, height, width, self.config, self.device)

    def _compile_and_run_every_launch(self) -> None:
        """Compile and load everything, and make every launch once."""
        frame = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        flow = self._check_or_create_out(None)
        self._engine.convert_frames_to_grey_and_bind_output((frame, frame), 0, flow)
        for index, frames in ((0, 2), (0, 1), (1, 1)):
            self._build_pyramids_solve_and_set_next_start(index, frames)
        del flow  # not before: tables that are made on the way would get its memory while it is still to be written


def _check_frame_shape_and_convert_to_ints(shape: Sequence[int]) -> tuple[int, int, int, int]:
    sides = tuple(shape)
    _check.require(len(sides) == 4, "shape", "(B, C, H, W)", str(sides))
    for name, value in zip(("B", "C", "H", "W"), sides, strict=True):
        _check.check_number(value, f"shape: {name}", integer=True, low=1)
    batch, channels, height, width = (int(side) for side in sides)
    _check.require(channels in (1, 3), "shape", "1 or 3 channels", f"{channels}")
    check_frame_size(height, width)
    return batch, channels, height, width


def _check_and_resolve_cuda_device(device: str | torch.device, config: TVL1Config) -> torch.device:
    resolved = _check.resolve_available_device(device)
    reason = cuda.explain_unsupported(resolved, torch.float32, config)
    _check.require(reason is None, "device", "one for the cuda backend", f"{resolved}: {reason}")
    return add_device_index(resolved)


def _create_timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _convert_dlpack_to_tensor(tensor_or_dlpack: Any, name: str) -> Tensor:
    if isinstance(tensor_or_dlpack, Tensor):
        return tensor_or_dlpack
    _check.require(
        hasattr(tensor_or_dlpack, "__dlpack__"), name, "a tensor or an array with __dlpack__", tensor_or_dlpack
    )
    tensor: Tensor = torch.from_dlpack(tensor_or_dlpack)  # type: ignore[attr-defined]
    return tensor
