"""Compiled kernels for the CPU: linear memory, all cores (``torch.set_num_threads``).

Products and sums are float32; float16 and bfloat16 features are widened once, when the pair is prepared. Results do
not depend on the number of threads. The kernels release the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullfield._kernels.numba_cache import KernelModule, explain_missing_numba
from fullfield._kernels.threads import run_task_on_ranges_and_wait
from fullfield.ops.correlation._cpu_layout import LANES, LARGEST_RADIUS, TILE, compute_max_box_cells
from fullfield.ops.correlation.protocol import GradientAccumulators, LookupRequest, PreparedPair, allocate_lookup_output

# Elements behind the last level, where a row's last product may read.
_TAIL = 2 * LANES
# Tiles whose windows' gradients are held at a time.
_CHUNK = 128


def explain_unsupported(request: LookupRequest) -> str | None:
    """Return why the kernels cannot serve the request; None if they can."""
    if request.device.type != "cpu":
        return f"runs on the CPU, the features are on {request.device}"
    if request.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"needs float32, float16 or bfloat16 features, got {request.dtype}"
    if request.radius > LARGEST_RADIUS:
        return f"needs radius <= {LARGEST_RADIUS}, got {request.radius}"
    return explain_missing_numba()


def prepare_pair(request: LookupRequest, fmap1: Tensor, fmap2_levels: Sequence[Tensor]) -> CpuPair:
    """Lay out a pair."""
    blocks = _count_channel_blocks(request)
    state = allocate_pair_state(request, fmap1)
    source, target = state
    rows, columns = _count_tile_rows_and_columns(request)
    height, width = request.size1
    padded = torch.zeros(request.batch, blocks * LANES, rows * TILE[0], columns * TILE[1], dtype=torch.float32)
    padded[:, : request.channels, :height, :width] = fmap1.detach()
    padded /= max(request.channels, 1) ** 0.5
    split = torch.unflatten(torch.unflatten(padded, 3, (columns, TILE[1])), 2, (rows, TILE[0]))
    source.view(request.batch, rows, columns, blocks * LANES, *TILE).copy_(split.permute(0, 2, 4, 1, 3, 5))

    target[-_TAIL:] = 0.0
    for fmap2, level in zip(fmap2_levels, _view_levels(request, target), strict=True):
        if level.numel() == 0:  # PyTorch 2.6 pads nothing that is empty
            continue
        short = blocks * LANES - request.channels
        padded_map = torch.nn.functional.pad(fmap2.detach(), (0, 0, 0, 0, 0, short)) if short else fmap2.detach()
        level.copy_(torch.unflatten(padded_map, 1, (blocks, LANES)).permute(0, 1, 3, 4, 2))
    return CpuPair(request, state)


def allocate_pair_state(request: LookupRequest, like: Tensor) -> tuple[Tensor, ...]:
    """Return empty tensors for both maps in the layout of :class:`CpuPair`."""
    rows, columns = _count_tile_rows_and_columns(request)
    channels = _count_channel_blocks(request) * LANES
    source = like.new_empty((request.batch * rows * columns * channels * LANES,), dtype=torch.float32)
    target = like.new_empty((_count_target_elements(request) + _TAIL,), dtype=torch.float32)
    return source, target


def _count_channel_blocks(request: LookupRequest) -> int:
    return -(-request.channels // LANES)


def _count_tile_rows_and_columns(request: LookupRequest) -> tuple[int, int]:
    return -(-request.size1[0] // TILE[0]), -(-request.size1[1] // TILE[1])


def _count_target_elements(request: LookupRequest) -> int:
    return (
        request.batch * _count_channel_blocks(request) * LANES * sum(height * width for height, width in request.sizes2)
    )


def _view_levels(request: LookupRequest, target: Tensor) -> list[Tensor]:
    """Return every level of the flat target as [B, C // 16, H, W, 16]."""
    views, start, blocks = [], 0, _count_channel_blocks(request)
    for height, width in request.sizes2:
        shape = (request.batch, blocks, height, width, LANES)
        count = request.batch * blocks * height * width * LANES
        views.append(target[start : start + count].view(shape))
        start += count
    return views


_kernels = KernelModule(f"{__package__}._cpu_kernels", "correlation kernels")
_backward_kernels = KernelModule(f"{__package__}._cpu_backward_kernels", "kernels of the correlation's gradients")


def _allocate_scratch(window_side: int, channel_blocks: int) -> tuple[NDArray[Any], ...]:
    """Return buffers for cells, channels, a line and taps, and each lane's gather offset, window and fractions."""
    from fullfield.ops.correlation._cpu_simd import MOST

    floats = (
        2 * compute_max_box_cells(window_side) + 2 * MOST,
        channel_blocks,
        max(2 * LARGEST_RADIUS + 3, MOST),
        (window_side - 1) ** 2,
    )
    cells, pixel, line, taps = (np.zeros(vectors * LANES, np.float32) for vectors in floats)
    integers = (np.zeros(LANES, dtype) for dtype in (np.int32, np.int64, np.int64))
    return cells, pixel, line, taps, *integers, np.zeros(LANES, np.float32), np.zeros(LANES, np.float32)


def _convert_to_float32_array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().to(torch.float32).numpy()
    return array


class CpuPair(PreparedPair):
    """Pair in the kernels' layout.

    The state is fmap1 / √C as [B, tile, channel, 16 pixels] and all levels as [B, C // 16, H, W, 16], both flat
    float32.
    """

    def __init__(self, request: LookupRequest, state: tuple[Tensor, ...]) -> None:
        super().__init__(request, state)
        blocks, start, table = _count_channel_blocks(request), 0, []
        for height, width in request.sizes2:
            plane = height * width * LANES
            table.append((start, height, width, plane, blocks * plane))
            start += request.batch * blocks * plane
        self._levels = np.array(table, np.int64).reshape(-1, 5)
        self._scales = np.array([0.5**level for level in range(request.levels)], np.float32)
        self._window = 2 * request.radius + 2
        self._tiles = _count_tile_rows_and_columns(request)[0] * _count_tile_rows_and_columns(request)[1]

    def _run_kernel_on_tiles_in_threads(
        self, kernel: Callable[..., None], coords: Tensor, out: Tensor, *extra: Any
    ) -> None:
        r = self.request
        arrays = (
            _convert_to_float32_array(self.state[0]),
            _convert_to_float32_array(self.state[1]),
            self._levels,
            self._scales,
            _convert_to_float32_array(coords),
        )
        sizes = self._window, _count_channel_blocks(r)

        def run_tile_range(first: int, last: int) -> None:
            kernel(*arrays, *sizes, _allocate_scratch(*sizes), *extra, out.numpy(), first, last)

        run_task_on_ranges_and_wait(r.batch * self._tiles, 4, torch.get_num_threads(), run_tile_range)

    def lookup(self, coords: Tensor, out_dtype: torch.dtype, channels_last: bool) -> Tensor:
        """Look up as :class:`PreparedPair` describes."""
        out = allocate_lookup_output(self.request, self.state[0], torch.float32, channels_last)
        if out.numel():
            self._run_kernel_on_tiles_in_threads(_kernels().lookup_tiles, coords, out)
        return out.to(out_dtype)

    def backward(
        self, grad_out: Tensor, coords: Tensor, grads: GradientAccumulators, needs_coords_grad: bool
    ) -> Tensor | None:
        """Add one lookup's share to ``grads``; return the gradient of ``coords`` if it is requested."""
        if any(grads.requested):
            self._add_feature_gradients(grad_out, coords, grads)
        if not needs_coords_grad:
            return None
        out = torch.zeros(coords.shape, dtype=torch.float32)
        if out.numel():
            self._run_kernel_on_tiles_in_threads(
                _backward_kernels().compute_coords_gradients, coords, out, _convert_to_float32_array(grad_out)
            )
        return out.to(coords.dtype)

    def _add_feature_gradients(self, grad_out: Tensor, coords: Tensor, grads: GradientAccumulators) -> None:
        kernels = _backward_kernels()
        r = self.request
        blocks, total = _count_channel_blocks(r), r.batch * self._tiles
        chunk = min(_CHUNK, total)
        notes = np.empty((chunk * r.levels, kernels.NOTES), np.int64)
        weights = np.empty(chunk * r.levels * (compute_max_box_cells(self._window) + 2) * LANES, np.float32)
        f1, f2, xy, grad = (_convert_to_float32_array(t) for t in (*self.state, coords, grad_out))
        nothing = np.empty(0, np.float32)
        grad1 = nothing if grads.fmap1 is None else grads.fmap1.numpy()
        grad2 = nothing if grads.levels is None else grads.levels[0].numpy()

        for origin in range(0, total, max(chunk, 1)):
            end = min(origin + chunk, total)

            def compute_dot_gradients(first: int, last: int, origin: int = origin) -> None:
                kernels.compute_dot_gradients(
                    self._levels, self._scales, xy, grad, self._window, origin, _allocate_scratch(self._window, 0),
                    origin + first, origin + last, notes, weights,
                )  # fmt: skip

            def add_tile_range(first: int, last: int, origin: int = origin, end: int = end) -> None:
                kernels.add_tiles_to_gradients(
                    f1, f2, self._levels, notes, weights, self._window, self._tiles, blocks,
                    origin, end, first, last, grad1, grad2,
                )  # fmt: skip

            threads = torch.get_num_threads()
            run_task_on_ranges_and_wait(end - origin, 4, threads, compute_dot_gradients)
            run_task_on_ranges_and_wait(blocks, 1, threads, add_tile_range)

    def finish_gradients(self, grads: GradientAccumulators) -> GradientAccumulators:
        """Return the sums, whose accumulators are in the state's layout; ``levels`` is a list of one there."""
        r = self.request
        first, rest = None, None
        if grads.fmap1 is not None:
            rows, columns = _count_tile_rows_and_columns(r)
            split = grads.fmap1.view(r.batch, rows, columns, _count_channel_blocks(r) * LANES, *TILE).permute(
                0, 3, 1, 4, 2, 5
            )
            unpadded = split.flatten(4).flatten(2, 3)[:, : r.channels, : r.size1[0], : r.size1[1]]
            first = unpadded / max(r.channels, 1) ** 0.5
        if grads.levels is not None:
            views = _view_levels(r, grads.levels[0])
            rest = [v.permute(0, 1, 4, 2, 3).flatten(1, 2)[:, : r.channels] for v in views]
        return GradientAccumulators(first, rest, grads.requested)


restore_pair = CpuPair
