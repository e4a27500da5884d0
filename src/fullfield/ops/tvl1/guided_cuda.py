"""The guided refinement on NVIDIA GPUs: its kernels, their order, and the buffers they share."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield.ops import _launching
from fullfield.ops._launching import (
    COPIES,
    HALVES,
    VALUES,
    GpuProperties,
    Launch,
    LoadedKernels,
    get_address,
    parse_structures,
    raw_stream,
    read_source,
)
from fullfield.ops._recording import StreamOrderedCalls, record_cuda_graph
from fullfield.ops.tvl1.config import (
    FILTER_RADIUS,
    FILTER_STEPS,
    JUDGED,
    LEAST_FIT,
    SPARSE_FILTER_STEPS,
    PassPosition,
    RefinementConfig,
)
from fullfield.ops.tvl1.cuda.state import compute_row_pitch_in_elements
from fullfield.ops.tvl1.frames import BRIGHTEST
from fullfield.ops.tvl1.guided_reference import compute_gaussian_kernel

LIBRARIES = LibraryCache("refinement kernels")
BAD_FRAMES, BAD_RESULT, BAD_FLOW, BAD_BACKWARD = (1, 2), 4, 8, 16
"""Bits of the flags: a value of frame 1 or 2 is not within ±1e6; result, given flow or flow back is not finite."""
_FILTERED = {"float32": (16, 32), "float16": (32, 32)}  # rows and columns of the weighted median's tile
_MEDIAN = 8, 64  # rows and columns of the plain median's block
_GROUP = 4  # rows of a thread that loads
_STRIP = 128  # columns of a strip
_LINEARISED = 8, 32  # rows and columns of a block
_FOLDER = Path(__file__).with_name("cuda")
_Guided = parse_structures(_FOLDER / "guided.cu")["GuidedParams"]
_Rows = parse_structures(_FOLDER / "guided_rows.cu")["RowsParams"]
# Planes of the state.
_GRADIENTS, _FLOWS, _DUALS, _SYSTEM, _EDGE, _COUPLING, _FIT, PLANES = 0, (4, 6), (8, 12), 16, 21, 22, 23, 24


@dataclass(frozen=True)
class IterationTile:
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

    def get_tile_output_rows_and_columns(self, iterations: int) -> tuple[int, int]:
        """Return the rows and columns that a block writes."""
        return self.warps * self.rows - 2 * iterations, 64 - 2 * (iterations + iterations % 2)


@dataclass(frozen=True)
class IterationStrips:
    """Shape of the strips that blocks iterate on row after row, 128 columns wide."""

    groups: int = 4
    """Warps of a block, at most, which share the iterations."""
    ahead: int = 2
    """Rows, at most, that are fetched before they are needed; fewer where more blocks then run at once."""
    blocks: int = 3
    """That a multiprocessor is to run at once."""
    min_rows: int = 24
    """Rows of a strip, without those that are computed twice, below which the frame is iterated on in tiles."""

    def plan_strips_if_faster(
        self, iterations: int, frame_size: tuple[int, int], device: GpuProperties
    ) -> StripPass | None:
        """Return the pass of ``iterations`` over a frame, or None if tiles take less time or the strip does not fit."""
        groups = min(self.groups, iterations)
        while iterations - (groups - 1) * -(-iterations // groups) < 1:
            groups -= 1
        shared = {ahead: _compute_strip_shared_bytes(iterations, groups, ahead) for ahead in range(1, self.ahead + 1)}
        blocks, ahead = max((min(self.blocks, device.shared // size), ahead) for ahead, size in shared.items())
        if blocks == 0:
            return None
        height, width = frame_size
        useful = (_STRIP - (iterations + 1) // 2 * 2 - iterations) // 4 * 4
        columns = 1 + -(-max(0, width - _STRIP) // useful)
        rows = -(-height // max(1, device.processors * blocks // columns))
        if rows < self.min_rows:
            return None
        text = read_source(HALVES, COPIES, *(_FOLDER / name for name in ("guided_steps.cuh", "guided_rows.cu")))
        options = {"DEPTH": iterations, "GROUPS": groups, "AHEAD": ahead, "BLOCKS": self.blocks}
        return StripPass(KernelSource.with_macros(text, **options), columns, rows, 32 * groups, shared[ahead])


def _compute_strip_shared_bytes(iterations: int, groups: int, ahead: int) -> int:
    """Return the shared memory of a block of ``guided_rows``."""
    each = -(-iterations // groups)
    ring = (groups - 1) * (each + 1) + iterations - (groups - 1) * each + 2 + ahead
    return 6 * (ring + ahead + 2 + 2 * (groups - 1)) * _STRIP * 4


@dataclass(frozen=True)
class StripPass:
    """Pass of several iterations over a frame in strips."""

    source: KernelSource
    columns: int
    """Strips across."""
    rows: int
    """Of a strip."""
    threads: int
    shared: int


STRIPS = IterationStrips()
SHAPE = IterationTile()
SHAPES = (
    SHAPE,
    IterationTile(depth=5),
    IterationTile(16, 3),
    IterationTile(8, 4, 5, 2),
    IterationTile(8, 5, 5, 1),
    IterationTile(8, 3, 5, 2),
)
"""The one in use, and others to measure."""


def explain_unsupported(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return None if the kernels can compute with this dtype on ``device``, else the reason."""
    reason = _launching.explain_unsupported_device(device)
    if reason is None and dtype != torch.float32:
        reason = f"computes in float32 only, got {str(dtype).removeprefix('torch.')}"
    return reason


