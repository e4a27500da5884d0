"""The guided refinement on the CPU: iterations pipelined line after line, strips over threads, as in ``cpu.py``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from fullfield._kernels import Missing, numba_cache
from fullfield._kernels.threads import run_tasks_and_wait, split_into_row_ranges
from fullfield.ops.tvl1.config import FILTER_RADIUS, JUDGED, LEAST_FIT, ONLY_PASS, PassPosition, RefinementConfig
from fullfield.ops.tvl1.cpu import _allocate_aligned_zeros, _LevelLayout
from fullfield.ops.tvl1.guided_reference import compute_gaussian_kernel, compute_mean_misfits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Plane = NDArray[np.float32]

# Iterations per pass over a strip.
_DEPTH = 10
# In place of a flow back.
_NONE = np.empty((2, 0, 0), np.float32)
# Beyond the frame's sides no neighbour has a colour like this.
_NO_COLOUR = 1e4
kernels = numba_cache.KernelModule(f"{__package__}._guided_cpu_kernels", "refinement kernels")


def explain_unsupported(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return None if the CPU kernels can compute with these settings, else the reason."""
    if dtype != torch.float32:
        return f"computes in float32 only, got {str(dtype).removeprefix('torch.')}"
    if device.type != "cpu":
        return Missing(f"runs on cpu only, got {device.type}")  # and no kernel runs there
    return numba_cache.explain_missing_numba()


