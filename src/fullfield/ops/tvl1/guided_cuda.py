"""The guided refinement on NVIDIA GPUs: seven kernels, their order, and the buffers they share."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import Libraries, Source
from fullfield.ops import _launching
from fullfield.ops._launching import HALVES, VALUES, Launch, get_address, parse_structures, raw_stream, read_source
from fullfield.ops._recording import InOrder, record_graph
from fullfield.ops.tvl1.config import FILTER_RADIUS, FILTER_STEPS, JUDGED, LEAST_FIT, RefinementConfig
from fullfield.ops.tvl1.cuda.state import row_pitch
from fullfield.ops.tvl1.frames import BRIGHTEST
from fullfield.ops.tvl1.guided_reference import gaussian_kernel, misfits

LIBRARIES = Libraries("refinement kernels")
BAD_FRAMES, BAD_RESULT, BAD_FLOW, BAD_BACKWARD = (1, 2), 4, 8, 16
"""Bits of the flags: a value of frame 1 or 2 is not within ±1e6; result, given flow or flow back is not finite."""
_ACROSS, _DOWN = 32, 16  # tile of the weighted median
_FOLDER = Path(__file__).with_name("cuda")
_Guided = parse_structures(_FOLDER / "guided.cu")["GuidedParams"]
_Median = parse_structures(_FOLDER / "median.cu")["MedianParams"]
# Planes of the state.
_GREY, _FLOWS, _DUALS, _SYSTEM, _EDGE, _COUPLING, _FIT = 0, (2, 4), (6, 10), 14, 19, 20, 21
_MISFIT_PLANES = _FIT + 1  # before each round that is judged
PLANES = _MISFIT_PLANES + JUDGED


@dataclass(frozen=True)
class Shape:
    """Shape of the iterating blocks.

    A tile has 64 columns and ``warps * rows`` rows, of which ``depth`` on every side are computed twice.
    """

    warps: int = 16
    rows: int = 4
    """Of a warp."""
    depth: int = 10
    """Most iterations in one pass."""
    blocks: int = 1
    """That a multiprocessor is to run at once."""

    def inner_after(self, iterations: int) -> tuple[int, int]:
        """Return the rows and columns that a block writes."""
        return self.warps * self.rows - 2 * iterations, 64 - 2 * (iterations + iterations % 2)


SHAPE = Shape()
SHAPES = (SHAPE, Shape(depth=5), Shape(16, 3), Shape(8, 4, 5, 2), Shape(8, 5, 5, 1), Shape(8, 3, 5, 2))
"""The one in use, and others to measure."""


def supports(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return None if the kernels can compute with this dtype on ``device``, else the reason."""
    reason = _launching.explain_refusal(device)
    if reason is None and dtype != torch.float32:
        reason = f"computes in float32 only, got {str(dtype).removeprefix('torch.')}"
    return reason


def source(shape: Shape) -> Source:
    """Return the source of all kernels."""
    names = ("sampling.cuh", "medians.cuh", "median.cu", "guided.cu")
    text = read_source(HALVES, VALUES, *(_FOLDER / name for name in names))
    return Source.define_macros(
        text, IN=0, WARPS=shape.warps, ROWS=shape.rows, BLOCKS=shape.blocks, RADIUS=FILTER_RADIUS, STEPS=FILTER_STEPS
    )


def count_bytes(height: int, width: int) -> int:
    """Return the bytes that a refiner keeps on the device."""
    return PLANES * height * row_pitch(width, torch.float32) * 4


