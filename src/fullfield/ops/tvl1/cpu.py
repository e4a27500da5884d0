"""The fast CPU backend: fused row kernels, iterations pipelined line after line, strips over threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fullfield._kernels import numba_cache
from fullfield._kernels.threads import run_tasks_and_wait, split_into_row_ranges
from fullfield.ops.tvl1.config import TVL1Config
from fullfield.ops.tvl1.frames import (
    Float32TapTable,
    check_and_solve_each_pair_in_grey_255,
    compute_gaussian_tap_table,
    compute_level_sizes,
    compute_linear_tap_table,
    compute_progress_and_level_text,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fullfield.ops.tvl1.frames import Progress

    Plane = NDArray[np.float32]

# Iterations per pass over a strip: enough reuse, and a seam stays a small part of a strip.
DEPTH = 15


def explain_unsupported(device: torch.device, dtype: torch.dtype, config: TVL1Config) -> str | None:
    """Return None if the CPU kernels can compute with these settings, else the reason."""
    if device.type != "cpu":
        return f"runs on cpu only, got {device.type}"
    if dtype != torch.float32:
        return f"computes in float32 only, got {str(dtype).removeprefix('torch.')}"
    if config.cuda_only_feature is not None:
        return f"has no {config.cuda_only_feature}"
    return numba_cache.explain_missing_numba()


def create_solver(height: int, width: int, config: TVL1Config, device: torch.device, dtype: torch.dtype) -> CpuSolver:  # noqa: ARG001
    """Return a function of checked frames [B, C, H, W], a start [B, 2, H, W] or None, and a progress, to the flow."""
    return CpuSolver(height, width, config)


kernels = numba_cache.KernelModule(f"{__package__}._cpu_kernels", "TV-L1 kernels")


class _LevelLayout:
    """Size and memory layout of one pyramid level."""

    def __init__(self, height: int, width: int, left: int) -> None:
        self.height = height
        self.width = width
        self.pitch = left + (width + 15) // 16 * 16 + 16
        self.size = (height + 2) * self.pitch + 32  # of a plane, in floats
        self._left = left

    def get_first_pixel_offset(self, plane: int) -> int:
        """Return the offset of pixel (0, 0) of a plane in the state."""
        return plane * self.size + self.pitch + self._left

    def view_plane(self, state: Plane, plane: int) -> Plane:
        """Return the pixels of a plane, [height, width]."""
        start = plane * self.size
        padded = state[start : start + (self.height + 2) * self.pitch].reshape(self.height + 2, self.pitch)
        return padded[1 : self.height + 1, self._left : self._left + self.width]


def _allocate_aligned_zeros(size: int) -> Plane:
    """Return zeros that begin on a cache line: a vector that straddles two lines costs two loads."""
    raw = np.zeros(size + 15, np.float32)
    start = -(raw.ctypes.data // 4) % 16
    return raw[start : start + size]


class CpuSolver:
    """TV-L1 for one size of frame; holds every buffer. Not for two threads at once (the public solver locks)."""

    def __init__(self, height: int, width: int, config: TVL1Config) -> None:
        self._config = config
        self._k = kernels()
        self._sizes = sizes = compute_level_sizes(height, width, config.scales, config.scale_factor)
        self._levels = [_LevelLayout(h, w, self._k.LEFT) for h, w in sizes]
        # Level 0 is the caller's frame, put in its place at every call.
        self._pyramid1 = [np.empty((0, 0), np.float32), *(np.empty(size, np.float32) for size in sizes[1:])]
        self._pyramid2 = [np.empty((0, 0), np.float32), *(np.empty(size, np.float32) for size in sizes[1:])]
        self._scratch = self._k.PLANES
        self._state = _allocate_aligned_zeros((self._scratch + 2) * self._levels[0].size)
        self._packed = np.zeros((height + 3) * (width + 3) * 4 + self._k.LEFT, np.float32)
        self._threads = 1
        self._tables: dict[tuple[str, int, int], Float32TapTable] = {}

    def __call__(
        self, frame1: Tensor, frame2: Tensor, initial_flow: Tensor | None, progress: Progress | None
    ) -> Tensor:
        """Estimate the flow; see :func:`create_solver`."""
        return check_and_solve_each_pair_in_grey_255(
            self._solve_grey_pair, torch.float32, frame1, frame2, initial_flow, progress
        )

    def _solve_grey_pair(
        self, frame1: Tensor, frame2: Tensor, initial_flow: Tensor | None, progress: Progress | None
    ) -> Tensor:
        """Return the flow [2, H, W] of grey frames [H, W] of 0 ... 255, from a start [2, H, W] or None."""
        self._threads = torch.get_num_threads()
        self._pyramid1[0], self._pyramid2[0] = (np.ascontiguousarray(frame.numpy()) for frame in (frame1, frame2))
        for pyramid in (self._pyramid1, self._pyramid2):
            for finer, coarser in pairwise(pyramid):
                self._resample_plane("gaussian", finer, coarser.reshape(-1), coarser.shape, coarser.shape[1])
        last = len(self._levels) - 1
        flow_planes = (
            None if initial_flow is None else [np.ascontiguousarray(component) for component in initial_flow.numpy()]
        )
        for number in range(last, -1, -1):
            level = self._levels[number]
            # Only what an iteration reads before it is written: the dual variable with its border, and the first flow.
            self._state[(0 if flow_planes is None else self._k.P11) * level.size : (self._k.P22 + 1) * level.size] = 0.0
            if flow_planes is not None:
                self._resample_flow_into_level(level, flow_planes, "linear" if number < last else "gaussian")
            self._write_level_frames_and_gradients_to_buffers(number)
            for warp in range(self._config.warps):
                self._linearise_and_iterate(level, is_flow_in_scratch=warp > 0 and self._config.median > 0)
                if self._config.median:
                    self._filter_flow_into_scratch(level)
                if progress is not None:
                    progress(*compute_progress_and_level_text(self._sizes, number, (warp + 1) / self._config.warps))
            flow = self._scratch if self._config.median else self._k.U
            flow_planes = [level.view_plane(self._state, plane).copy() for plane in (flow, flow + 1)]
        self._pyramid1[0] = self._pyramid2[0] = np.empty((0, 0), np.float32)
        assert flow_planes is not None  # there is at least one level
        return torch.from_numpy(np.stack(flow_planes))

    def _run_kernel_over_row_strips(self, height: int, kernel: Callable[[int, int], None]) -> None:
        run_tasks_and_wait(
            [partial(kernel, top, bottom) for top, bottom in split_into_row_ranges(height, self._threads)],
            self._threads,
        )

    def _get_or_compute_resampling_table(self, filter_name: str, size_in: int, size_out: int) -> Float32TapTable:
        key = (filter_name, size_in, size_out)
        if key not in self._tables:
            make = compute_gaussian_tap_table if filter_name == "gaussian" else compute_linear_tap_table
            index, weight = make(size_in, size_out)
            self._tables[key] = (index, weight.astype(np.float32))
        return self._tables[key]

    def _resample_plane(
        self,
        filter_name: str,
        source: Plane,
        flat_target: Plane,
        target_size: tuple[int, ...],
        target_pitch: int,
        scale: float = 1.0,
    ) -> None:
        """Resample into ``flat_target``, which begins at its pixel (0, 0), with ``target_pitch`` floats a row."""
        height_in, width_in = source.shape
        height, width = target_size
        vertical = self._get_or_compute_resampling_table(filter_name, height_in, height)
        horizontal = self._get_or_compute_resampling_table(filter_name, width_in, width)
        flat = source.reshape(-1)

        def resample_row_strip(top: int, bottom: int) -> None:
            line = np.empty(width_in, np.float32)
            args = (flat, width_in, width_in, flat_target, target_pitch, width, vertical, horizontal, np.float32(scale))
            self._k.resample_rows(*args, line, top, bottom)

        self._run_kernel_over_row_strips(height, resample_row_strip)

    def _resample_flow_into_level(self, level: _LevelLayout, planes: list[Plane], filter_name: str) -> None:
        """Bring a flow of another size into the state of this level."""
        height, width = planes[0].shape
        ratios = (level.width / width, level.height / height)
        for plane, (source, ratio) in enumerate(zip(planes, ratios, strict=True)):
            target = self._state[level.get_first_pixel_offset(plane) :]
            self._resample_plane(filter_name, source, target, (level.height, level.width), level.pitch, ratio)

    def _write_level_frames_and_gradients_to_buffers(self, level_index: int) -> None:
        """Bring the level's frames into the kernels' layouts."""
        k, level, state, packed = self._k, self._levels[level_index], self._state, self._packed
        frame1, frame2 = self._pyramid1[level_index], self._pyramid2[level_index]
        size, pitch, height, width = level.size, level.pitch, level.height, level.width

        def write_row_strip(top: int, bottom: int) -> None:
            k.write_first_frame_and_gradient(state, size, pitch, height, width, top, bottom, frame1)
            padded = bottom + 3 if bottom == height else bottom
            k.interleave_second_frame_and_gradient(frame2, packed, height, width, top, padded)

        self._run_kernel_over_row_strips(height, write_row_strip)

    def _linearise_and_iterate(self, level: _LevelLayout, is_flow_in_scratch: bool) -> None:
        """Linearise the data term and iterate on it; ``is_flow_in_scratch``: the flow lies in the scratch."""
        config = self._config
        linearise = partial(self._restore_flow_and_linearise_rows, level, is_flow_in_scratch)
        for start in range(0, config.iterations, DEPTH):
            self._run_inner_iterations(level, min(DEPTH, config.iterations - start), linearise if start == 0 else None)

    def _restore_flow_and_linearise_rows(
        self, level: _LevelLayout, is_flow_in_scratch: bool, top: int, bottom: int
    ) -> None:
        k, state, size, pitch = self._k, self._state, level.size, level.pitch
        if is_flow_in_scratch:
            for plane in (k.U, k.V):
                start, stop = ((plane * size + row * pitch) for row in (top + 1, bottom + 1))
                shift = self._scratch * size
                state[start:stop] = state[start + shift : stop + shift]
        weights, corners = np.empty(128, np.float32), np.empty(32, np.int32)
        where = (size, pitch, level.height, level.width, top, bottom)
        k.linearise_residual_rows(
            state, *where, self._packed, np.float32(self._config.gradient_blend), weights, corners
        )

    def _run_inner_iterations(
        self, level: _LevelLayout, iterations: int, run_before_strip: Callable[[int, int], None] | None = None
    ) -> None:
        """Run ``iterations`` iterations; before them each strip runs ``run_before_strip`` on its own rows."""
        config, k = self._config, self._k
        size = (self._state, level.size, level.pitch, level.height, level.width)
        constants = (config.lambda_ * config.theta, config.theta, config.tau / config.theta)
        kind = k.ADJOINT if config.borders == "adjoint" else k.CLAMP
        rule = (iterations, kind, tuple(map(np.float32, constants)))

        def iterate_row_strip(top: int, bottom: int) -> None:
            if run_before_strip is not None:
                run_before_strip(top, bottom)
            k.iterate_strip(*size, top, bottom, *rule)

        strips = split_into_row_ranges(level.height, self._threads, min_rows=2 * iterations + 2)
        run_tasks_and_wait([partial(iterate_row_strip, top, bottom) for top, bottom in strips], self._threads)
        run_tasks_and_wait([partial(k.iterate_seam, *size, top, *rule) for top, _ in strips[1:]], self._threads)

    def _filter_flow_into_scratch(self, level: _LevelLayout) -> None:
        """Write the median of the flow into the scratch planes."""
        scratch = self._state[self._scratch * level.size :]

        def filter_row_strip(top: int, bottom: int) -> None:
            line = np.zeros(6 * level.pitch, np.float32)
            where = (level.size, level.pitch, level.height, level.width, top, bottom)
            self._k.filter_rows_by_median(self._state, *where, scratch, self._config.median, line)

        self._run_kernel_over_row_strips(level.height, filter_row_strip)