class CpuRefiner:
    """Refiner for one size of frame, with all buffers. It serves one thread at a time; the public refiner locks."""

    def __init__(self, height: int, width: int, config: RefinementConfig) -> None:
        self._config, self._height, self._width = config, height, width
        self._k = k = kernels()
        self._level = _LevelLayout(height, width, k.LEFT)
        self._state = _allocate_aligned_zeros((k.PLANES + 2) * self._level.size)
        self._packed = np.zeros((height + 3) * (width + 3) * 4 + k.LEFT, np.float32)
        self._blurred = np.empty((2, height, width), np.float32)
        self._guide = np.empty(0, np.float32)
        self._kernel = np.array(compute_gaussian_kernel(config.blur), np.float32)
        steps = np.arange(-FILTER_RADIUS, FILTER_RADIUS + 1)
        squared = (steps[:, None] ** 2 + steps**2) / config.filter_reach**2
        self._nearness = np.maximum(1 - squared, 0).astype(np.float32).ravel()
        self._threads = 1

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of all buffers, with the colours of RGB frames."""
        buffers = (self._state, self._packed, self._blurred)
        return sum(buffer.nbytes for buffer in buffers) + 3 * self._level.size * 4

    def __call__(
        self,
        frames: tuple[Plane, Plane, Plane],  # first frame [C, H, W], both in grey [H, W]; 0 ... 255
        prior: Plane,  # [2, H, W]
        backward: Plane | None,  # [2, H, W]
        threads: int,
        rounds: int,
        position: PassPosition = ONLY_PASS,
    ) -> tuple[Plane, torch.Tensor]:  # [2, H, W]
        """Refine a flow; return it with the misfits of ``guided_reference.refine_pair_and_get_misfits``.

        A pass after the first one continues with the dual variable that the call before left.
        """
        colours, first, second = frames
        k, level, config = self._k, self._level, self._config
        warps, self._threads = position.count_warps(config), threads
        self._fill_buffers_with_blurred_pair_and_weights(
            colours, first, second, prior, _NONE if backward is None else backward, keep_dual=position.number > 0
        )
        fit, round_misfits = torch.from_numpy(level.view_plane(self._state, k.FIT)), []
        for turn in range(rounds):
            for warp in range(warps):
                self._run_kernel_over_row_strips(self._linearise_rows)
                if warp == 0 and turn < JUDGED:
                    round_misfits.append(compute_mean_misfits(fit[None] - LEAST_FIT))
                for start in range(0, config.iterations, _DEPTH):
                    self._run_inner_iterations(min(_DEPTH, config.iterations - start))
                if warp < warps - 1:
                    self._filter_flow_inplace(self._write_row_medians_to_scratch)
            self._filter_flow_inplace(partial(self._write_weighted_row_medians_to_scratch, len(colours), position))
        flow = np.empty((2, self._height, self._width), np.float32)
        where = (self._state, level.size, level.pitch, self._width)
        self._run_kernel_over_row_strips(
            lambda top, bottom: k.damp_large_flow_changes_in_rows(*where, top, bottom, np.float32(config.trust), flow)
        )
        return flow, torch.cat(round_misfits)

    def _run_kernel_over_row_strips(self, kernel: Callable[[int, int], None], strips_per_thread: int = 1) -> None:
        strips = split_into_row_ranges(self._height, strips_per_thread * self._threads)
        run_tasks_and_wait([partial(kernel, top, bottom) for top, bottom in strips], self._threads)

    def _fill_buffers_with_blurred_pair_and_weights(
        self, colours: Plane, first: Plane, second: Plane, prior: Plane, backward: Plane, *, keep_dual: bool
    ) -> None:
        """Bring the pair into the kernels' layouts."""
        k, level, state, config = self._k, self._level, self._state, self._config
        where = (level.size, level.pitch, self._height, self._width)
        count = len(colours) * level.size
        if len(self._guide) != count:
            self._guide = np.full(count, _NO_COLOUR, np.float32)
        state[: (k.P11 if keep_dual else k.P22 + 1) * level.size] = 0.0
        coupling = [
            np.float32(value) for value in (config.coupling, config.consistent_coupling, config.consistent_distance)
        ]

        def blur(top: int, bottom: int) -> None:
            for target, source in zip(self._blurred, (first, second), strict=True):
                line = np.empty(self._width, np.float32)
                k.blur_rows(source, target, self._height, self._width, top, bottom, self._kernel, line)

        def load(top: int, bottom: int) -> None:
            k.write_second_derivatives_and_flow(state, *where, top, bottom, self._blurred[0], prior)
            k.write_coupling_weight_rows(state, *where, top, bottom, prior, backward, *coupling)
            k.write_edge_weight_rows(state, *where, top, bottom, colours, np.float32(config.edges), self._guide)
            padded = bottom + 3 if bottom == self._height else bottom
            k.interleave_second_frame_and_gradient(
                self._blurred[1], self._packed, self._height, self._width, top, padded
            )

        self._run_kernel_over_row_strips(blur)
        self._run_kernel_over_row_strips(load)
        for plane in (k.U, k.V):
            level.view_plane(state, plane)[:] = level.view_plane(state, plane + k.FU - k.U)

    def _linearise_rows(self, top: int, bottom: int) -> None:
        level, config = self._level, self._config
        weights, corners = np.empty(128, np.float32), np.empty(32, np.int32)
        constants = map(np.float32, (config.lambda_, config.epsilon, 1 / config.step, config.filter_residual))
        where = (level.size, level.pitch, self._height, self._width, top, bottom)
        self._k.compute_linear_system_rows(self._state, *where, self._packed, *constants, weights, corners)

    def _run_inner_iterations(self, iterations: int) -> None:
        level, step = self._level, self._config.step
        size = (self._state, level.size, level.pitch, self._height, self._width)
        rule = (iterations, self._k.GUIDED, (np.float32(1 / step), np.float32(0.25 / step), np.float32(0)))
        strips = split_into_row_ranges(self._height, self._threads, min_rows=2 * iterations + 2)
        run_tasks_and_wait(
            [partial(self._k.iterate_strip, *size, top, bottom, *rule) for top, bottom in strips],
            self._threads,
        )
        run_tasks_and_wait([partial(self._k.iterate_seam, *size, top, *rule) for top, _ in strips[1:]], self._threads)

    def _filter_flow_inplace(self, kernel: Callable[[Plane, int, int], None]) -> None:
        """Filter the flow into the scratch planes, and put it back."""
        level, k = self._level, self._k
        scratch = self._state[k.PLANES * level.size :]
        self._run_kernel_over_row_strips(partial(kernel, scratch), strips_per_thread=4)
        self._state[: 2 * level.size] = scratch[: 2 * level.size]

    def _write_row_medians_to_scratch(self, scratch: Plane, top: int, bottom: int) -> None:
        level, line = self._level, np.zeros(6 * self._level.pitch, np.float32)
        where = (level.size, level.pitch, self._height, self._width, top, bottom)
        self._k.filter_rows_by_median(self._state, *where, scratch, 5, line)

    def _write_weighted_row_medians_to_scratch(
        self, channels: int, position: PassPosition, scratch: Plane, top: int, bottom: int
    ) -> None:
        level, config = self._level, self._config
        where = (level.size, level.pitch, self._height, self._width, top, bottom)
        limits = (np.float32(config.filter_colour), self._nearness, np.float32(config.filter_threshold))
        lines = np.empty((self._k.SPAN + 2) * level.pitch, np.float32)
        buffer = np.empty(len(self._nearness) * 16, np.float32)
        steps = np.array(position.filter_steps, np.float32)
        self._k.filter_by_weighted_median_rows(
            self._state, *where, self._guide, channels, scratch, *limits, steps, lines, buffer
        )