def generate_refinement_source(shape: IterationTile) -> KernelSource:
    """Return the source of all kernels."""
    names = ("sampling.cuh", "medians.cuh", "median.cu", "guided_steps.cuh", "guided.cu")
    text = read_source(HALVES, VALUES, *(_FOLDER / name for name in names))
    steps = {
        name: " ".join(f"STEP({soft}f, {even}, {odd})" for soft, even, odd in steps)
        for name, steps in (("FILTER_STEPS", FILTER_STEPS), ("SPARSE_FILTER_STEPS", SPARSE_FILTER_STEPS))
    }
    return KernelSource.with_macros(
        text, IN=0, WARPS=shape.warps, ROWS=shape.rows, BLOCKS=shape.blocks, RADIUS=FILTER_RADIUS, **steps
    )


def count_refiner_planes(passes: int) -> int:
    """Return the planes that a refiner keeps: its state, and the results of the passes that others follow."""
    return PLANES + 2 * min(passes - 1, 3)


def count_buffer_bytes(height: int, width: int, passes: int = 1) -> int:
    """Return the bytes that a refiner keeps on the device."""
    return count_refiner_planes(passes) * height * compute_row_pitch_in_elements(width, torch.float32) * 4


class _RefinementGraphKey(NamedTuple):
    """What a recorded graph does."""

    channels: int
    passes: tuple[int, ...]
    """Rounds of every pass."""
    blends: bool
    """Whether of the change remains what the misfits earn."""

    @property
    def misfit_count(self) -> int:
        """Misfits that are measured, each before a round: at most JUDGED."""
        return min(sum(self.passes), JUDGED)