class Refiner:
    """Refiner for one size of frames, with all buffers.

    From its second call on a CUDA graph runs it, except for the two kernels that read the frames. Calls run in order on
    any streams.
    """

    @torch.inference_mode(False)  # the buffers outlive a caller's inference mode
    def __init__(
        self, height: int, width: int, config: RefinementConfig, device: torch.device, shape: Shape = SHAPE
    ) -> None:
        self._config, self._size, self._shape, self._device = config, (height, width), shape, device
        self._about = about = _launching.gpu_from_device(device)
        self._pitch = row_pitch(width, torch.float32)
        self._library = _launching.load_kernels(LIBRARIES, source(shape), about.index)
        self._planes = torch.empty((PLANES, height, self._pitch), dtype=torch.float32, device=device)
        self._inputs = torch.zeros(6, dtype=torch.int64, device=device)
        self._flags = torch.zeros(1, dtype=torch.int32, device=device)
        self._misfits = torch.zeros(JUDGED, dtype=torch.float64, device=device)
        self._kernel = torch.tensor(gaussian_kernel(config.blur), dtype=torch.float32, device=device)
        self.launches: dict[tuple[int, int], list[tuple[str, Launch]]] = {}
        """By channels and rounds: the kernels that follow those that read the frames, in order."""
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._in_order = InOrder(device)

    def __call__(
        self,
        frame1: Tensor,  # [B, C, H, W], float32, any strides
        frame2: Tensor,  # [B, C, H, W]
        flow: Tensor,  # [B, 2, H, W], contiguous
        backward: Tensor | None,  # [B, 2, H, W], contiguous
        rounds: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Refine a flow; return it [B, 2, H, W] with flags and the misfits [B, N] of ``guided_reference.refine``.

        All results are on the device. ``rounds`` is by default the configuration's.
        """
        rounds = self._config.rounds if rounds is None else rounds
        refined = torch.empty(flow.shape, dtype=torch.float32, device=self._device)
        with self._in_order(self._tensors):
            self._flags.zero_()
            misfit = torch.empty(len(flow), min(rounds, JUDGED), dtype=torch.float64, device=self._device)
            for item in range(len(flow)):
                back = None if backward is None else backward[item]
                self._load((frame1[item], frame2[item]), flow[item], back, refined[item])
                self._run(frame1.shape[1], rounds)
                misfit[item] = self._misfits[: misfit.shape[1]]
            return refined, self._flags.clone(), misfit

    def _tensors(self) -> Iterator[Tensor]:
        yield from (self._planes, self._inputs, self._flags, self._kernel, self._misfits)

    def _run(self, channels: int, rounds: int) -> None:
        key = channels, rounds
        launches, graph = self.launches.get(key), self._graphs.get(key)
        if launches is None:
            launches = self.launches[key] = self._make_launches(channels, rounds)
            self._launch_all(launches, rounds)
            return
        if self._device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            self._launch_all(launches, rounds)
            return
        if graph is None:
            graph = self._graphs[key] = record_graph(partial(self._launch_all, launches, rounds), self._device)
        graph.replay()

    def _launch_all(self, launches: list[tuple[str, Launch]], rounds: int) -> None:
        stream = raw_stream(self._about.index)
        for _, launch in launches:
            launch(stream)
        judged = min(rounds, JUDGED)
        self._misfits[:judged] = misfits(self._planes[_MISFIT_PLANES : _MISFIT_PLANES + judged, :, : self._size[1]])

    def _at(self, plane: int) -> int:
        return self._planes[plane].data_ptr()

    def _params(self, channels: int) -> ctypes.Structure:
        config = self._config
        p: ctypes.Structure = _Guided()
        p.inputs, p.flags, p.kernel = get_address(self._inputs), get_address(self._flags), get_address(self._kernel)
        p.grey, p.system, p.edge, p.coupling, p.fit = (self._at(n) for n in (_GREY, _SYSTEM, _EDGE, _COUPLING, _FIT))
        p.plane, p.pitch, p.taps, p.channels = self._planes.stride(0), self._pitch, len(self._kernel), channels
        p.height, p.width = self._size
        p.brightest, p.sensitivity = BRIGHTEST, config.edges
        p.base, p.consistent = config.coupling, config.consistent_coupling
        p.squared_distance = config.consistent_distance**2
        p.lambda_, p.squared_epsilon = config.lambda_, config.epsilon**2
        p.squared_residual, p.least_fit = config.filter_residual**2, LEAST_FIT
        p.slowness, p.sigma = 1 / config.step, 0.25 / config.step
        p.colour_scale, p.per_reach = 1 / (config.filter_colour**2 * channels), 1 / config.filter_reach**2
        p.threshold, p.per_trust = config.filter_threshold, 1 / config.trust**2 if config.trust else 0.0
        return p

    def _launch(self, name: str, p: ctypes.Structure, tile: tuple[int, int], threads: int = 256) -> Launch:
        """Return a launch; ``tile`` holds rows and columns of a block."""
        rows = p.height * (2 if name == "guided_down" else 1)
        p.tiles = -(-p.width // tile[1])
        return Launch(self._library, name, p.tiles * -(-rows // tile[0]), threads, p)

    def _load(self, frames: tuple[Tensor, Tensor], flow: Tensor, back: Tensor | None, refined: Tensor) -> None:
        """Run the kernels that depend on the addresses of a call's tensors."""
        stream = raw_stream(self._about.index)
        for name in ("guided_down", "guided_across"):
            p = self._params(len(frames[0]))
            for n, frame in enumerate(frames):
                p.frames[n] = frame.data_ptr()
                p.frame_c[n], p.frame_y[n], p.frame_x[n] = frame.stride()
            p.prior, p.backward, p.result = get_address(flow), get_address(back), get_address(refined)
            p.scratch, p.flow_out = self._at(_DUALS[1]), self._at(_FLOWS[0])
            self._launch(name, p, (1, 256))(stream)

    def _make_launches(self, channels: int, rounds: int) -> list[tuple[str, Launch]]:
        """Return the launches that follow, in order."""
        config, shape = self._config, self._shape
        launches: list[tuple[str, Launch]] = []
        flow = dual = 0
        depths = [min(shape.depth, config.iterations - start) for start in range(0, config.iterations, shape.depth)]
        for turn in range(rounds):
            for warp in range(config.warps):
                if warp == 0 and turn < JUDGED:
                    launches.append(("linearise", self._linearising(flow, channels, judged=turn)))
                if warp > 0 or turn >= JUDGED or config.warps == 1:  # the median's fit is another
                    launches.append(("linearise", self._linearising(flow, channels, last=warp == config.warps - 1)))
                for number, depth in enumerate(depths):
                    p = self._params(channels)
                    p.iterations, p.zero_dual = depth, int(turn == warp == number == 0)
                    p.flow, p.dual = self._at(_FLOWS[flow]), self._at(_DUALS[dual])
                    flow, dual = 1 - flow, 1 - dual
                    p.flow_out, p.dual_out = self._at(_FLOWS[flow]), self._at(_DUALS[dual])
                    tile = shape.inner_after(depth)
                    launches.append(("iterate", self._launch("guided_iterate", p, tile, 32 * shape.warps)))
                if warp < config.warps - 1:
                    launches.append(("median", self._plain_median(flow)))
                else:
                    p = self._params(channels)
                    p.flow, p.flow_out = self._at(_FLOWS[flow]), self._at(_FLOWS[1 - flow])
                    p.last = int(turn == rounds - 1)
                    launches.append(("weighted median", self._launch("guided_median", p, (_DOWN, _ACROSS))))
                flow = 1 - flow
        return launches

    def _linearising(self, flow: int, channels: int, *, judged: int | None = None, last: bool = False) -> Launch:
        """Return the linearisation; ``judged`` is the number of the round whose fit is kept."""
        p = self._params(channels)
        p.flow, p.last = self._at(_FLOWS[flow]), int(last)
        if judged is not None:
            p.last, p.fit, p.least_fit = 1, self._at(_MISFIT_PLANES + judged), 0.0
        return self._launch("guided_linearise", p, (8, 32))

    def _plain_median(self, flow: int) -> Launch:
        height, width = self._size
        p = _Median()
        p.flow, p.target = self._at(_FLOWS[flow]), self._at(_FLOWS[1 - flow])
        p.plane = p.target_plane = self._planes.stride(0)
        p.height, p.width, p.pitch, p.target_pitch = height, width, self._pitch, self._pitch
        p.tiles_y, p.tiles_x = -(-height // 8), -(-width // 64)
        return Launch(self._library, "median5", 2 * p.tiles_y * p.tiles_x, 128, p)