class CudaRefiner:
    """Refiner for one size of frames, with all buffers.

    From its second call on a CUDA graph runs it, except for the kernels that read the frames and the given flow. Calls
    run in order on any streams.
    """

    @torch.inference_mode(False)  # the buffers outlive a caller's inference mode
    def __init__(
        self,
        height: int,
        width: int,
        config: RefinementConfig,
        device: torch.device,
        shape: IterationTile = SHAPE,
        strips: IterationStrips | None = STRIPS,
    ) -> None:
        self._config, self._size, self._shape, self._device = config, (height, width), shape, device
        self._about = about = _launching.get_device_gpu_properties(device)
        self._pitch = compute_row_pitch_in_elements(width, torch.float32)
        starts = range(0, config.iterations, shape.depth)
        self._depths = [min(shape.depth, config.iterations - start) for start in starts]
        depths = [] if strips is None else sorted(set(self._depths))
        plans = {
            depth: strips.plan_strips_if_faster(depth, self._size, about) for depth in depths if strips is not None
        }
        self._passes = {depth: one for depth, one in plans.items() if one is not None}
        sources = [generate_refinement_source(shape), *(one.source for one in self._passes.values())]
        self._library, *loaded = _launching.load_several_kernels(LIBRARIES, sources, about.index)
        self._pass_libraries: dict[int, LoadedKernels] = dict(zip(self._passes, loaded, strict=True))
        planes = count_refiner_planes(config.passes)
        self._planes = torch.empty((planes, height, self._pitch), dtype=torch.float32, device=device)
        self._inputs = torch.zeros(7, dtype=torch.int64, device=device)
        self._flags = torch.zeros(1, dtype=torch.int32, device=device)
        self._misfits = torch.zeros(JUDGED, dtype=torch.float64, device=device)
        self._shares = torch.zeros(2, dtype=torch.float32, device=device)
        self._kernel = torch.tensor(compute_gaussian_kernel(config.blur), dtype=torch.float32, device=device)
        self.passes = (*[1] * (config.passes - 1), config.rounds)
        """Rounds of every pass, if there is a backward flow."""
        self.launches: dict[_RefinementGraphKey, list[tuple[str, Launch]]] = {}
        """The kernels that follow those of :meth:`_launch_input_conversion`, in order."""
        self._graphs: dict[_RefinementGraphKey, torch.cuda.CUDAGraph] = {}
        self._in_order = StreamOrderedCalls(device)

    def __call__(
        self,
        frame1: Tensor,  # [B, C, H, W], float32, any strides
        frame2: Tensor,  # [B, C, H, W]
        flow: Tensor,  # [B, 2, H, W], contiguous
        backward: Tensor | None,  # [B, 2, H, W], contiguous
    ) -> tuple[Tensor, Tensor]:
        """Refine a flow by all passes; return what remains, [B, 2, H, W], with flags. Both are on the device."""
        passes = self.passes if backward is not None else self.passes[-1:]
        return self._refine_with_flags_and_misfits(
            frame1, frame2, flow, backward, _RefinementGraphKey(frame1.shape[1], passes, blends=True)
        )[:2]

    def refine_unblended_with_flags_and_misfits(
        self, frame1: Tensor, frame2: Tensor, flow: Tensor, backward: Tensor | None, rounds: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return one pass's flow with all of its change, flags, and the misfits [B, N] of ``guided_reference``."""
        rounds = self._config.rounds if rounds is None else rounds
        return self._refine_with_flags_and_misfits(
            frame1, frame2, flow, backward, _RefinementGraphKey(frame1.shape[1], (rounds,), blends=False)
        )

    def _refine_with_flags_and_misfits(
        self, frame1: Tensor, frame2: Tensor, flow: Tensor, backward: Tensor | None, graph_key: _RefinementGraphKey
    ) -> tuple[Tensor, Tensor, Tensor]:
        refined = torch.empty(flow.shape, dtype=torch.float32, device=self._device)
        with self._in_order(self._iterate_tensors):
            self._flags.zero_()
            misfit = torch.empty(len(flow), graph_key.misfit_count, dtype=torch.float64, device=self._device)
            for item in range(len(flow)):
                back = None if backward is None else backward[item]
                self._launch_input_conversion((frame1[item], frame2[item]), flow[item], back, refined[item])
                self._run_or_replay_graph(graph_key)
                if not graph_key.blends:
                    misfit[item] = self._misfits[: graph_key.misfit_count]
            return refined, self._flags.clone(), misfit

    def _iterate_tensors(self) -> Iterator[Tensor]:
        yield from (self._planes, self._inputs, self._flags, self._kernel, self._misfits, self._shares)

    def _run_or_replay_graph(self, graph_key: _RefinementGraphKey) -> None:
        launches, graph = self.launches.get(graph_key), self._graphs.get(graph_key)
        if launches is None:
            launches = self.launches[graph_key] = self._build_launches(graph_key)
            self._launch_in_order(launches)
            return
        if self._device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            self._launch_in_order(launches)
            return
        if graph is None:
            graph = self._graphs[graph_key] = record_cuda_graph(partial(self._launch_in_order, launches), self._device)
        graph.replay()

    def _launch_in_order(self, launches: list[tuple[str, Launch]]) -> None:
        stream = raw_stream(self._about.index)
        for _, launch in launches:
            launch(stream)

    def _get_plane_address(self, plane: int) -> int:
        return self._planes[plane].data_ptr()

    def _build_kernel_params(self, channels: int) -> ctypes.Structure:
        config = self._config
        p: ctypes.Structure = _Guided()
        p.inputs, p.flags, p.kernel = get_address(self._inputs), get_address(self._flags), get_address(self._kernel)
        p.misfits = get_address(self._misfits)
        p.gradients, p.system, p.edge, p.coupling, p.fit = (
            self._get_plane_address(n) for n in (_GRADIENTS, _SYSTEM, _EDGE, _COUPLING, _FIT)
        )
        p.jumps = self._get_plane_address(_SYSTEM)  # free between the last iteration and the next linearisation
        p.plane, p.pitch, p.taps, p.channels = self._planes.stride(0), self._pitch, len(self._kernel), channels
        p.height, p.width = self._size
        p.brightest, p.sensitivity = BRIGHTEST, config.edges
        p.base, p.consistent = config.coupling, config.consistent_coupling
        p.squared_distance = config.consistent_distance**2
        p.lambda_, p.squared_epsilon = config.lambda_, config.epsilon**2
        p.squared_residual, p.least_fit = config.filter_residual**2, LEAST_FIT
        p.slowness, p.sigma = 1 / config.step, 0.25 / config.step
        p.least_fall, p.passes_fall = config.least_fall, config.passes_fall
        p.colour_scale, p.per_reach = 255 / (config.filter_colour * channels**0.5), 1 / config.filter_reach**2
        p.threshold, p.per_trust = config.filter_threshold, 1 / config.trust**2 if config.trust else 0.0
        return p

    def _build_launch(
        self, kernel_name: str, kernel_params: ctypes.Structure, tile_rows_columns: tuple[int, int], threads: int = 256
    ) -> Launch:
        """Return a launch; ``tile_rows_columns`` holds rows and columns of a block."""
        kernel_params.tiles = -(-kernel_params.width // tile_rows_columns[1])
        frames = 2 if kernel_name == "guided_down" else 1
        blocks = frames * kernel_params.tiles * -(-kernel_params.height // tile_rows_columns[0])
        return Launch(self._library, kernel_name, blocks, threads, kernel_params)

    def _launch_input_conversion(
        self, frames: tuple[Tensor, Tensor], flow: Tensor, backward: Tensor | None, refined_out: Tensor
    ) -> None:
        """Run the kernels that depend on the addresses of a call's tensors."""
        stream = raw_stream(self._about.index)
        for name in ("guided_down", "guided_across", "guided_start"):
            p = self._build_kernel_params(len(frames[0]))
            for n, frame in enumerate(frames):
                p.frames[n] = frame.data_ptr()
                p.frame_c[n], p.frame_y[n], p.frame_x[n] = frame.stride()
            p.prior, p.backward, p.result = get_address(flow), get_address(backward), get_address(refined_out)
            p.scratch, p.flow_out = self._get_plane_address(_DUALS[1]), self._get_plane_address(_FLOWS[0])
            self._build_launch(name, p, (_GROUP if name == "guided_down" else 1, 256))(stream)

    def _get_intermediate_result_address(self, pass_index: int) -> int:
        """Return the address of the result of a pass that another one follows."""
        return self._get_plane_address(PLANES + (2 + (pass_index - 1) % 2 * 2 if pass_index else 0))

    def _build_launches(self, graph_key: _RefinementGraphKey) -> list[tuple[str, Launch]]:
        """Return the launches that follow, in order."""
        launches: list[tuple[str, Launch]] = []
        judged = dual_index = 0
        for number, rounds in enumerate(graph_key.passes):
            position = PassPosition(number, len(graph_key.passes))
            start = self._get_intermediate_result_address(number - 1) if number else None
            flow_index, warps = 0, position.count_warps(self._config)
            if number:
                p = self._build_pass_params(graph_key, start)
                p.flow_out = self._get_plane_address(_FLOWS[0])
                launches.append(("loading", self._build_launch("guided_start", p, (1, 256))))
            for turn in range(rounds):
                for warp in range(warps):
                    p = self._build_pass_params(graph_key, start)
                    p.flow, p.last = self._get_plane_address(_FLOWS[flow_index]), int(warp == warps - 1)
                    is_judged = warp == 0 and judged < graph_key.misfit_count
                    if is_judged:
                        p.fits = self._get_plane_address(_FLOWS[1 - flow_index])  # free until the iterations
                    launches.append(("linearise", self._build_launch("guided_linearise", p, _LINEARISED)))
                    if is_judged:
                        launches.append(("judging", self._build_misfit_launch(graph_key, judged, p.fits)))
                        judged, judged_launch_count = judged + 1, len(launches)
                    for step, depth in enumerate(self._depths):
                        zero_dual = number == turn == warp == step == 0
                        launches.append(
                            (
                                "iterate",
                                self._build_iterations_launch(
                                    graph_key, depth, flow_index, dual_index, zero_dual=zero_dual
                                ),
                            )
                        )
                        flow_index, dual_index = 1 - flow_index, 1 - dual_index
                    if warp < warps - 1:
                        p = self._build_pass_params(graph_key, start)
                        p.flow = self._get_plane_address(_FLOWS[flow_index])
                        p.flow_out = self._get_plane_address(_FLOWS[1 - flow_index])
                        median = f"guided_plain_median_{self._config.filter_precision}"
                        launches.append(("median", self._build_launch(median, p, _MEDIAN, 128)))
                        flow_index = 1 - flow_index
                p = self._build_pass_params(graph_key, start)
                p.flow = self._get_plane_address(_FLOWS[flow_index])
                p.flow_out = self._get_plane_address(_FLOWS[1 - flow_index])
                flow_index = 1 - flow_index
                p.last = int(turn == rounds - 1)
                if p.last and position.is_last:
                    p.shares = get_address(self._shares) if graph_key.blends else None
                    p.after_first = self._get_intermediate_result_address(0) if number else None
                elif p.last:
                    p.refined = self._get_intermediate_result_address(number)
                launches.append(("jumps", self._build_launch("guided_jumps", p, (8, 32))))
                p = type(p).from_buffer_copy(p)
                precision, sparse = self._config.filter_precision, "_sparse" if position.is_between else ""
                launch = self._build_launch(f"guided_median_{precision}{sparse}", p, _FILTERED[precision])
                launches.append(("weighted median", launch))
        if graph_key.blends and len(graph_key.passes) > 1:
            # Where nothing of the later passes remains, only the kernel that settles all pixels has work to do.
            for _, launch in (*launches[judged_launch_count:-2], launches[-1]):
                launch.params.later = get_address(self._shares)
        return launches

    def _build_pass_params(self, graph_key: _RefinementGraphKey, start_address: int | None) -> ctypes.Structure:
        """Return the parameters of a pass that starts from the flow at an address; None: from the caller's."""
        p = self._build_kernel_params(graph_key.channels)
        p.given = start_address
        return p

    @property
    def _linearisation_block_count(self) -> int:
        """Blocks of a linearisation."""
        return math.prod(-(-side // tile) for side, tile in zip(self._size, _LINEARISED, strict=True))

    def _build_misfit_launch(self, graph_key: _RefinementGraphKey, judged: int, fits_address: int) -> Launch:
        p = self._build_kernel_params(graph_key.channels)
        p.fits, p.fit_blocks, p.judged = fits_address, self._linearisation_block_count, judged
        p.shares = get_address(self._shares) if graph_key.blends else None
        return Launch(self._library, "guided_judge", 1, 1024, p)

    def _build_iterations_launch(
        self, graph_key: _RefinementGraphKey, depth: int, flow_index: int, dual_index: int, *, zero_dual: bool
    ) -> Launch:
        """Return ``depth`` iterations that read the sets of planes with these indices and write the others."""
        one = self._passes.get(depth)
        p: ctypes.Structure = self._build_kernel_params(graph_key.channels) if one is None else _Rows()
        p.flow, p.dual = self._get_plane_address(_FLOWS[flow_index]), self._get_plane_address(_DUALS[dual_index])
        p.flow_out = self._get_plane_address(_FLOWS[1 - flow_index])
        p.dual_out = self._get_plane_address(_DUALS[1 - dual_index])
        p.zero_dual = int(zero_dual)
        if one is None:
            p.iterations = depth
            return self._build_launch(
                "guided_iterate", p, self._shape.get_tile_output_rows_and_columns(depth), 32 * self._shape.warps
            )
        p.system, p.plane, p.pitch = self._get_plane_address(_SYSTEM), self._planes.stride(0), self._pitch
        p.height, p.width = self._size
        p.rows, p.columns = one.rows, one.columns
        p.slowness, p.sigma = 1 / self._config.step, 0.25 / self._config.step
        blocks = one.columns * -(-p.height // one.rows)
        return Launch(self._pass_libraries[depth], "guided_rows", blocks, one.threads, p, one.shared)
